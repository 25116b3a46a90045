"""Figures of engines: what is drawn and plotted is what was measured, and published statements stand only where they may."""

import pandas as pd
import pytest
from tests.unit.serving_helpers import CLAIM, CPU, H100, entry, make, record, shows, speed, texts, values_csv

from pipeline.artifacts.serving import Case
from swiftkv.errors import UserError

CASES = [Case("baseline"), Case("swiftkv-50"), Case("swiftkv-50-across4")]
SPEEDS = {"batch-2k": (20000, 26000, 27000), "batch-8k": (None, 24000, 0)}
LENGTHS = {"batch-2k": {"input_tokens": 2000}, "batch-8k": {"input_tokens": 8000}}
RATES = [1, 2, 4, 8, 16]


def throughput_records(**changes):
    return [
        record("throughput", point, *case, value and speed(value), **changes)
        for point, line in SPEEDS.items()
        for case, value in zip(CASES, line, strict=True)
        if value != 0
    ]


def throughput(folder, records, models=("llama-3.1-8b",), cases=CASES, claims=(), **more):
    shown = entry("throughput", LENGTHS, cases, models, **more)
    return make(folder, shown, records, **({"published": values_csv(folder, *claims)} if claims else {}))


def test_throughput_bars_limits_and_data(tmp_path):
    other = ("another", *CLAIM[1:6], "not about this")
    made = throughput(tmp_path, throughput_records(), claims=[CLAIM, other], notes=["said in the entry"])
    figure, data = made.figure, made.data
    assert figure.axes[1].get_ylabel() == "Normalized\nTFLOP/s per GPU"
    own, legend, title = texts(figure)
    assert {"1.30×", "1.35×", "OOM", "n/a"} <= set(own)
    assert "published: 1.2-1.3x at 2K" in legend[-1] and "not about this" not in legend[-1]
    assert "Baseline: OOM (no memory is left for the KV cache)" in legend[-1] and "said in the entry" in legend[-1]
    assert "50% SingleInputKV + 4× AcrossKV: n/a (not measured)" in legend[-1].replace("\n", " ")
    assert "limit by FLOPs" in legend and "Baseline" in legend
    assert title.startswith("Llama-3.1-8B-Instruct: what is shown (paper's Figure 0)") and "vLLM 0.32.0, eager" in title
    measured = data[data["row"] == "measured"].set_index(["point", "variant"])
    assert list(measured["status"]) == ["ok", "ok", "ok", "oom", "ok", "missing"]
    assert list(measured["tokens_per_second"].dropna()) == [20000, 26000, 27000, 24000]
    limits = measured["tokens_per_second_limit"].dropna()
    assert list(limits) == [20000, 36000, 38000]  # none where the baseline ran out of memory
    one = measured.loc[("batch-2k", "swiftkv-50")]
    assert (one["speedup"], one["tokens_per_second_limit"], one["tokens_per_second_per_gpu"]) == (1.3, 36000, 26000)
    assert one["exact_tflops_per_gpu"] == pytest.approx(442) and one["mfu_percent"] == pytest.approx(100 * 416 / 989.4)
    assert one["conditions"].startswith("1 × NVIDIA H100")
    assert "node_tokens_per_second" not in data and "speedup_over_first_model" not in data
    stated = data[data["row"] == "published"]
    assert list(stated["quantity"]) == ["speedup"] and list(stated["high"]) == [1.3]


def test_ratios_of_turns_have_their_scatter(tmp_path):
    records = throughput_records()
    records[1]["result"] |= {"samples_seconds": [1.0, 1.0, 2.0], "baseline_samples_seconds": [1.4, 1.5, 3.2]}
    made = throughput(tmp_path, records)
    own, _, _ = texts(made.figure)
    assert "1.50×\n± 0.12" in own
    ends = [line.get_segments()[0] for line in made.figure.axes[0].collections if len(line.get_segments()[0]) == 2]
    heights = [(round(low[1]), round(high[1])) for low, high in ends if low[0] == high[0]]
    assert heights == [(26000 - 2484, 26000 + 2484)]  # the error of the ratio, times the baseline
    data = made.data.set_index(["point", "variant"])
    one, other = (data.loc[("batch-2k", variant)] for variant in ("swiftkv-50", "swiftkv-50-across4"))
    assert one["speedup"] == pytest.approx(1.5) and one["speedup_stderr"] == pytest.approx(0.1242, abs=1e-4)
    assert other["speedup"] == 1.35 and pd.isna(other["speedup_stderr"])  # of two records


def test_what_was_measured_repeatedly_has_an_error_without_turns_too(tmp_path):
    records = throughput_records()
    for record_of in records[:2]:
        record_of["result"] |= {"samples_seconds": [99.0, 100.0, 101.0], "baseline_samples_seconds": None}
    records[2]["result"] |= {"samples_seconds": [100.0], "baseline_samples_seconds": None}
    data = throughput(tmp_path, records).data.set_index(["point", "variant"])
    base, one, other = (data.loc[("batch-2k", name)] for name in ("baseline", "swiftkv-50", "swiftkv-50-across4"))
    relative = 4.3027 / 2 * 0.01 / 3**0.5  # by Student's t
    assert one["tokens_per_second_stderr"] == pytest.approx(one["tokens_per_second"] * relative, rel=1e-4)
    assert one["mfu_percent_stderr"] == pytest.approx(one["mfu_percent"] * relative, rel=1e-4)
    assert one["speedup_stderr"] == pytest.approx(one["speedup"] * relative * 2**0.5, rel=1e-4)
    assert pd.isna(base["speedup_stderr"]) and pd.isna(other["speedup_stderr"])
    assert pd.isna(other["tokens_per_second_stderr"])


