"""Inputs of whole trainings, and one that ran undisturbed; a file may have others of its own."""

import pytest
import torch
from tests.unit.distill_helpers import make_inputs, train


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a tiny model and packed rows for it."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    """The training every other one is compared with."""
    folder = tmp_path_factory.mktemp("finished")
    train(inputs, folder)
    return folder


@pytest.fixture
def full_gpus(monkeypatch):
    """A machine whose GPUs have no memory left."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in ("transformers.integrations.accelerate", "accelerate.utils.modeling"):
        monkeypatch.setattr(f"{module}.get_max_memory", lambda *_: {"cpu": 2**40})
