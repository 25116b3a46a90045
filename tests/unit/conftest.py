"""Inputs of whole trainings, one that ran undisturbed, and a model to be scored; a file may have others of its own."""

import pytest
import torch
from tests.unit.distill_helpers import make_inputs, train
from tests.unit.score_helpers import SHAPE, write_source


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
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
def source(tmp_path, tiny_teacher):
    """source.json of a tiny model in checkpoint/ beside it."""
    return write_source(tiny_teacher(**SHAPE), tmp_path)


@pytest.fixture
def full_gpus(monkeypatch):
    """A machine whose GPUs have no memory left."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in ("transformers.integrations.accelerate", "accelerate.utils.modeling"):
        monkeypatch.setattr(f"{module}.get_max_memory", lambda *_: {"cpu": 2**40})
