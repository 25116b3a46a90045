"""Serving figures: what is drawn and plotted is what was measured, and published statements stand only where they may."""

import pandas as pd
import pytest

from swiftkv.artifacts.serving import Case
from swiftkv.errors import UserError
from tests.unit.serving_helpers import CPU, H100, closed_loop, entry, good, latencies, make, record, speed, values_csv

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


def texts(figure):
    """Texts inside the panels, those of the legend with its title, and the headline."""
    inside = [text.get_text() for axis in figure.axes for text in axis.texts]
    below = figure.legends[0]
    return (
        inside,
        [*(text.get_text() for text in below.get_texts()), below.get_title().get_text()],
        figure.get_suptitle(),
    )


CLAIM = ("an_artifact", "llama-3.1-8b", "speedup", 1, 1.2, 1.3, "1.2-1.3x at 2K")


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
    assert "roofline limit (FLOPs and bytes)" not in legend


def test_the_roofline_stands_beside_the_limit_by_flops_where_it_is_known(tmp_path):
    known = {"cost": {"roofline_speedup_limit": 1.6}}
    made = throughput(tmp_path, throughput_records(**known))
    assert "roofline limit (FLOPs and bytes)" in texts(made.figure)[1]
    one = made.data.set_index(["point", "variant"]).loc[("batch-2k", "swiftkv-50")]
    assert one["fraction_of_roofline"] == pytest.approx(1.3 / 1.6)


def test_ratios_of_turns_have_their_scatter(tmp_path):
    records = throughput_records()
    records[1]["result"] |= {"samples_seconds": [1.0, 1.0, 2.0], "baseline_samples_seconds": [1.4, 1.5, 3.2]}
    made = throughput(tmp_path, records)
    own, legend, _ = texts(made.figure)
    assert "1.50×\n± 0.06" in own and "standard error over turns" in legend[-1].replace("\n", " ")
    data = made.data.set_index(["point", "variant"])
    one, other = (data.loc[("batch-2k", variant)] for variant in ("swiftkv-50", "swiftkv-50-across4"))
    assert one["speedup"] == pytest.approx(1.5) and one["speedup_stderr"] == pytest.approx(0.1 / 3**0.5)
    assert other["speedup"] == 1.35 and pd.isna(other["speedup_stderr"])  # of two records


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


def interactive(**more):
    return {
        "interactive-2k": {"input_tokens": 2000, "request_rates": RATES},
        "interactive-8k": {"input_tokens": 8000, "request_rates": RATES},
    } | more


def latency_records(**changes):
    records = []
    for point, slower in (("interactive-2k", 1), ("interactive-8k", 4)):
        for case, capacity in zip(CASES, (5, 9, 9.5), strict=True):
            result = None if (slower, case.variant) == (4, "swiftkv-50") else latencies(capacity / slower)
            records.append(record("latency", point, *case, result, **changes))
    return records


def test_latency_curves_limits_and_boundaries(tmp_path):
    shown = entry("latency", interactive(), CASES)
    made = make(tmp_path, shown, latency_records(), published=values_csv(tmp_path, CLAIM))
    figure, data = made.figure, made.data
    own, legend, title = texts(figure)
    assert "50% SingleInputKV: OOM" in own and {"4 to 8", "8 to 16\n1.00 to 4.00×"} <= set(own)
    assert "50% SingleInputKV: at least 1.00× the rate, and up to 4.00× only by the width" in legend[-1].replace(
        "\n", " "
    )
    assert "99th percentile" in legend and "paper's Figure 0" in title and "published: 1.2-1.3x" in legend[-1]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["2,000 input tokens", "8,000 input tokens"]
    measured = data[data["row"] == "measured"].set_index(["point", "variant"])
    one = measured.loc[("interactive-2k", "swiftkv-50")]
    assert list(one["ttft_median_ms"]) == [each["ttft_ms"]["median"] for each in latencies(9)["rates"]]
    assert list(measured.loc[("interactive-2k", "baseline"), "sustained"]) == [True, True, True, False, False]
    # The baseline sustains 4 and not 8 requests a second, this one 8 and not 16; FLOPs allow 1.8 times the baseline's.
    assert set(one["highest_sustained_rate"]) == {8} and set(one["lowest_unsustained_rate"]) == {16}
    assert set(one["sustained_rate_speedup"]) == {2.5} and set(one["sustained_rate_speedup_limit"]) == {1.8}
    assert set(one["sustained_rate_speedup_least"]) == {1} and set(one["sustained_rate_speedup_most"]) == {4}
    assert set(one["highest_sustained_rate_limit"]) == {14.4}
    bar = next(bar for bar in figure.axes[4].patches if bar.get_height() == 8)
    whiskers = [line.get_segments()[0] for line in figure.axes[4].collections if len(line.get_segments()[0]) == 2]
    assert any(low[0] == pytest.approx(bar.get_center()[0]) and (low[1], high[1]) == (8, 16) for low, high in whiskers)
    assert {"ttft_mean_ms", "ttft_p99_ms", "tpot_median_ms"} <= set(measured.columns)
    assert measured["status"][("interactive-8k", "swiftkv-50")] == "oom"  # a single row


