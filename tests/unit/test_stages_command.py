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
from swiftkv.spec import SwiftKVSpec


def everything(
    size: int,
    folder: Path,
    kind: Literal["a", "b"],
    entry: dict[str, Any] | None,
    sources: list[dict[str, Any]],
    spec: SwiftKVSpec | None,
    files: list[Path],
    flag: bool = False,
    missing: Path | None = Path("default"),
    minutes: float | None = None,
    pair: tuple[int, int] = (1, 1),
) -> dict[str, Any]:
    """Take one of each.

    Args:
        size: a number that
            needs two lines.
        folder: a folder.
    """
    return locals()


WORDS = {
    "--size": ["3"], "--folder": ["x y"], "--kind": ["b"], "--entry": ['{"a": [1]}'], "--sources": ['[{"b": null}]'],
    "--spec": ['{"num_hidden_layers": 6, "num_key_value_layers": 3}'], "--files": ["1", "2"],
}  # fmt: skip


def called(**changes):
    """What `everything` gets; a change of None leaves an option out."""
    words = WORDS | {f"--{name}": values for name, values in changes.items()}
    words = [word for name, values in words.items() if values is not None for word in (name, *values)]
    return call(everything, words, "program")


def test_options_are_what_the_signature_says():
    assert called() == {
        "size": 3, "folder": Path("x y"), "kind": "b", "entry": {"a": [1]}, "sources": [{"b": None}],
        "spec": SwiftKVSpec(6, 3), "files": [Path("1"), Path("2")], "flag": False, "missing": Path("default"),
        "minutes": None, "pair": (1, 1),
    }  # fmt: skip
    given = called(entry=["null"], spec=["null"], flag=["True"], missing=[], minutes=["1.5"], pair=["2", "3"], files=[])
    assert [given[name] for name in ("entry", "spec", "flag", "missing", "minutes", "pair", "files")] == [
        None, None, True, None, 1.5, (2, 3), [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": None}, "--size"),
        ({"size": ["x"]}, "invalid"),
        ({"kind": ["c"]}, "'c'"),
        ({"entry": ["{"]}, "--entry"),
        ({"missing": ["a", "b"]}, "one value at most"),
        ({"unknown": ["1"]}, "--unknown"),
    ],
)
def test_a_wrong_option_is_named(capsys, changes, sentence):
    with pytest.raises(SystemExit) as end:
        called(**changes)
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
