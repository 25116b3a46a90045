"""Snakemake makes every serving record in a job of its own, and one start of vLLM measures those that need the same engine."""

import json

import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, run

POINTS = ("batch-2k", "decode", "kv-capacity")


@pytest.fixture
def scale(tmp_path):
    """The smoke configuration with results in a folder of its own."""
    override = yaml.safe_load((ROOT / "profiles/smoke/override.yaml").read_text())
    override["pathvars"] = {name: str(tmp_path / name) for name in ("results", "logs", "benchmarks")}
    (tmp_path / "override.yaml").write_text(yaml.safe_dump(override))
    return tmp_path, override


def measured(folder):
    """A run over all points; those whose job started an engine."""
    targets = [folder / f"results/serving/{point}/tiny-random/baseline/auto.json" for point in POINTS]
    command = [SNAKEMAKE, "--cores", "2", "--configfile", folder / "override.yaml", "--nolock", "--", *targets]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert {json.loads(target.read_text())["status"] for target in targets} == {"ok"}
    assert not list((folder / "results/serving-state").rglob("*.json"))
    logs = {point: folder / f"logs/measure/{point}/tiny-random/baseline/auto.log" for point in POINTS}
    texts = {point: log.read_text() for point, log in logs.items() if log.exists()}
    for log in logs.values():
        log.unlink(missing_ok=True)
    return {point for point, text in texts.items() if "has been measured" not in text}, set(texts)


def test_one_engine_measures_all_points_of_a_run_and_a_changed_one_alone(scale):
    folder, override = scale
    started, ran = measured(folder)
    assert len(started) == 1 and ran == set(POINTS)
    override["serving"]["points"]["decode"]["repeats"] = 3
    (folder / "override.yaml").write_text(yaml.safe_dump(override))
    assert measured(folder) == ({"decode"}, {"decode"})