def test_a_baseline_that_sustains_every_rate_has_no_boundary_to_compare_with(tmp_path):
    records = [record("latency", point, *case, latencies(100)) for point in interactive() for case in CASES]
    made = make(tmp_path, entry("latency", interactive(), CASES), records)
    one = made.data.set_index("variant").loc["swiftkv-50"]
    assert set(one["boundary_found"]) == {False}
    assert one["highest_sustained_rate_limit"].isna().all() and one["sustained_rate_speedup"].isna().all()
    own, _, _ = texts(made.figure)
    assert "≥ 16" in own and not any("×" in text for text in own)


def test_reductions_are_only_at_rates_of_the_grid_that_both_measured(tmp_path):
    result = latencies(9, rates=(1, 2, 4, 8, 11))
    points = {"p": {"input_tokens": 2000, "request_rates": [1, 2, 4, 16]}}
    records = [
        record("latency", "p", "baseline", "auto", latencies(5, rates=(1, 2, 4, 8))),
        record("latency", "p", "swiftkv-50", "auto", result),
    ]
    data = make(tmp_path, entry("latency", points, CASES[:2]), records).data
    ours = data[data["variant"] == "swiftkv-50"].set_index("request_rate")
    assert ours["ttft_reduction_percent"].dropna().to_dict() == pytest.approx({1: 10, 2: 160 / 7, 4: 64})
    assert ours["tpot_reduction_percent"].dropna().to_dict() == pytest.approx({1: 200 / 27, 2: 800 / 63, 4: 1600 / 81})
    assert ours["baseline_sustained"].dropna().to_dict() == {1: True, 2: True, 4: True}
    assert list(data[data["variant"] == "baseline"]["ttft_reduction_percent"].dropna()) == [0, 0, 0]


def test_a_boundary_that_was_not_reached_is_a_lower_bound(tmp_path):
    records = [
        record("latency", "p", "baseline", "auto", latencies(5)),
        record("latency", "p", "swiftkv-50", "auto", latencies(100)),
    ]
    points = {"p": {"input_tokens": 2000, "request_rates": RATES}}
    made = make(tmp_path, entry("latency", points, CASES), records)
    own, legend, _ = texts(made.figure)
    assert "≥ 16\n≥ 2.00×" in own and any("n/a" in text for text in own)
    assert "2.00× the rate is above the 1.80× that the FLOPs allow" in legend[-1].replace("\n", " ")
    assert made.data["sustained_rate_speedup"].isna().all() and made.data["sustained_rate_speedup_least"].max() == 2
    assert made.data.groupby("variant")["boundary_found"].first()["baseline"]
    assert not made.data[made.data["variant"] == "swiftkv-50"]["boundary_found"].any()


def test_a_rate_at_which_nothing_was_finished_leaves_a_gap(tmp_path):
    records = [record("latency", "p", "baseline", "auto", latencies(5))]
    records[0]["result"]["rates"][-1]["tpot_ms"] = dict.fromkeys(("mean", "median", "p99"))
    points = {"p": {"input_tokens": 2000, "request_rates": RATES}}
    data = make(tmp_path, entry("latency", points, CASES[:1]), records).data
    assert pd.isna(data["tpot_median_ms"].iloc[-1]) and pd.isna(data["tpot_reduction_percent"].iloc[-1])


