"""The command line of a stage is there at once, and says what each option means."""

import inspect
import subprocess
import sys

import docstring_parser
import pytest

from pipeline.stages import STAGES
from pipeline.stages.command import call


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
