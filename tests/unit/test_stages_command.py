"""What the program of the stages does not run is not imported."""

import sys

from tests.programs import run


def test_plans_and_help_import_nothing_of_what_jobs_run():
    heavy = {"torch", "tyro", "matplotlib", "pandas"}
    stages = "[stage.summary for stage in pipeline.stages.STAGES.values()]"
    program = f"import sys, pipeline.stages, pipeline.artifacts.contents; {stages}; print(*{heavy} & set(sys.modules))"
    assert run(sys.executable, "-c", program).stdout == "\n"