@pytest.mark.parametrize(
    ("changes", "gpus", "stands"),
    [
        ({}, 1, True),
        ({}, 4, False),
        ({"hardware": CPU}, 1, False),
        ({"hardware": H100 | {"gpus": ["NVIDIA H200"]}}, 1, False),
        ({"model": "mine"}, 1, False),
    ],
)
def test_statements_stand_only_beside_the_papers_model_and_hardware(tmp_path, changes, gpus, stands):
    records = throughput_records(**changes)
    claim = (*CLAIM[:3], gpus, *CLAIM[4:])
    made = throughput(tmp_path, records, models=(changes.get("model", "llama-3.1-8b"),), claims=[claim])
    assert ("published" in texts(made.figure)[1][-1]) == stands
    assert set(made.data["row"]) == ({"measured", "published"} if stands else {"measured"})


def test_a_variant_keeps_its_color_and_hatch(tmp_path):
    def looks(cases):
        patches = throughput(tmp_path, throughput_records(), cases=cases).figure.axes[0].patches
        return {(patch.get_facecolor(), patch.get_hatch()) for patch in patches}

    assert len(looks(CASES)) == 3 and looks([CASES[2]]) < looks(CASES)


def test_records_of_two_machines_do_not_share_a_panel_but_two_panels_may_differ(tmp_path):
    records = throughput_records()
    records[1]["provenance"] = {"hardware": CPU}
    with pytest.raises(UserError, match="paper's Figure 0 would compare records that differ in hardware"):
        throughput(tmp_path, records)
    both = [*throughput_records(), *throughput_records(model="small", hardware=CPU)]
    figure = throughput(tmp_path, both, models=("llama-3.1-8b", "small")).figure
    assert "2 cores" in figure.axes[1].get_title() and "H100" in figure.axes[0].get_title()
    assert figure.get_suptitle().startswith("What is shown (paper's Figure 0)")


def test_a_node_holds_replicas_of_the_measured_server(tmp_path):
    made = throughput(tmp_path, throughput_records(settings={"tensor_parallel_size": 4}), node_gpus=8)
    assert len(made.figure.axes) == 1 and "8 GPUs" in made.figure.axes[0].get_ylabel()
    assert made.data["node_tokens_per_second"].max() == 54000
    assert made.data["tokens_per_second_per_gpu"].max() == 27000 / 4
    cpu = throughput(tmp_path, throughput_records(hardware=CPU), node_gpus=8)
    assert cpu.data["node_tokens_per_second"].max() == 27000  # a processor has no GPUs
    assert cpu.figure.axes[0].get_ylabel() == "Input and output\ntokens / s"


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


def forward_records(point="forward"):
    result = {"batch_tokens": [64, 512], "seconds": {"median": [0.01, 0.04], "min": [0.01, 0.03]}, "what": "made up"}
    result |= {"samples_seconds": [[0.01, 0.01], [0.05, 0.03]], "baseline_samples_seconds": None}  # of each batch
    fast = result | {"seconds": {"median": [0.0125, 0.025], "min": [0.01, 0.02]}}
    return [
        record("forward_time", point, "baseline", "auto", result),
        record("forward_time", point, "swiftkv-50", "auto", fast),
    ]


def test_forward_times_and_where_the_variant_is_slower(tmp_path):
    points = {"short": {"batch_tokens": [64, 512]}}
    made = make(tmp_path, entry("forward", points, CASES), forward_records("short"))
    legend = texts(made.figure)[1]
    assert "50% SingleInputKV + 4× AcrossKV: n/a" in legend and "limit by FLOPs" in legend
    data = made.data.set_index(["variant", "batch_tokens"])
    assert data.loc[("swiftkv-50", 64), "speedup"] == pytest.approx(0.8)
    assert data.loc[("swiftkv-50", 512), "speedup_limit"] == pytest.approx(1.9)


FORWARD = {"short": {"batch_tokens": [64, 512]}}


@pytest.mark.parametrize(
    ("draw", "axis", "column"),
    [
        (lambda folder: throughput(folder, throughput_records()), 0, "tokens_per_second"),
        (lambda folder: throughput(folder, throughput_records()), 1, "normalized_tflops_per_gpu"),
        (lambda folder: make(folder, entry("forward", FORWARD, CASES), forward_records("short")), 0, "milliseconds"),
        (lambda folder: make(folder, entry("forward", FORWARD, CASES), forward_records("short")), 1, "speedup"),
    ],
)
def test_what_is_drawn_is_the_data(tmp_path, draw, axis, column):
    assert shows(draw(tmp_path), axis, column)
