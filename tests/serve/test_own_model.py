"""README's "Your own model", followed on the processor: a checkpoint and a table."""

import re
from pathlib import Path

import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, succeed
from tests.serve.conftest import engine_environment

from pipeline.run.advise import advise
from pipeline.run.jobs import read_profile
from swiftkv.io import read_json


def readme():
    """What README says becomes of an own model: the table, and the folder that is served."""
    section = re.search("## Your own model\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    table = re.search(r"TARGETS=(\w+)", section)[1]
    return Path(f"tables/{table}.md"), Path(re.search(r"vllm serve results/(\S+)", section, re.MULTILINE)[1])


@pytest.mark.slow
def test_an_own_model_becomes_a_checkpoint_and_a_table(checkpoint, tmp_path, monkeypatch):
    """As `make advise` writes it, for a small model of random weights and one benchmark."""
    table, served = readme()
    monkeypatch.chdir(tmp_path)
    model = checkpoint("qwen2", None, num_hidden_layers=8)
    *_, text = advise(str(model), read_profile("smoke"), Path("mine.yaml"))
    assert str(served) in text and table.stem in text
    own = yaml.safe_load(Path("mine.yaml").read_text())
    own["artifacts"]["mine_quality"]["tasks"] = ["winogrande"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(own))
    profile, made = ROOT / "profiles/smoke", Path("results/smoke")
    command = [SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", tmp_path, "--profile", profile]
    command += ["--configfile", profile / "override.yaml", tmp_path / "mine.yaml"]
    command += ["--", table.stem, made / served / "config.json"]
    succeed(*command, **engine_environment(tmp_path) | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/workflow"})

    rows = (tmp_path / made / table).read_text()
    # At this scale another group size stands in for 4.
    assert set(re.findall(r"^\| ([a-z]\S+) +\|.*\d", rows, re.MULTILINE)) == {
        "baseline",
        "swiftkv-50",
        "swiftkv-50-across2",
    }
    folder = tmp_path / made / served
    assert read_json(folder / "config.json")["architectures"] == ["Qwen2SwiftKVForCausalLM"]
