"""README's "Your own model", followed on the processor: a checkpoint and a table."""

import re
from pathlib import Path

import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, run
from tests.serve.conftest import engine_environment

from swiftkv.io import read_json


def readme() -> tuple[dict, Path, Path]:
    """README's entry of an own model, and what it says becomes of it: the table, and the folder that is served."""
    section = re.search("## Your own model\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    table = re.search(r"TARGETS=(\w+)$", section, re.MULTILINE)[1]
    served = re.search(r"vllm serve results/(\S+)", section, re.MULTILINE)[1]
    return (
        yaml.safe_load(re.search("```yaml\n(.*?)```", section, re.DOTALL)[1]),
        Path(f"tables/{table}.md"),
        Path(served),
    )


@pytest.mark.slow
def test_an_own_model_becomes_a_checkpoint_and_a_table(checkpoint, tmp_path):
    """As printed, but with a small model of random weights, on no GPU, for one benchmark."""
    own, table, served = readme()
    own["models"]["mine"] |= {
        "source": {"local": str(checkpoint("qwen2", None, num_hidden_layers=8))},
        "num_hidden_layers": 8,
        "num_key_value_layers": {"50": 4},
        "gpus": {"distill": 0, "score": 0},
    }
    own["artifacts"]["mine_quality"]["tasks"] = ["winogrande"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(own))
    profile, made = ROOT / "profiles/smoke", Path("results/smoke")
    command = [SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", tmp_path, "--profile", profile]
    command += ["--configfile", profile / "override.yaml", tmp_path / "mine.yaml"]
    command += ["--", table.stem, made / served / "config.json"]
    ended = run(*command, **engine_environment(tmp_path) | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/workflow"})
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]

    rows = (tmp_path / made / table).read_text()
    # At this scale another group size stands in for 4.
    assert set(re.findall(r"^\| ([a-z]\S+) +\|.*\d", rows, re.MULTILINE)) == {
        "baseline",
        "swiftkv-50",
        "swiftkv-50-across2",
    }
    folder = tmp_path / made / served
    assert read_json(folder / "config.json")["architectures"] == ["Qwen2SwiftKVForCausalLM"]
