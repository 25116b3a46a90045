"""Rules and stages say the same."""

import inspect
import re

import pytest
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings
from tests.programs import ROOT

from pipeline.records import code_digest
from pipeline.stages import STAGES, stage_of


@pytest.fixture(scope="module")
def workflow():
    """The workflow as Snakemake reads it, at smoke scale, which scores sets of tasks in one job."""
    settings = ConfigSettings(configfiles=[ROOT / "profiles/smoke/override.yaml"])
    with SnakemakeApi(OutputSettings()) as api:
        yield api.workflow(ResourceSettings(cores=1), config_settings=settings, snakefile=ROOT / "Snakefile")._workflow


@pytest.fixture(scope="module")
def rules(workflow):
    return {rule.name: rule for rule in workflow.rules if rule.output}


def test_every_rule_is_a_stage_and_every_stage_a_rule(rules):
    assert {stage_of(name) for name in rules} == set(STAGES.values())
    with pytest.raises(KeyError):
        stage_of("nosuch")


def test_a_rule_runs_its_stage_where_and_with_what_the_stage_says(rules, workflow):
    results, sets = workflow.config["pathvars"]["results"], workflow.config["sets"]
    kinds = {"score": "task", "measure": "point"}
    for name, rule in rules.items():
        stage = stage_of(name)
        expected = {f"{results}/{pattern}" for pattern in stage.outputs}
        if name not in STAGES:
            shared, together = name.split("_", 1)
            members = sets[f"{kinds[shared]}s"][together]
            expected = {pattern.replace(f"{{{kinds[shared]}}}", member) for pattern in expected for member in members}
        assert {re.sub(r"\{(\w+),[^}]*\}", r"{\1}", str(output)) for output in rule.output} == expected, name
        run = re.search(r"(?:python|\{params.launcher\}) -m pipeline.stages (\w+) ", rule.shellcmd)[1]
        assert STAGES[run].run == stage.run, name
        assert (name in workflow._localrules) == stage.local, name
        assert rule.docstring and rule.log and rule.benchmark, name
        asked = {rule.priority, *(value.raw for value in rule.resources.values())}
        asked = {inspect.getclosurevars(function).nonlocals.get("stage") for function in filter(callable, asked)}
        assert asked - {None} == {stage.gpus} - {None}, name
        options = inspect.signature(STAGES[run].function).parameters.values()
        needed = {option.name for option in options if option.default is option.empty}
        assert needed <= {option.replace("-", "_") for option in re.findall(r"--([\w-]+)", rule.shellcmd)}, name


def test_another_way_to_draw_draws_anew(workflow):
    params = {rule.name: dict(rule.params.items()) for rule in workflow.rules}
    drawn = {rule: named["drawing"] for rule, named in params.items() if "drawing" in named}
    method = [f"src/swiftkv/{name}.py" for name in ("cost", "architectures", "spec")]
    code = ["workflow/pipeline/artifacts", "workflow/pipeline/statistics.py", "workflow/pipeline/text.py", *method]
    assert drawn == dict.fromkeys(("table", "figure"), code_digest(*(ROOT / place for place in code)))