def test_all_points_together_dashed_with_speculation_and_against_the_plain_baseline(tmp_path):
    chats = {"input_tokens": 8000, "request_rates": RATES, "dataset": "chats"}
    points = {"off": chats, "on": chats | {"speculative": {"method": "ngram"}}}
    records = [
        record("latency", point, variant, "auto", latencies(5, tpot=tpot))
        for point, tpot in (("off", 8), ("on", 6))
        for variant in ("baseline", "swiftkv-50")
    ]
    made = make(tmp_path, entry("latency", points, CASES[:2], together=True), records)
    legend = texts(made.figure)[1]
    names = ["Baseline", "Baseline, n-gram speculation", "50% SingleInputKV", "50% SingleInputKV, n-gram speculation"]
    assert legend[:4] == names and "held-out chats" in made.figure.get_suptitle()
    assert len(made.figure.axes) == 3
    assert list(made.data.groupby(["variant", "speculative"]).size()) == [5, 5, 5, 5]
    faster = made.data[made.data["speculative"]].groupby("variant")["tpot_reduction_percent"].first()
    assert faster.to_dict() == {"baseline": 25, "swiftkv-50": 25}
    only = {"on": points["on"]}
    alone = make(tmp_path, entry("latency", only, CASES[:2], together=True), records[2:]).data
    assert alone["tpot_reduction_percent"].isna().all()


def forward_records(point="forward"):
    result = {"batch_tokens": [64, 512], "seconds": {"median": [0.01, 0.04], "min": [0.01, 0.03]}, "what": "made up"}
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


WORKLOADS = {
    "chat": {"title": "Chat", "goodput": {"ttft": 500, "tpot": 50}},
    "agent": {"title": "Agents", "goodput": {"e2el": 9000}},
}


def sending(*names, **more):
    return {"workloads": {name: WORKLOADS[name] for name in names}, "seconds": 30, **more}


def goodput(folder, capacities, **engine):
    """The figure of two points, the second compiled and with agents alone; capacities by point, variant, workload."""
    points = {"eager": sending("chat", "agent"), "cached": sending("agent", prefix_caching=True)}
    engines = {"eager": {"compilation": "eager"}, "cached": {"compilation": "compiled, x, CUDA graphs full"}}
    records = [
        record("goodput", point, variant, "auto", {"workloads": {name: good(each) for name, each in found.items()}},
               engine=engines[point] | engine.get(variant, {}))
        for (point, variant), found in capacities.items()
    ]  # fmt: skip
    return make(folder, entry("goodput", points, CASES[:2], source="ours", label="not in the paper"), records)


def test_goodput_by_workload_with_its_ratio_and_error(tmp_path):
    made = goodput(
        tmp_path,
        {
            ("eager", "baseline"): {"chat": 4, "agent": 100},
            ("eager", "swiftkv-50"): {"chat": 8, "agent": 100},
            ("cached", "baseline"): {"agent": 2},
            ("cached", "swiftkv-50"): {"agent": 100},
        },
    )
    eager, cached = made.figure.axes
    assert eager.get_title() == "eager,\nwithout prefix caching"
    assert cached.get_title() == "compiled, x,\nCUDA graphs full,\nwith prefix caching"
    own, legend, title = texts(made.figure)
    # 40 and 80 requests, all good: 41 of 42 and 81 of 82 with the two that are added.
    assert "8\n2.00×\n± 0.05" in own and "4" in own
    assert own.count("≥ 16") == 2  # the baseline has no upper end there, so there is no ratio to it
    assert any(text.startswith("≥ 16\n≥ 8.00×") for text in own)
    below = legend[-1].replace("\n", " ")
    assert "Chat: no recorded trace, but drawn from stated statistics" in below and "25% of the input repeated" in below
    assert "good: its first token within 500 ms, 50 ms a further token." in below
    assert "good: its last within 9,000 ms." in below
    assert title.startswith("Llama-3.1-8B-Instruct: what is shown (not in the paper)") and "vLLM 0.32.0" in title
    data = made.data.set_index(["point", "workload", "variant", "request_rate"])
    one = data.loc[("eager", "chat", "swiftkv-50", 8)]
    assert (one["highest_goodput"], one["goodput"], one["ratio"], one["bounded"]) == (8, 8, 2, True)
    assert one["ratio_stderr"] == pytest.approx(0.0526, abs=5e-4)
    assert one["highest_goodput_stderr"] == pytest.approx(8 * 0.012121, rel=1e-3)
    assert pd.isna(data.loc[("eager", "agent", "swiftkv-50", 16), "ratio"])
    assert (one["ttft_limit_ms"], one["at_request_rate"], one["cached_share"]) == (500, 8, 0.2)
    assert len(data) == 6 * 5


