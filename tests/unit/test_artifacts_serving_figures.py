"""Serving figures: what is drawn is what was measured, with limits, OOM and gaps; equal input gives equal bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from swiftkv.artifacts.figures import write_figure
from swiftkv.artifacts.inputs import read_published
from swiftkv.artifacts.latency_figures import latency_figure, speculation_figure
from swiftkv.artifacts.serving import CLAIM_KEYS, Case
from swiftkv.artifacts.serving_figures import blog_figure3, figure2, figure3, throughput_frame
from swiftkv.errors import UserError
from swiftkv.records import write_json
from tests.unit.serving_helpers import CPU, latencies, record, serving, speed

ROOT = Path(__file__).parents[2]
CASES = [Case("baseline"), Case("swiftkv-50"), Case("swiftkv-50-across4")]
SPEEDS = {"batch-2k": (20000, 26000, 27000), "batch-8k": (None, 24000, 0)}


def throughput_records(**changes):
    records = []
    for point, row in SPEEDS.items():
        for case, value in zip(CASES, row, strict=True):
            if value != 0:
                tokens = {"input_tokens": int(point[6]) * 1000}
                records.append(record("throughput", point, *case, value and speed(value), settings=tokens, **changes))
    return records


def claims():
    return read_published([ROOT / "resources/paper/serving_claims.csv"], None, CLAIM_KEYS)


def texts(figure):
    own = [text.get_text() for axis in figure.axes for text in axis.texts]
    legends = [entry.get_text() for legend in figure.legends for entry in [*legend.get_texts(), legend.get_title()]]
    return own, legends, figure.get_suptitle()


def test_figure3_draws_what_was_measured():
    figure, data = figure3(serving(throughput_records(), list(SPEEDS), CASES, claims()))
    speeds, tflops = figure.axes
    heights = sorted(bar.get_height() for bar in speeds.patches)
    assert heights == [20000, 24000, 26000, 27000]
    assert sorted(bar.get_height() for bar in tflops.patches) == [height * 16e9 / 1e12 for height in heights]
    limits = sorted(float(line.get_segments()[0][0][1]) for line in speeds.collections)
    assert limits == [20000 * 1.8, 20000 * 1.9]  # none where the baseline ran out of memory
    own, legend, title = texts(figure)
    assert {"1.30×", "1.35×", "OOM", "n/a"} <= set(own)
    assert any(text.startswith("published: ") and "1.2-1.3x" in text for text in legend)
    assert "limit by FLOPs" in legend and "Baseline" in legend
    assert "Llama-3.1-8B-Instruct" in title and "H100" in title and "vLLM 0.32.0, eager" in title
    assert [label.get_text() for label in speeds.get_xticklabels()] == ["2K", "8K"]
    measured = data[data["row"] == "measured"].set_index(["point", "variant"])
    assert list(measured["status"]) == ["ok", "ok", "ok", "oom", "ok", "missing"]
    assert measured.loc[("batch-2k", "swiftkv-50"), "speedup"] == 1.3
    assert measured.loc[("batch-2k", "swiftkv-50"), "tokens_per_second_limit"] == 36000
    assert set(data[data["row"] == "published"]["quantity"]) >= {"speedup", "normalized_tflops_per_gpu"}


def test_claims_stand_only_where_the_papers_hardware_ran():
    figure, data = figure3(serving(throughput_records(hardware=CPU), list(SPEEDS), CASES, claims()))
    assert not any("published" in text for text in texts(figure)[1])
    assert set(data["row"]) == {"measured"}
    assert figure.axes[1].get_ylabel() == "Normalized TFLOP/s per device"


def test_a_variant_keeps_its_colour():
    first, _ = figure3(serving(throughput_records(), list(SPEEDS), CASES))
    second, _ = figure3(serving(throughput_records(), list(SPEEDS), CASES[:0] + [CASES[0], CASES[2]]))
    colors = {patch.get_facecolor() for patch in second.axes[0].patches}
    assert colors <= {patch.get_facecolor() for patch in first.axes[0].patches} and len(colors) == 2


def test_records_of_two_machines_do_not_share_a_panel_but_two_panels_may_differ():
    records = throughput_records()
    records[1]["hardware"] = CPU
    with pytest.raises(UserError, match="Figure 3 would compare records that differ in hardware"):
        figure3(serving(records, list(SPEEDS), CASES))
    both = [*throughput_records(), *throughput_records(model="small", hardware=CPU)]
    figure, _ = figure3(serving(both, list(SPEEDS), CASES))
    assert "2 cores" in figure.axes[1].get_title() and "H100" in figure.axes[0].get_title()


def test_a_node_holds_replicas_of_the_measured_server():
    records = throughput_records()
    for each in records:
        each["settings"]["tensor_parallel_size"] = 4
    figure, data = blog_figure3(serving(records, list(SPEEDS), CASES), 8)
    assert max(bar.get_height() for bar in figure.axes[0].patches) == 2 * 27000
    assert "8 GPUs" in figure.axes[0].get_ylabel()
    assert data["node_tokens_per_second"].max() == 54000
    cpu = throughput_frame(serving(throughput_records(hardware=CPU), list(SPEEDS), CASES), 8)
    assert cpu["node_tokens_per_second"].max() == 27000


def latency_records(**changes):
    records = []
    for point, slower in (("interactive-2k", 1), ("interactive-8k", 4)):
        for case, capacity in zip(CASES, (5, 9, 9.5), strict=True):
            result = None if (slower, case.variant) == (4, "swiftkv-50") else latencies(capacity / slower)
            records.append(record("latency", point, *case, result, settings={"input_tokens": 2000 * slower}, **changes))
    return records


def test_latency_curves_limits_and_boundaries():
    points = ["interactive-2k", "interactive-8k"]
    figure, data = latency_figure(serving(latency_records(), points, CASES, claims()), "figure4", "paper's Figure 4")
    ttft = figure.axes[0]
    curves = [line for line in ttft.lines if len(line.get_xdata()) == 5 and line.get_linestyle() == "-"]
    expected = [[entry["ttft_ms"]["median"] for entry in latencies(capacity)["rates"]] for capacity in (5, 9, 9.5)]
    assert [list(line.get_ydata()) for line in curves] == expected
    dots = [line for line in ttft.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert [line.get_markerfacecolor() == "white" for line in dots] == [False, False, False, True, True]
    triangles = [
        (line.get_xdata()[0], line.get_markerfacecolor() == "white") for line in ttft.lines if line.get_marker() == "v"
    ]
    assert triangles == [(4, False), (8, False), (4 * 1.8, True), (8, False), (4 * 1.9, True)]
    own, legend, title = texts(figure)
    assert "50% SingleInputKV: OOM" in own and "8\n2.00×" in own
    assert "99th percentile" in legend and "paper's Figure 4" in title
    frame = data[data["row"] == "measured"].set_index(["point", "variant"])
    one = frame.loc[("interactive-2k", "swiftkv-50")]
    assert set(one["sustained_rate_speedup"]) == {2.0} and set(one["highest_sustained_rate_limit"]) == {7.2}
    assert {"ttft_mean_ms", "ttft_p99_ms", "tpot_median_ms"} <= set(frame.columns)
    assert frame["status"][("interactive-8k", "swiftkv-50")] == "oom"  # a single row


def test_a_boundary_that_was_not_reached_is_a_lower_bound():
    records = [
        record("latency", "p", "baseline", "auto", latencies(5)),
        record("latency", "p", "swiftkv-50", "auto", latencies(100)),
    ]
    figure, data = latency_figure(serving(records, ["p"], CASES), "figure4", "paper's Figure 4")
    own = texts(figure)[0]
    assert "≥ 16\n≥ 4.00×" in own and "50% SingleInputKV" not in own and any("n/a" in text for text in own)
    assert data.groupby("variant")["boundary_found"].first()["baseline"]
    assert not data[data["variant"] == "swiftkv-50"]["boundary_found"].any()


def test_a_rate_at_which_nothing_was_finished_leaves_a_gap():
    records = [record("latency", "p", "baseline", "auto", latencies(5))]
    records[0]["result"]["rates"][-1]["tpot_ms"] = dict.fromkeys(("mean", "median", "p99"))
    figure, data = latency_figure(serving(records, ["p"], CASES[:1]), "figure4", "paper's Figure 4")
    assert pd.isna(data["tpot_median_ms"].iloc[-1])


def test_speculation_is_dashed_and_named():
    records = [
        record("latency", point, variant, "auto", latencies(5),
               settings={"speculative": {"method": "ngram"} if point == "on" else None, "dataset": "chats"})
        for point in ("off", "on")
        for variant in ("baseline", "swiftkv-50")
    ]  # fmt: skip
    figure, data = speculation_figure(serving(records, ["off", "on"], CASES[:2]))
    legend = texts(figure)[1]
    names = ["Baseline", "Baseline, n-gram speculation", "50% SingleInputKV", "50% SingleInputKV, n-gram speculation"]
    assert legend[:4] == names and "held-out chats" in figure.get_suptitle()
    assert list(data.groupby(["variant", "speculative"]).size()) == [5, 5, 5, 5]


def forward_records():
    result = {"batch_tokens": [64, 512], "seconds": {"median": [0.01, 0.04], "min": [0.01, 0.03]}, "what": "made up"}
    fast = result | {"seconds": {"median": [0.01, 0.025], "min": [0.01, 0.02]}}
    return [
        record("forward_time", "forward", "baseline", "auto", result),
        record("forward_time", "forward", "swiftkv-50", "auto", fast),
    ]


def test_figure2_has_both_halves():
    similarity = {"model": "m", "title": "M", "num_hidden_layers": 3, "simscore": [0.5, 0.9, None]}
    figure, data = figure2([similarity], serving(forward_records(), ["forward"], CASES))
    left, right = figure.axes
    legend = [entry.get_text() for entry in right.get_legend().get_texts()]
    assert "50% SingleInputKV: 1.60× of 1.90×" in legend and "swiftkv-50-across4: n/a" in legend
    drawn = [[round(float(value), 6) for value in line.get_ydata()] for line in right.lines if len(line.get_xdata())]
    assert [10.0, 40.0] in drawn and [10.0, 25.0] in drawn
    assert [round(10 / 1.9, 6), round(40 / 1.9, 6)] in drawn
    assert set(data["panel"]) == {"simscore", "forward"} and left.get_legend()
    assert "H100" in right.get_legend().get_title().get_text()


@pytest.mark.parametrize("kind", ["figure3", "latency"])
def test_equal_input_gives_equal_bytes(tmp_path, kind):
    written = []
    for number in range(2):
        if kind == "figure3":
            figure, data = figure3(serving(throughput_records(), list(SPEEDS), CASES))
        else:
            shown = serving(latency_records(), ["interactive-2k"], CASES)
            figure, data = latency_figure(shown, "figure4", "paper's Figure 4")
        paths = [tmp_path / f"{number}.{suffix}" for suffix in ("pdf", "png", "csv")]
        write_figure(figure, data, *paths)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1] and all(written[0])


@pytest.mark.parametrize(
    ("name", "records", "points", "extra"),
    [
        ("figure3", throughput_records, list(SPEEDS), []),
        ("blog_figure4", throughput_records, list(SPEEDS), ["--node-gpus", "8"]),
        ("figureB1", latency_records, ["interactive-2k", "interactive-8k"], []),
        ("blog_figure7", latency_records, ["interactive-2k"], []),
    ],
)
def test_scripts(tmp_path, name, records, points, extra):
    files = []
    for number, each in enumerate(records()):
        files.append(tmp_path / f"{number}.json")
        write_json(files[-1], each)
    outputs = [f"--output-{kind}={tmp_path / name}.{kind}" for kind in ("pdf", "png", "csv")]
    shown = [
        "--models",
        '{"llama-3.1-8b": "llama-3.1-8b"}',
        "--points",
        json.dumps(points),
        "--cases",
        json.dumps(CASES),
    ]
    command = [sys.executable, str(ROOT / f"workflow/scripts/{name}.py"), "--records", *map(str, files), *shown, *extra,
               "--published", str(ROOT / "resources/paper/serving_claims.csv"), *outputs]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / f"{name}.{kind}").stat().st_size for kind in ("pdf", "png", "csv"))
    write_json(files[0], forward_records()[0])
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert "0.json is a forward_time record" in failed.stderr


def test_claims_are_of_artifacts_that_exist():
    names = {key[0] for key in claims()}
    assert all((ROOT / f"workflow/scripts/{name}.py").exists() for name in names)
    assert all(claim["gpus"] and claim["text"] and claim["source"] for claim in claims().values())
