"""Table 1 and the blog's Table 2 from cost records, and how numbers are printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swiftkv.artifacts.flops import blog_table2, table1
from swiftkv.artifacts.inputs import names, read_published
from swiftkv.artifacts.table import to_markdown
from swiftkv.artifacts.text import mean_and_error, percent, show, significant
from swiftkv.cost import cost_record
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]


def llama_70b():
    content = json.loads((ROOT / "resources/architectures/llama-3.1-70b.json").read_text())
    specs = {
        "baseline": None,
        "swiftkv-50": vars(SwiftKVSpec(80, 40)),
        "swiftkv-50-across4": vars(SwiftKVSpec(80, 40, 4)),
    }
    return cost_record("llama-3.1-70b", "Llama-3.1-70B-Instruct", content["config"], specs, 131072, 256)


@pytest.mark.parametrize(("make", "name"), [(table1, "table1"), (blog_table2, "blog_table2")])
def test_flops_tables_equal_the_published_ones(make, name):
    published = read_published([ROOT / f"resources/paper/{name}.csv"], "llama-3.1-70b", ("variant", "sequence_length"))
    table = make(llama_70b(), published)
    printed = table.panels[0].frame.to_dict("records")
    ours = [row for row in printed if row["Model"] != "published"]
    theirs = [row for row in printed if row["Model"] == "published"]
    assert len(theirs) == (3 if name == "table1" else 2)
    for mine, paper in zip(ours, theirs, strict=False):
        cells = [
            {name: float(cell.rstrip("%")) for name, cell in row.items() if name != "Model"} for row in (mine, paper)
        ]
        assert cells[0] == cells[1]
    assert "2³⁰" in " ".join(table.notes)
    assert "301.37" in " ".join(table.notes)


def test_flops_table_of_another_model_is_not_rounded_as_the_paper_rounds():
    config = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    }  # fmt: skip
    record = cost_record("smollm2", "SmolLM2", config, {"baseline": None, "half": vars(SwiftKVSpec(30, 14))}, 8192)
    table = table1(record, {})
    assert table.panels[0].caption.endswith("MFLOPs per prefill token")
    row = table.values.iloc[1]
    assert row["total_gflops"] == pytest.approx(sum(record["variants"]["half"]["published_gflops"].values()), abs=1e-9)
    assert row["prefill_speedup_limit"] == record["variants"]["half"]["limits"]["prefill_speedup"]
    assert "53.3% SingleInputKV" in to_markdown(table)


def test_names_and_numbers():
    assert names('["a", "b"]') == names('{"a": 1, "b": 2}') == names("a, b") == ["a", "b"]
    assert [percent(value) for value in (0.46875, 0.5, 16 / 30, 0, 1 / 3)] == ["46.875%", "50%", "53.3%", "0%", "33.3%"]
    assert (significant(10.737, 2), significant(112.7, 2), significant(0.83886, 2)) == (11, 113, 0.84)
    assert (show(0.0199, 2), show(9.96, 2), show(0, 2)) == ("0.020", "10", "0")
    assert mean_and_error(1.25, None, 1) == "1.2"


def script(name, *arguments):
    command = [sys.executable, str(ROOT / f"workflow/scripts/{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_scripts_from_config_to_table(tmp_path):
    outputs = [f"--output-{kind}={tmp_path / 'table'}.{kind}" for kind in ("csv", "tex", "md")]
    cost = tmp_path / "cost.json"
    specs = json.dumps({"baseline": None, "swiftkv-50": vars(SwiftKVSpec(80, 40))})
    run = script(
        "cost", "--architecture", ROOT / "resources/architectures/llama-3.1-70b.json",
        "--title", "Llama-3.1-70B-Instruct",
        "--specs", specs, "--sequence-length", 131072, "--output", cost,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    run = script("table1", "--cost", cost, "--published", ROOT / "resources/paper/table1.csv", *outputs)
    assert run.returncode == 0, run.stderr
    assert "51.0%" in (tmp_path / "table.md").read_text()
