"""The frame: numbers of records with their intervals, and records that are refused."""

import json

import pytest
from tests.unit.artifact_helpers import CPU, H100, LLAMA, closeness, made, record, resolved, saved, score, throughput

from pipeline.artifacts.frame import measured
from pipeline.artifacts.records import Record, checked_records, read_records
from swiftkv.errors import UserError


def rows(*records, **wanted):
    """The rows of records, with some cells."""
    found = measured([Record.of(each) for each in records])
    return found[(found[list(wanted)] == list(wanted.values())).all(axis=1)]


def served(measure, variant, result, *, hardware=H100, settings=(), engine=(), **more):
    asked = {"point": "p", "input_tokens": 2000, "tensor_parallel_size": 1, "threads": 2, "dtype": "bfloat16"}
    limits = {"request_speedup_limit": 1.8, "prefill_speedup_limit": 1.9, "capacity_limit": 2.0}
    made_up = record(
        measure, LLAMA, variant, result, settings=asked | dict(settings), cost=limits,
        engine={"vllm": "0.32.0", "compilation": "eager", **dict(engine)}, status="oom", **more,
    )  # fmt: skip
    made_up["provenance"]["hardware"] = hardware
    return made_up


def rate(at, ttft, sustained=True, requests=300):
    times = {"mean": ttft, "median": ttft, "p99": ttft and 3 * ttft}
    return {"request_rate": at, "completed": requests, "sustained": sustained, "ttft_ms": times, "tpot_ms": times}


def latencies(*rates, low, high):
    return {"rates": list(rates), "highest_sustained_rate": low, "lowest_unsustained_rate": high}


def test_few_questions_have_a_wilson_interval_and_bits_have_none():
    few = score(LLAMA, "baseline", "winogrande", 0.5, questions=[1.0, 0.0] * 20)
    (row,) = rows(few, metric="winogrande").to_dict("records")
    assert [row[name] for name in ("value", "low", "high", "n")] == pytest.approx([50, 35.2, 64.8, 40], abs=0.1)
    bits = score(LLAMA, "baseline", "arc-easy-bits", 1.5, stderr=0.1, metric="bits_per_byte")
    (row,) = rows(bits, metric="arc-easy-bits").to_dict("records")
    assert (row["value"], row["unit"]) == (1.5, "bits/byte") and row["low"] == pytest.approx(1.5 - 0.197, abs=1e-3)


def test_a_speed_up_has_the_interval_of_its_turns_or_none():
    turns = {"samples_seconds": [1.0, 1.1, 1.05], "baseline_samples_seconds": [1.6, 1.65, 1.7]}
    gain = rows(served("throughput", "swiftkv-50", {"tokens_per_second": 200.0, **turns}), metric="speedup")
    assert gain["value"].item() == pytest.approx(1.572, abs=1e-3)
    assert gain["low"].item() < gain["value"].item() < gain["high"].item()
    speeds = {"baseline": 100, "swiftkv-50": 150}
    once = [served("throughput", name, {"tokens_per_second": speed}) for name, speed in speeds.items()]
    gain = rows(*once, metric="speedup", variant="swiftkv-50")
    assert gain["value"].item() == 1.5 and gain["low"].isna().all()


def test_limits_are_also_of_what_is_out_of_memory():
    oom = served("throughput", "swiftkv-50", None, reason="no memory is left")
    (row,) = rows(oom, metric="tokens_per_second").to_dict("records")
    assert (row["status"], row["reason"]) == ("oom", "no memory is left")
    assert rows(oom, metric="speedup_limit")["value"].item() == 1.8


def test_latencies_are_compared_where_the_baseline_keeps_up_and_have_a_percentile_of_enough_requests():
    base = latencies(rate(1, 100), rate(2, 900, sustained=False), low=1, high=2)
    own = latencies(rate(1, 50), rate(2, 60, requests=199), low=2, high=None)
    found = {"baseline": base, "swiftkv-50": own}
    both = [served("latency", name, each, settings={"request_rates": [1, 2]}) for name, each in found.items()]
    reductions = rows(*both, metric="ttft_reduction_percent")
    assert reductions[["at", "value"]].to_numpy().tolist() == [[1, 50]]
    assert rows(*both, metric="ttft_p99_ms", variant="swiftkv-50")["at"].tolist() == [1]
    gain = rows(*both, metric="sustained_rate_speedup", variant="swiftkv-50")
    assert gain["low"].item() == 1 and gain[["value", "high"]].isna().all(axis=None)


