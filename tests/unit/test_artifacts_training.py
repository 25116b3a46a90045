"""What training costs, and speed beside the quality of the same checkpoint."""

import pytest
from artifact_helpers import (
    LLAMA,
    PAPER,
    SMOL,
    closeness,
    made,
    resolved,
    saved,
    score,
    throughput,
    training,
)

from pipeline.artifacts.table import to_markdown
from swiftkv.errors import UserError

VALUES = [PAPER / "values.csv"]
COSTED = {"models": ["small"], "variants": ["swiftkv-25", "swiftkv-50"]}


def test_training_cost(tmp_path):
    entry = resolved("training", "training_cost", scale_name="local", **COSTED)
    records = saved(tmp_path, [training(SMOL, "swiftkv-50", tokens=36_000)])
    table = made(entry, training=records, published=VALUES)
    assert [panel.caption for panel in table.panels] == [None]  # the statements are about other models
    printed = table.panels[0].frame.set_index("Variant")
    assert list(printed.loc["swiftkv-50"]) == [
        "2.00",
        "36,000",
        "AMD EPYC, 2 cores",
        "5.00",
        "5.00",
        "50",
        "3.250",
        "0.5000",
    ]
    assert list(printed.loc["swiftkv-25"]) == ["n/a [1]", *["n/a"] * 7]
    assert table.notes[-1] == "[1] not measured"
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["hours"], row["tokens"], row["gpus"], row["loss_last"]) == (2.0, 36_000, 0, 0.5)
    assert table.values["hours_published"].isna().all()


def test_a_training_on_several_machines_names_them(tmp_path):
    """The GPUs are a mean, so that hours x GPUs are GPU-hours; the names are those of all attempts, not of the last."""
    entry = resolved("training", "training_cost", **COSTED)
    more = {"gpus": 4.8, "accelerator": "NVIDIA A100/NVIDIA H100"}
    table = made(entry, training=saved(tmp_path, [training(LLAMA, "swiftkv-50", **more)]), published=VALUES)
    assert table.panels[0].frame.set_index("Variant").loc["swiftkv-50", "Hardware"] == "4.8 × NVIDIA A100/NVIDIA H100"


def test_published_costs_of_the_papers_model_all_stand_with_source_and_note(tmp_path):
    entry = resolved("training", "training_cost", **COSTED)
    table = made(entry, training=saved(tmp_path, [training(LLAMA, "swiftkv-50", gpus=8)]), published=VALUES)
    assert table.panels[0].frame.set_index("Variant").loc["swiftkv-50", "Hardware"] == "8 × NVIDIA H100 80GB HBM3"
    stated = table.panels[1].frame
    tokens = [cell.split(" [")[0] for cell in stated[stated["What"] == "training tokens"]["Value"]]
    assert sorted(tokens) == ["160M", "320M", "680M"]
    assert set(stated["Model"]) == {LLAMA}
    assert stated["Source"].str.contains("blog").any() and stated["Source"].str.contains("Sec. 3.4").any()
    notes = " ".join(table.notes)
    assert "the blog 4 hours for 320M" in notes
    values = table.values.set_index("variant")
    assert values.loc["swiftkv-50", "tokens_published"] == "680M / 160M / 320M"
    assert values.loc["swiftkv-25", "tokens_published"] == "160M"


CASES = ["baseline", "swiftkv-50"]
SERVED = {"models": ["small"], "variants": CASES, "points": ["batch-2k"], "tasks": ["gsm8k"]}


def quality_of(tmp_path, model=LLAMA):
    return {
        "scores": saved(tmp_path, [score(model, variant, "gsm8k", 0.5) for variant in CASES]),
        "fidelity": saved(tmp_path, [closeness(model, variant, 0.2) for variant in CASES]),
    }


def speeds(tmp_path, **changes):
    made_up = [
        throughput(LLAMA, "baseline", "batch-2k", 100.0, limit=1.0),
        throughput(LLAMA, "swiftkv-50", "batch-2k", 150.0),
    ]
    for name, value in changes.items():
        made_up[1][name] = value
    return {"serving": saved(tmp_path, made_up)}


def test_speed_stands_beside_quality(tmp_path):
    table = made(resolved("speed_and_quality", **SERVED), **speeds(tmp_path), **quality_of(tmp_path))
    cells = table.panels[0].frame.iloc[1]
    assert cells["Speed-up,\n2K input"] == "1.50× (limit 1.80×)"
    assert cells["KL to teacher,\nnats a token"].startswith("0.2000")
    assert cells["Avg.\nscore, %"].startswith("50.0")
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["speedup"], row["speedup_limit"], row["kl"], row["average"]) == (1.5, 1.8, 0.2, 50)
    assert row["fraction_of_limit"] == pytest.approx(1.5 / 1.8)


def test_speed_of_another_checkpoint_is_refused(tmp_path):
    entry, quality = resolved("speed_and_quality", **SERVED), quality_of(tmp_path)
    spec = throughput(LLAMA, "swiftkv-25", "batch-2k", 1.0)["spec"]
    with pytest.raises(
        UserError, match="beside the quality of another checkpoint: they differ in num_key_value_layers"
    ):
        made(entry, **speeds(tmp_path, spec=spec), **quality)
    other = throughput(LLAMA, "swiftkv-50", "batch-2k", 1.0)["model"] | {"revision": "2"}
    with pytest.raises(UserError, match="they differ in revision"):
        made(entry, **speeds(tmp_path, model=other), **quality)
    with pytest.raises(UserError, match="they differ in weights"):
        made(entry, **speeds(tmp_path, weights="original"), **quality)


def test_speed_of_dummy_weights_says_so(tmp_path):
    records = [
        throughput(LLAMA, variant, "batch-2k", speed, weights="dummy")
        for variant, speed in zip(CASES, (100.0, 150.0), strict=True)
    ]
    table = made(resolved("speed_and_quality", **SERVED), serving=saved(tmp_path, records), **quality_of(tmp_path))
    assert table.panels[0].frame.iloc[1]["Speed-up,\n2K input"] == "1.50× (limit 1.80×) [1]"
    assert table.notes[-1] == "[1] the speed is that of dummy weights of the same shape, not of the scored checkpoint"
    assert list(table.values["weights"]) == ["dummy", "dummy"]


def test_speed_out_of_memory_or_without_a_baseline(tmp_path):
    oom = throughput(LLAMA, "swiftkv-50", "batch-2k", None, reason="no memory is left")
    entry = resolved("speed_and_quality", **SERVED)
    base = throughput(LLAMA, "baseline", "batch-2k", 100.0)
    table = made(entry, serving=saved(tmp_path, [base, oom]), **quality_of(tmp_path))
    assert list(table.panels[0].frame["Speed-up,\n2K input"]) == ["1.00×", "OOM [1]"]
    assert table.values["missing"].iloc[1] == "no memory is left"
    alone = throughput(LLAMA, "swiftkv-50", "batch-2k", 100.0)
    text = to_markdown(made(entry, serving=saved(tmp_path, [alone])))
    assert "the baseline, against which it would be, has no value" in text


def test_a_variant_without_quality_is_refused():
    with pytest.raises(UserError, match="'merge-all-layers' can only be served, so it has no quality"):
        resolved("speed_and_quality", **SERVED | {"variants": ["baseline", "merge-all-layers"]})
