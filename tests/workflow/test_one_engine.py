"""One job measures all points that artifacts show of one engine; where one is changed, the others are not measured again."""

import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, run

from swiftkv.io import read_json

POINTS = ("batch-2k", "decode", "kv-capacity")


@pytest.fixture
def scale(tmp_path):
    """The smoke configuration with results in a folder of its own; artifacts show three points of the baseline's engine."""
    override = yaml.safe_load((ROOT / "profiles/smoke/override.yaml").read_text())
    override["pathvars"] = {name: str(tmp_path / name) for name in ("results", "logs", "benchmarks")}
    override["artifacts"] |= {name: {"variants": ["baseline"]} for name in ("decode", "kv_capacity")}
    return tmp_path, override


def measured(folder, override):
    """The records of all points after a run that was to make one of them."""
    (folder / "override.yaml").write_text(yaml.safe_dump(override))
    places = [folder / f"results/serving/{point}/tiny-random/baseline/auto.json" for point in POINTS]
    command = [SNAKEMAKE, "--cores", "2", "--configfile", folder / "override.yaml", "--nolock", "--", places[0]]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rule measure") == 1 and len(list((folder / "logs/measure").rglob("*.vllm.log"))) == 1
    return {point: read_json(place) for point, place in zip(POINTS, places, strict=True)}


def test_one_engine_measures_all_points_and_a_changed_one_alone(scale):
    folder, override = scale
    first = measured(folder, override)
    assert {record["status"] for record in first.values()} == {"ok"}
    override["serving"]["points"]["decode"]["repeats"] = 3
    second = measured(folder, override)
    assert [name for name in POINTS if second[name] != first[name]] == ["decode"]
