"""Inputs of whole trainings, one that ran undisturbed, and a model to be scored; a file may have others of its own."""

import pytest
from tests.conftest import tiny_teacher
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
def source(tmp_path):
    """source.json of a tiny model in checkpoint/ beside it."""
    return write_source(tiny_teacher(**SHAPE), tmp_path)
