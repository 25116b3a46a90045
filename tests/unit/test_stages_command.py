"""A function's signature is its command line, and a wrong one ends with what is wrong."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import docstring_parser
import pytest

from pipeline.stages import STAGES
from pipeline.stages.command import call, take_machine
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError


def drawn(size: int, kind: Literal["a", "b"], entry: dict[str, Any] | None = None, place: Path | None = None) -> tuple:
    """Take one of each."""
    return size, kind, entry, place


def test_options_are_what_the_signature_says():
    words = ["--size", "3", "--kind", "b", "--entry", '{"a": [1]}', "--place", "x y"]
    assert call(drawn, words, "program") == (3, "b", {"a": [1]}, Path("x y"))
    assert call(drawn, [*words, "--entry", "null", "--place"], "program") == (3, "b", None, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--kind a", "--size"),
        ("--kind a --size x", "invalid"),
        ("--kind c --size 1", "'c'"),
        ("--kind a --size 1 --entry {", "--entry"),
        ("--kind a --size 1 --place a b", "one value at most"),
        ("--kind a --size 1 --unknown 1", "--unknown"),
    ],
)
def test_a_wrong_option_is_named(capsys, words, sentence):
    with pytest.raises(SystemExit) as end:
        call(drawn, words.split(), "program")
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_recipe_is_checked_as_it_is_read():
    def train(recipe: Recipe) -> None:
        """Train."""

    with pytest.raises(UserError, match="recipe: there is no key 'epoch'"):
        call(train, ["--recipe", '{"epoch": 1}'], "program")


def test_threads_and_gpus_are_taken_out_wherever_they_stand():
    assert take_machine(["--a", "1", "--gpus", "2", "--b", "--threads", "3", "c"]) == (3, 2, ["--a", "1", "--b", "c"])
    assert take_machine(["--gpu", "1"]) == (None, None, ["--gpu", "1"])


def test_an_unknown_stage_is_one_sentence():
    run = subprocess.run([sys.executable, "-m", "pipeline.stages", "distil"], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("error: there is no stage 'distil' (did you mean 'distill'?)")


def test_plans_and_help_import_nothing_of_what_jobs_run():
    heavy = {"torch", "tyro", "matplotlib", "pandas"}
    stages = "[stage.summary for stage in pipeline.stages.STAGES.values()]"
    program = f"import sys, pipeline.stages, pipeline.artifacts.contents; {stages}; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "\n"


@pytest.mark.parametrize("name", STAGES)
def test_every_option_of_every_stage_has_a_meaning(name, capsys):
    function = STAGES[name].function
    assert function.__doc__.splitlines()[0] == STAGES[name].summary
    described = {entry.arg_name for entry in docstring_parser.parse(function.__doc__).params if entry.description}
    assert described == set(inspect.signature(function).parameters)
    with pytest.raises(SystemExit) as end:
        call(function, ["--help"], "program")
    assert end.value.code == 0
