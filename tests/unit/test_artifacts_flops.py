"""Table 1 and the blog's Table 2 from a model's dimensions, and how numbers are printed."""

import pytest
from artifact_helpers import PAPER, ROOT, made, resolved, scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.kinds.flops import cost_record
from pipeline.artifacts.table import to_markdown
from pipeline.artifacts.text import percent, show, significant, with_error
from swiftkv.errors import UserError
from swiftkv.io import write_json

LARGE = ROOT / "resources/architectures/llama-3.1-70b.json"


@pytest.mark.parametrize("name", ["table1", "blog_table2"])
def test_flops_tables_equal_the_published_ones(name):
    entry = contents.resolve(typed(scale()), name)
    table = made(entry, dimensions=[LARGE], published=[PAPER / f"{name}.csv"])
    assert table.title.startswith("Llama-3.1-70B-Instruct: ") and table.title.endswith("131,072 tokens")
    printed = table.panels[0].frame.to_dict("records")
    ours = [row for row in printed if row["Model"] != "published"]
    theirs = [row for row in printed if row["Model"] == "published"]
    assert len(theirs) == len(ours) == len(entry["cases"])
    for mine, paper in zip(ours, theirs, strict=True):
        cells = [
            {name: float(cell.rstrip("%")) for name, cell in row.items() if name != "Model"} for row in (mine, paper)
        ]
        assert cells[0] == cells[1]


def test_another_model_is_not_rounded_as_the_paper_rounds_and_takes_the_tokens_it_can(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    }  # fmt: skip
    write_json(tmp_path / "source.json", {"config": config})
    entry = contents.resolve(typed(scale("local")), "table1")
    table = made(entry, dimensions=[tmp_path / "source.json"], published=[PAPER / "table1.csv"])
    assert table.title.startswith("SmolLM2-135M-Instruct: ") and table.title.endswith("8,192 tokens")
    assert table.panels[0].caption.endswith("MFLOPs per prefill token")
    assert "published" not in list(table.panels[0].frame["Model"])
    specs = {variant: entry["specs"]["smollm2-135m"][variant] for variant, _ in entry["cases"]}
    costs = cost_record("smollm2-135m", "SmolLM2", config, specs, 8192)["variants"]
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert row["total_gflops"] == pytest.approx(sum(costs["swiftkv-50"]["published_gflops"].values()), abs=1e-9)
    assert row["prefill_speedup_limit"] == costs["swiftkv-50"]["limits"]["prefill_speedup"]
    text = to_markdown(table)
    assert "53.3% SingleInputKV" in text
    assert "256 output tokens" in text


def test_published_rows_of_another_length_stay_away():
    entry = resolved("flops", models=["large"], variants=["baseline"], count="paper", sequence_length=4096)
    table = made(entry, dimensions=[LARGE], published=[PAPER / "table1.csv"])
    assert list(table.panels[0].frame["Model"]) == ["Baseline"]


def test_dimensions_that_cannot_be_used_are_one_sentence(tmp_path):
    entry = contents.resolve(typed(scale()), "table1")
    write_json(tmp_path / "source.json", [1])
    with pytest.raises(UserError, match="source.json holds no model configuration"):
        made(entry, dimensions=[tmp_path / "source.json"])
    with pytest.raises(UserError, match="none.json does not exist"):
        made(entry, dimensions=[tmp_path / "none.json"])


def test_numbers():
    assert [percent(value) for value in (0.46875, 0.5, 16 / 30, 0, 1 / 3)] == ["46.875%", "50%", "53.3%", "0%", "33.3%"]
    assert (significant(10.737, 2), significant(112.7, 2), significant(0.83886, 2)) == (11, 113, 0.84)
    assert (show(0.0199, 2), show(9.96, 2), show(0, 2)) == ("0.020", "10", "0")
    assert with_error(1.25, None, ".1f") == "1.2"
