"""Figures of engines: what is drawn and plotted is what was measured, and published statements stand only where they may."""

import pandas as pd
import pytest
from tests.unit.serving_helpers import CLAIM, CPU, H100, entry, make, record, shows, speed, texts, values_csv

from pipeline.artifacts.serving import Case

CASES = [Case("baseline"), Case("swiftkv-50"), Case("swiftkv-50-across4")]
SPEEDS = {"batch-2k": (20000, 26000, 27000), "batch-8k": (None, 24000, 0)}
LENGTHS = {"batch-2k": {"input_tokens": 2000}, "batch-8k": {"input_tokens": 8000}}


def throughput_records(**changes):
    return [
        record("throughput", point, *case, value and speed(value), **changes)
        for point, line in SPEEDS.items()
        for case, value in zip(CASES, line, strict=True)
        if value != 0
    ]


def throughput(folder, records, models=("llama-3.1-8b",), claims=(), **more):
    shown = entry("throughput", LENGTHS, CASES, models, **more)
    return make(folder, shown, records, **({"published": values_csv(folder, *claims)} if claims else {}))


def test_throughput_bars_limits_and_data(tmp_path):
    made = throughput(tmp_path, throughput_records(), claims=[CLAIM, ("another", *CLAIM[1:6], "not about this")])
    own, legend, title = texts(made.figure)
    assert {"1.30×", "1.35×", "OOM", "n/a"} <= set(own) and "vLLM 0.32.0, eager" in title
    assert "published: 1.2-1.3x at 2K" in legend[-1] and "not about this" not in legend[-1]
    assert "no memory is left" in legend[-1] and "not measured" in legend[-1]
    data = made.data
    measured = data[data["row"] == "measured"].set_index(["point", "variant"])
    assert list(measured["status"]) == ["ok", "ok", "ok", "oom", "ok", "missing"]
    assert list(measured["tokens_per_second"].dropna()) == [20000, 26000, 27000, 24000]
    # None where the baseline ran out of memory.
    assert list(measured["tokens_per_second_limit"].dropna()) == [20000, 36000, 38000]
    one = measured.loc[("batch-2k", "swiftkv-50")]
    assert (one["speedup"], one["tokens_per_second_per_gpu"]) == (1.3, 26000)
    assert one["exact_tflops_per_gpu"] == pytest.approx(442) and one["mfu_percent"] == pytest.approx(100 * 416 / 989.4)
    stated = data[data["row"] == "published"]
    assert list(stated["quantity"]) == ["speedup"] and list(stated["high"]) == [1.3]
    assert shows(made, 0, "tokens_per_second") and shows(made, 1, "normalized_tflops_per_gpu")


def test_what_was_measured_repeatedly_has_an_error_without_turns_too(tmp_path):
    records = throughput_records()
    for each, samples in zip(records, ([99.0, 100.0, 101.0], [99.0, 100.0, 101.0], [100.0]), strict=False):
        each["result"] |= {"samples_seconds": samples, "baseline_samples_seconds": None}
    data = throughput(tmp_path, records).data.set_index(["point", "variant"])
    base, one, other = (data.loc[("batch-2k", name)] for name in ("baseline", "swiftkv-50", "swiftkv-50-across4"))
    relative = 4.3027 / 2 * 0.01 / 3**0.5  # by Student's t
    assert one["tokens_per_second_stderr"] == pytest.approx(one["tokens_per_second"] * relative, rel=1e-4)
    assert one["mfu_percent_stderr"] == pytest.approx(one["mfu_percent"] * relative, rel=1e-4)
    assert one["speedup_stderr"] == pytest.approx(one["speedup"] * relative * 2**0.5, rel=1e-4)
    assert pd.isna(base["speedup_stderr"]) and pd.isna(other["tokens_per_second_stderr"])


@pytest.mark.parametrize(
    ("changes", "gpus", "stands"),
    [
        ({}, 1, True),
        ({}, 4, False),
        ({"hardware": CPU}, 1, False),
        ({"model": "mine"}, 1, False),
    ],
)
def test_statements_stand_only_beside_the_papers_model_and_hardware(tmp_path, changes, gpus, stands):
    models = (changes.get("model", "llama-3.1-8b"),)
    made = throughput(tmp_path, throughput_records(**changes), models, claims=[(*CLAIM[:3], gpus, *CLAIM[4:])])
    assert set(made.data["row"]) == ({"measured", "published"} if stands else {"measured"})


def test_a_node_holds_replicas_of_the_measured_server(tmp_path):
    made = throughput(tmp_path, throughput_records(settings={"tensor_parallel_size": 4}), node_gpus=8)
    assert made.data["node_tokens_per_second"].max() == 54000
    assert made.data["tokens_per_second_per_gpu"].max() == 27000 / 4
    cpu = throughput(tmp_path, throughput_records(hardware=CPU), node_gpus=8)
    assert cpu.data["node_tokens_per_second"].max() == 27000  # a processor has no GPUs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4 * 26000 / (2 * 20000)),
        ({"hardware": H100 | {"gpus": ["NVIDIA H200"] * 8}}, None),
        ({"engine": {"vllm": "0.26.0"}}, None),
    ],
)
def test_a_model_is_held_against_the_first_ones_baseline_on_equal_terms(tmp_path, changes, expected):
    first = throughput_records(settings={"tensor_parallel_size": 4})
    second = throughput_records(model="quantized", settings={"tensor_parallel_size": 2}, **changes)
    made = throughput(tmp_path, [*first, *second], models=("llama-3.1-8b", "quantized"), node_gpus=8)
    data = made.data.set_index(["model", "point", "variant"])["speedup_over_first_model"]
    found = data["quantized", "batch-2k", "swiftkv-50"]
    assert pd.isna(found) if expected is None else found == expected
    assert data["llama-3.1-8b", "batch-2k", "swiftkv-50"] == 1.3
    assert pd.isna(data["quantized", "batch-8k", "swiftkv-50"])  # the first model's baseline ran out of memory there
