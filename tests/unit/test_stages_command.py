"""The program of the stages: a wrong name ends with what is wrong, and what it does not run is not imported."""

import subprocess
import sys


def test_an_unknown_stage_is_one_sentence():
    run = subprocess.run([sys.executable, "-m", "pipeline.stages", "distil"], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("error: there is no stage 'distil' (did you mean 'distill'?)")


def test_plans_and_help_import_nothing_of_what_jobs_run():
    heavy = {"torch", "tyro", "matplotlib", "pandas"}
    stages = "[stage.summary for stage in pipeline.stages.STAGES.values()]"
    program = f"import sys, pipeline.stages, pipeline.artifacts.contents; {stages}; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "\n"
