"""What training costs, what its length gives, and speed beside the quality of the same checkpoint."""

import pytest
from artifact_helpers import (
    LLAMA,
    PAPER,
    SMOL,
    closeness,
    made,
    resolved,
    saved,
    scale,
    score,
    throughput,
    training,
    typed,
)

from swiftkv.artifacts import contents
from swiftkv.artifacts.table import to_markdown
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


COPIED = {"swiftkv-50-quarter": (250_000, 0.8), "swiftkv-50": (1_000_000, 0.3)}
FITTED = {"swiftkv-50-tuned-quarter": (250_000, 0.4), "swiftkv-50-tuned": (1_000_000, 0.2)}
SHARES = COPIED | FITTED


def by_tokens(tmp_path, model, left_out=()):
    shown = {variant: values for variant, values in SHARES.items() if variant not in left_out}
    trained = [training(model, variant, tokens=tokens) for variant, (tokens, _) in SHARES.items()]
    starts = [closeness(model, "swiftkv-50", kl)["result"]["start"] for kl in (0.5, 0.2)]
    close = [closeness(model, variant, kl) for variant, (_, kl) in shown.items()]
    for each in close:
        each["result"]["start"] = starts["tuned" in each["variant"]]
    return {"training": saved(tmp_path, trained), "fidelity": saved(tmp_path, close), "published": VALUES}


def test_quality_by_tokens_starts_before_training(tmp_path):
    drawing = made(contents.resolve(typed(scale("local")), "quality_tokens"), **by_tokens(tmp_path, SMOL))
    data = drawing.data
    assert list(data["tokens"]) == [0, 250_000, 1_000_000] * 2
    assert list(data["variant"]) == ["before training", *COPIED, "before training", *FITTED]
    assert list(data["kl"]) == [2.5, 0.8, 0.3, 1.0, 0.4, 0.2]
    assert list(data["top1_agreement"])[:3] == pytest.approx([40, 60, 85])
    assert list(data["top1_agreement_stderr"]) == pytest.approx([1] * 6)
    assert [label.split(", ")[-1] for label in dict.fromkeys(data["label"])] == ["copied start", "fitted start"]
    upper, lower = drawing.figure.axes
    assert upper.get_yscale() == "log"
    curves = [container.lines[0] for container in upper.containers]
    assert [list(curve.get_xdata()) for curve in curves] == [[0, 250_000, 1_000_000]] * 2
    assert list(lower.lines[0].get_ydata()) == pytest.approx([40, 60, 85])
    assert drawing.figure.get_suptitle().startswith("SmolLM2-135M-Instruct: quality by training tokens")
    assert not upper.texts  # no published marks beside another model


def test_published_tokens_are_marks_beside_the_papers_model(tmp_path):
    drawing = made(contents.resolve(typed(scale()), "quality_tokens"), **by_tokens(tmp_path, LLAMA))
    assert [text.get_text() for text in drawing.figure.axes[0].texts] == ["160M", "320M", "680M"]


def test_a_missing_training_is_named_below_the_figure(tmp_path):
    entry = contents.resolve(typed(scale("local")), "quality_tokens")
    drawing = made(entry, **by_tokens(tmp_path, SMOL, left_out=["swiftkv-50-quarter"]))
    assert list(drawing.data.set_index("variant")["missing"].dropna()) == ["not measured"]
    (legend,) = drawing.figure.legends
    assert "swiftkv-50-quarter: n/a (not measured)" in legend.get_title().get_text()
    with pytest.raises(UserError, match="quality_tokens has no point to draw: not measured"):
        made(entry)


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
