"""A changed setting is worked with anew: it reaches its job through a parameter that Snakemake compares with the last one's."""

import dis
import inspect
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import yaml
from snakemake.api import SnakemakeApi
from snakemake.cli import main
from snakemake.settings.types import OutputSettings, ResourceSettings

from pipeline.records import code_digest
from pipeline.stages import rule_of

ROOT = Path(__file__).parents[2]
TARGET = "results/smoke/serving/batch-2k/tiny-random/baseline/auto.json"
# What is read of the configuration for a parameter that is not compared, and why nothing is lost.
NOT_COMPARED = {
    **dict.fromkeys((("measure", name) for name in ("title", "start_timeout")), "changes no number"),
    ("measure", "state"): "follows from the output's place",
    **dict.fromkeys(((f"score{of}", "state") for of in ("", "_shard", "_panel")), "follows from the output's place"),
}


def reads_configuration(function):
    """Whether a function of the workflow reads the configuration, itself or through others of the workflow."""

    def names(code):
        nested = [each for each in code.co_consts if isinstance(each, CodeType)]
        own = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
        return own.union(*map(names, nested))

    function = inspect.unwrap(function)
    scope = function.__globals__
    called = [inspect.unwrap(scope[name]) for name in names(function.__code__) if callable(scope.get(name))]
    called = [other for other in called if isinstance(other, FunctionType)]
    return {"config", "scale"} & names(function.__code__) or any(
        other.__globals__ is scope and reads_configuration(other) for other in called
    )


def test_every_setting_is_compared():
    with SnakemakeApi(OutputSettings()) as api:
        workflow = api.workflow(ResourceSettings(cores=1), snakefile=ROOT / "Snakefile")._workflow
        parameters = [(rule, name, value) for rule in workflow.rules for name, value in rule.params.items()]
    found = {
        (rule_of(rule.name), name)
        for rule, name, value in parameters
        if rule._is_deriving_function(value) and reads_configuration(value)
    }
    assert found == set(NOT_COMPARED)
    assert {rule.name for rule, _, _ in parameters} >= {"measure", "score", "score_panel", "fidelity", "distill"}


def test_another_way_to_draw_draws_anew(tmp_path):
    with SnakemakeApi(OutputSettings()) as api:
        workflow = api.workflow(ResourceSettings(cores=1), snakefile=ROOT / "Snakefile")._workflow
        params = {rule.name: dict(rule.params.items()) for rule in workflow.rules}
    drawn = {rule: named["drawing"] for rule, named in params.items() if "drawing" in named}
    method = [f"src/swiftkv/{name}.py" for name in ("cost", "architectures", "spec")]
    code = ["workflow/pipeline/artifacts", "workflow/pipeline/statistics.py", *method]
    assert drawn == dict.fromkeys(("table", "figure"), code_digest(*(ROOT / place for place in code)))
    file = tmp_path / "bars.py"
    file.write_text("blue")
    before = code_digest(tmp_path)
    file.touch()
    assert code_digest(tmp_path) == before
    file.write_text("gray")
    assert code_digest(tmp_path) != before


def snakemake(folder, *arguments):
    """Run Snakemake in this process, on one serving point of the smoke profile in `folder`."""
    profile = ["--profile", str(ROOT / "profiles/smoke"), "--quiet", "host"]
    where = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    with pytest.raises(SystemExit) as end:
        main([*where, *profile, *arguments, "--", TARGET])
    assert end.value.code == 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder where the point seems to have been measured, with the settings of the profile."""
    folder = tmp_path_factory.mktemp("measured")
    for file in (TARGET, "results/smoke/models/tiny-random/source.json"):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("{}")
    snakemake(folder, "--touch", "--forceall")
    return folder


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"serving": {"points": {"batch-2k": {"total_tokens": 600}}}}, True),
        ({"models": {"tiny-random": {"quantization": "fp8"}}}, True),
        ({"models": {"tiny-random": {"gpus": {"serve": 1}}}}, True),
        ({"serving": {"engine": {"start_timeout": 5}, "points": {"decode": {"repeats": 9}}}}, False),
    ],
)
def test_a_changed_point_is_measured_again(measured, tmp_path, capfd, change, again):
    (tmp_path / "change.yaml").write_text(yaml.safe_dump(change))
    files = [str(ROOT / "profiles/smoke/override.yaml"), str(tmp_path / "change.yaml")]
    snakemake(measured, "--dry-run", "--configfile", *files)
    said = "".join(capfd.readouterr())
    assert ("reason: Params have changed" in said) == again, said
    assert ("Nothing to be done" in said) != again, said
