"""The frame: numbers of records with their intervals, and records that are refused."""

import json

import pandas as pd
import pytest
from matplotlib.figure import Figure
from tests.conftest import refused
from tests.unit.artifact_helpers import (
    CPU,
    LLAMA,
    closeness,
    latency_result,
    made,
    resolved,
    saved,
    score,
    served,
    throughput,
)

from pipeline.artifacts.drawing import looks, wide_axis
from pipeline.artifacts.frame import measured
from pipeline.artifacts.records import Record, checked_records, read_records

VARIANTS = ("baseline", "swiftkv-50")


def rows(*records, **wanted):
    found = measured([Record.of(each) for each in records])
    return found[(found[list(wanted)] == list(wanted.values())).all(axis=1)]


def test_bars_have_the_ratio_of_the_speed_up_and_no_interval_sets_the_axis(tmp_path):
    """Of three turns of 1200 tokens one is slow: the speed-up is 1.79 by geometric means, 2.09 by medians; 1.8 is possible."""
    turns = {"samples_seconds": [11.5, 11.5, 17.7], "baseline_samples_seconds": [20.0, 24.0, 28.0]}
    records = [throughput(name, "batch-2k", 100.0) for name in ("baseline", "swiftkv-50")]
    records[0]["result"]["seconds"] = 12.0
    records[1]["result"] |= {"seconds": 12.0, **turns}
    axis, _ = made(entry() | {"kind": "throughput"}, serving=saved(tmp_path, records)).figure.axes
    limit = max(line[0][1] for lines in axis.collections for line in lines.get_segments() if line[0][1] == line[1][1])
    base, own = (bar.get_height() for bar in axis.patches)
    assert limit == pytest.approx(1.8 * base) and 0.99 * limit < own < limit and axis.get_ylim()[1] < 1.5 * limit


def test_a_gain_of_rates_is_open_where_no_rate_was_too_high():
    def sustained(variant, low, high):
        found = {"rates": [], "highest_sustained_rate": low, "lowest_unsustained_rate": high}
        return served("latency", variant, found, settings={"request_rates": [1]})

    found = rows(sustained("baseline", 4, 5), sustained("swiftkv-50", 8, None), metric="sustained_rate_speedup")
    assert found.set_index("variant").loc["swiftkv-50", ["value", "low", "high"]].tolist() == [1.6, 1.6, float("inf")]


def test_a_99th_percentile_is_of_200_requests():
    for completed in (199, 200):
        found = served("latency", "baseline", latency_result([1], completed), settings={"request_rates": [1]})
        assert len(rows(found, metric="ttft_p99_ms")) == (completed == 200)


# Guards


def entry(**more):
    panels = [{"columns": ["tokens_per_second", "kl"]}]
    return resolved(
        "table", models=["small"], variants=["baseline", "swiftkv-50"], points=["batch-2k"], panels=panels, **more
    )


FIDELITY = closeness(LLAMA, "baseline", 0.1)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "0.json"),
        ("[1]", "is not a measurement file"),
        (json.dumps({"measure": "score"}), "it has no model, variant"),
        (json.dumps(FIDELITY | {"result": {}}), "status 'ok' and no result"),
        (json.dumps(FIDELITY), "is a fidelity record, but this artifact reads it as one of its scores"),
    ],
)
def test_a_damaged_a_foreign_and_a_second_record_are_named(tmp_path, content, message):
    (tmp_path / "0.json").write_text(content)
    with refused(message) as error:
        read_records({"scores": [tmp_path / "0.json"]})
    assert "0.json" in str(error.value)
    with refused("second measurement of fidelity"):
        read_records({"fidelity": saved(tmp_path, [FIDELITY] * 2)})


@pytest.mark.parametrize(
    "change, what",
    [
        ({"hardware": CPU}, "hardware"),
        ({"engine": {"vllm": "0.31.0"}}, "vLLM version"),
        ({"engine": {"compilation": "graphs"}}, "compilation"),
        ({"settings": {"dtype": "float32"}}, "number format"),
        ({"weights": "dummy"}, "weights"),
        ({"settings": {"quantization": "fp8"}}, "quantization"),
        ({"hardware": CPU, "settings": {"threads": 1}}, "processor threads"),
    ],
)
def test_records_of_other_conditions_never_stand_side_by_side(tmp_path, change, what):
    known = {"quantization": "none", "point": "other"}
    first = {"hardware": CPU} if what == "processor threads" else {}
    both = [
        served("throughput", name, {"tokens_per_second": 1.0}, **more | {"settings": known | more.get("settings", {})})
        for name, more in (("baseline", first), ("swiftkv-50", change))
    ]
    with refused(what):
        checked_records(entry(), {"serving": saved(tmp_path, both)})


def test_speed_of_one_checkpoint_and_quality_of_another_are_refused(tmp_path):
    speed, quality = throughput("swiftkv-50", "other", 1.0), closeness(LLAMA, "swiftkv-50", 0.1)
    quality["model"]["revision"] = "2"
    with refused("differ in checkpoint of swiftkv-50"):
        checked_records(entry(), {"serving": saved(tmp_path, [speed]), "fidelity": saved(tmp_path, [quality])})


def test_other_questions_are_refused(tmp_path):
    asked = [score(LLAMA, name, "winogrande", 0.5, questions=[1.0, 0.0] * 20) for name in ("baseline", "swiftkv-50")]
    asked[1]["result"]["questions"]["sha256"] = "other"
    for each in asked:
        each["settings"] = {"task": "winogrande", "metric": "acc"}
    shown = {"models": ["small"], "variants": ["baseline", "swiftkv-50"], "tasks": ["winogrande"]}
    with refused("differ in questions of winogrande"):
        made(resolved("table", **shown, panels=[{"columns": ["tasks"]}]), scores=saved(tmp_path, asked))


def test_a_record_of_an_older_version_is_refused_in_a_sentence():
    older = latency_result([1])
    del older["rates"][0]["runs"]
    untimed = throughput("baseline", "batch-2k", 100.0)
    del untimed["result"]["samples_seconds"]
    for record in (served("latency", "baseline", older, settings={"request_rates": [1]}), untimed):
        with refused("was written by an older version .*; delete it and run again"):
            rows(record, metric="x")


def test_answers_of_one_token_have_no_reduction_of_the_time_per_token():
    """Of the baseline alone, as with chats, whose answers end where the model ends them."""
    records = [served("latency", name, latency_result([1]), settings={"request_rates": [1]}) for name in VARIANTS]
    (run,) = records[0]["result"]["rates"][0]["runs"]
    records[0]["result"]["rates"][0]["runs"] = [run | {"tpot_ms": {"mean": 0.0, "median": 0.0, "p99": 0.0}}]
    assert rows(*records, metric="tpot_reduction_percent", variant=VARIANTS[1]).empty
    assert len(rows(*records, metric="ttft_reduction_percent", variant=VARIANTS[1])) == 1


def test_an_axis_of_speed_ups_begins_at_zero_and_one_of_losses_below():
    for values, least in (([1.3, 1.5], 0), ([-0.5, 0.9], -0.5)):
        axis = Figure().subplots()
        axis.plot([1, 2], values)
        wide_axis(axis.yaxis, pd.Series(values))
        bottom = axis.get_ylim()[0]
        assert bottom == 0 if least == 0 else bottom < least


def test_a_variant_of_any_name_has_a_line_and_trainings_have_points():
    styles = looks(["trained-mine", "trained, tuned"])
    assert styles["trained-mine"].joined and not styles["trained, tuned"].joined