def test_a_rate_at_which_no_request_ended_has_no_times():
    none = latencies(rate(1, None, sustained=False, requests=0) | {"ttft_ms": dict.fromkeys(("mean", "median", "p99"))}
                     | {"tpot_ms": {}}, low=None, high=1)  # fmt: skip
    both = [served("latency", name, none, settings={"request_rates": [1]}) for name in ("baseline", "swiftkv-50")]
    assert rows(*both, metric="ttft_median_ms")["value"].isna().all()
    assert rows(*both, metric="highest_sustained_rate")["value"].isna().all()


def test_bases_of_forward_passes_are_those_of_the_turns():
    def forward(variant, own, baseline):
        result = {"batch_tokens": [512], "seconds": {"median": [own[0]]}, "samples_seconds": [own]}
        return served("forward_time", variant, result | {"baseline_samples_seconds": baseline})

    both = [forward("baseline", [9.0, 9.0], []), forward("swiftkv-50", [1.0, 1.1, 1.2], [[2.0, 2.1, 2.4]])]
    assert rows(*both, metric="forward_ms", variant="baseline")["value"].item() == 2100
    assert rows(*both, metric="forward_speedup", variant="swiftkv-50")["value"].item() == pytest.approx(1.97, abs=0.01)


# Guards


def entry(**more):
    panels = [{"columns": ["tokens_per_second", "kl"]}]
    return resolved(
        "table", models=["small"], variants=["baseline", "swiftkv-50"], points=["batch-2k"], panels=panels, **more
    )


FIDELITY = closeness(LLAMA, "baseline", 0.1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "0.json"),
        ("[1]", "is not a measurement file"),
        (json.dumps({"measure": "score"}), "it has no model, variant"),
        (json.dumps(FIDELITY | {"result": {}}), "status 'ok' and no result"),
        (json.dumps(FIDELITY), "is a fidelity record, but this artifact reads it as one of its scores"),
    ],
)
def test_a_damaged_or_foreign_record_is_named(tmp_path, content, message):
    (tmp_path / "0.json").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read_records({"scores": [tmp_path / "0.json"]})
    assert "0.json" in str(error.value)


def test_two_records_of_one_cell_are_refused(tmp_path):
    with pytest.raises(UserError, match="second measurement of fidelity"):
        read_records({"fidelity": saved(tmp_path, [FIDELITY] * 2)})


@pytest.mark.parametrize(
    ("change", "what"),
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
    with pytest.raises(UserError, match=what):
        checked_records(entry(), {"serving": saved(tmp_path, both)})


def test_speed_of_one_checkpoint_and_quality_of_another_are_refused(tmp_path):
    speed, quality = throughput(LLAMA, "swiftkv-50", "other", 1.0), closeness(LLAMA, "swiftkv-50", 0.1)
    quality["model"]["revision"] = "2"
    with pytest.raises(UserError, match="differ in checkpoint of swiftkv-50"):
        checked_records(entry(), {"serving": saved(tmp_path, [speed]), "fidelity": saved(tmp_path, [quality])})


def test_other_questions_are_refused(tmp_path):
    asked = [score(LLAMA, name, "winogrande", 0.5, questions=[1.0, 0.0] * 20) for name in ("baseline", "swiftkv-50")]
    asked[1]["result"]["questions"]["sha256"] = "other"
    for each in asked:
        each["settings"] = {"task": "winogrande", "metric": "acc"}
    shown = {"models": ["small"], "variants": ["baseline", "swiftkv-50"], "tasks": ["winogrande"]}
    with pytest.raises(UserError, match="differ in questions of winogrande"):
        made(resolved("table", **shown, panels=[{"columns": ["tasks"]}]), scores=saved(tmp_path, asked))