def test_goodput_that_was_not_measured_and_goodput_of_nothing(tmp_path):
    made = goodput(tmp_path, {("eager", "baseline"): {"chat": 1e-9, "agent": 2}})
    own, legend, _ = texts(made.figure)
    assert "n/a" in own and "50% SingleInputKV: n/a (not measured)" in legend[-1].replace("\n", " ")
    assert list(made.data[made.data["point"] == "cached"]["status"]) == ["missing", "missing"]


def test_only_records_of_one_panel_have_to_be_alike(tmp_path):
    same = {("eager", "baseline"): {"chat": 4, "agent": 4}, ("eager", "swiftkv-50"): {"chat": 4, "agent": 4}}
    with pytest.raises(UserError, match="would compare records that differ in prefix caching"):
        goodput(tmp_path, same, baseline={"prefix_caching": False}, **{"swiftkv-50": {"prefix_caching": True}})


def loops(folder, curve, steps):
    """The figure of one point, tokens every so many milliseconds by variant."""
    points = {"loop": {"input_tokens": 8192, "output_tokens": 1024, "requests_each": 4}}
    records = [
        record("concurrency", "loop", variant, "auto", closed_loop(step), settings={"tensor_parallel_size": 2})
        for variant, step in steps.items()
    ]
    return make(
        folder, entry("concurrency", points, CASES[:2], source="ours", label="not in the paper", curve=curve), records
    )


def test_a_closed_loop_as_tokens_of_all_over_tokens_of_one(tmp_path):
    made = loops(tmp_path, "pareto", {"baseline": 20.0, "swiftkv-50": 10.0})
    (axis,) = made.figure.axes
    assert axis.get_title() == "8K input, 1K output tokens"
    baseline, swiftkv = axis.lines
    assert list(baseline.get_xdata()) == [50.0] * 3 and list(swiftkv.get_xdata()) == [100.0] * 3
    assert list(baseline.get_ydata()) == [50.0, 100.0, 200.0]  # of each of two devices
    assert [text.get_text() for text in axis.texts if text.get_text()] == ["1", "2", "4"]
    line = made.data.set_index(["variant", "concurrency"]).loc[("swiftkv-50", 4)]
    assert (line["tokens_per_second"], line["tokens_per_second_ratio"], line["itl_p99_ratio"]) == (800.0, 2.0, 0.5)


def test_a_closed_loop_as_time_between_tokens(tmp_path):
    made = loops(tmp_path, "between_tokens", {"baseline": 20.0})
    (axis,) = made.figure.axes
    median, p99 = axis.lines
    assert list(p99.get_xdata()) == [1, 2, 4] and list(p99.get_ydata()) == [100.0] * 3
    assert list(median.get_ydata()) == [20.0] * 3
    own, legend, _ = texts(made.figure)
    assert "50% SingleInputKV: n/a" in own and "99th percentile" in legend
    assert pd.isna(made.data.iloc[-1]["concurrency"]) and made.data.iloc[-1]["status"] == "missing"


EAGER_CHATS = {
    ("eager", case.variant): {"chat": rate, "agent": 2} for case, rate in zip(CASES[:2], (4, 8), strict=True)
}
FORWARD = {"short": {"batch_tokens": [64, 512]}}


@pytest.mark.parametrize(
    ("draw", "axis", "column"),
    [
        (lambda folder: throughput(folder, throughput_records()), 0, "tokens_per_second"),
        (lambda folder: throughput(folder, throughput_records()), 1, "normalized_tflops_per_gpu"),
        (lambda folder: make(folder, entry("latency", interactive(), CASES), latency_records()), 0, "ttft_median_ms"),
        (lambda folder: make(folder, entry("forward", FORWARD, CASES), forward_records("short")), 0, "milliseconds"),
        (lambda folder: make(folder, entry("forward", FORWARD, CASES), forward_records("short")), 1, "speedup"),
        (lambda folder: goodput(folder, EAGER_CHATS), 0, "highest_goodput"),
        (lambda folder: loops(folder, "pareto", {"baseline": 2.0}), 0, "tokens_per_second_per_device"),
        (lambda folder: loops(folder, "between_tokens", {"baseline": 2.0}), 0, "itl_p99_ms"),
    ],
)
def test_what_is_drawn_is_the_data(tmp_path, draw, axis, column):
    made = draw(tmp_path)
    heights = [bar.get_height() for bar in made.figure.axes[axis].patches]
    heights += [y for line in made.figure.axes[axis].lines for y in line.get_ydata()]
    first = made.data[made.data["point"] == made.data["point"].iloc[0]] if "point" in made.data else made.data
    assert set(first[column].dropna().round(6)) <= {round(float(height), 6) for height in heights}
