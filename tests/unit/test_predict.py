"""The model of time: its counts are the cost model's, its engine loses no token, its constants are what fits the baselines."""

import csv
import itertools
import statistics
from dataclasses import replace

import pandas as pd
import pytest

from swiftkv.artifacts import contents
from swiftkv.artifacts.kinds import KINDS
from swiftkv.artifacts.kinds.predicted_throughput import numbers
from swiftkv.cost import parameter_count, request_flops, speedup_limits
from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.measure.point import Point
from swiftkv.predict.device import Device, constants, devices
from swiftkv.predict.engine import Limits, decode_step, poisson, roofline_speedup, run
from swiftkv.predict.fit import factors, fit, published_baselines
from swiftkv.predict.memory import cache_tokens
from swiftkv.predict.published import BASELINE, BLOG, PAPER, SWIFTKV, cells, statements
from swiftkv.predict.step import Served
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec
from tests.unit.artifact_helpers import LLAMA as LLAMA_8B
from tests.unit.artifact_helpers import PAPER as PUBLISHED
from tests.unit.artifact_helpers import ROOT, resolved, saved, scale, throughput, typed

H100 = Device.load("h100-sxm")
CONFIGS = {
    name: read_json(ROOT / f"resources/architectures/{name}.json")["config"]
    for name in ("llama-3.1-8b", "llama-3.1-70b")
}
LLAMA = Dimensions.from_config(CONFIGS["llama-3.1-8b"])
HALF = SwiftKVSpec(32, 16)
# So fast a memory that only FLOPs take time, one second each 10^12.
COUNTING = replace(H100.peak, flops=1e12, bandwidth=1e30)


@pytest.fixture(scope="module")
def published():
    tables = []
    for name in ("blog_table1", "table5"):
        with open(PUBLISHED / f"{name}.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    return cells(*tables)


# One step


@pytest.mark.parametrize("spec", [None, HALF, SwiftKVSpec(32, 16, 4), SwiftKVSpec(32, 16, 16, 32), SwiftKVSpec(32, 32)])
def test_where_only_flops_count_a_request_takes_those_of_the_cost_model(spec):
    timing = run(Served(LLAMA, spec, COUNTING), Limits(10**6, 1), 3000, 1, [0.0])
    assert timing.seconds == pytest.approx(sum(request_flops(LLAMA, spec, 3000, 1).values()) / 1e12, rel=1e-12)


def test_where_only_bytes_count_decoding_reads_weights_and_cache_once():
    reading = replace(H100.peak, flops=1e30, bandwidth=1e12)
    embedding = LLAMA.vocab_size * LLAMA.hidden_size
    weights = parameter_count(CONFIGS["llama-3.1-8b"]) - embedding - 65 * LLAMA.hidden_size  # norms are no products
    served = Served(LLAMA, None, reading)
    assert decode_step(served, 4, 1000) == pytest.approx((2 * weights + 4 * 1000 * 131072) / 1e12, rel=1e-9)
    assert decode_step(replace(served, fp8_cache=True), 4, 1000) == pytest.approx(
        (2 * weights + 4 * 1000 * 65536) / 1e12, rel=1e-9
    )


def test_devices_share_products_and_reduce_what_they_made():
    one, four = (decode_step(Served(LLAMA, None, COUNTING, number), 256, 1) for number in (1, 4))
    assert four == pytest.approx(one / 4, rel=1e-3)
    slow = replace(COUNTING, link=1e6)
    moved = 2 * 32 * 256 * 4096 * 2 * 2 * 3 / 4
    assert decode_step(Served(LLAMA, None, slow, 4), 256, 1) - four == pytest.approx(moved / 1e6, rel=1e-2)


# The engine


class Recorder:
    """In place of what is served: each step takes a second and is kept."""

    def __init__(self):
        self.steps = []

    def seconds(self, step):
        self.steps.append(step)
        return 1.0


@pytest.mark.parametrize(
    ("prompt", "output", "cache"), [(100, 1, None), (7, 5, None), (5000, 20, None), (700, 9, 2200)]
)
def test_every_token_is_computed_once(prompt, output, cache):
    recorder, limits = Recorder(), Limits(2048, 16, cache)
    timing = run(recorder, limits, prompt, output, [0.0] * 40)
    steps = recorder.steps
    assert sum(step.prompt for step in steps) == 40 * prompt
    assert sum(step.pairs for step in steps) == 40 * prompt * (prompt + 1) // 2
    assert sum(step.decoding for step in steps) == 40 * (output - 1)
    # A decoded token sees the prompt, what was decoded before, and itself.
    assert sum(step.context for step in steps) == 40 * sum(range(prompt + 1, prompt + output))
    most = 16 if cache is None else cache // (prompt + output)
    assert max(step.ends + step.decoding for step in steps) <= most
    assert max(step.prompt + step.decoding for step in steps) <= 2048
    assert list(timing.first) == sorted(timing.first) and timing.seconds == len(steps)


def test_requests_wait_for_their_arrival_and_for_each_other():
    timing = run(Recorder(), Limits(10, 1), 10, 3, [5.0, 5.5, 50.0])
    assert timing.first == (6.0, 9.0, 51.0) and timing.last == (8.0, 11.0, 53.0)


def test_what_does_not_fit_is_out_of_memory():
    assert run(Recorder(), Limits(10, 1, cache=12), 10, 3, [0.0]) is None


def test_arrivals_are_poisson_and_the_same_for_a_seed():
    arrivals = poisson(4, 4000, 0)
    assert arrivals == poisson(4, 4000, 0) != poisson(4, 4000, 1)
    assert arrivals[-1] == pytest.approx(1000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert statistics.pstdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.1)  # as of exponential ones


# The roofline


def test_the_roofline_is_below_the_limit_by_flops_and_nears_it_with_larger_steps():
    served = Served(LLAMA, HALF, H100)
    flops = speedup_limits(LLAMA, HALF, 2048, 1)["request_speedup"]
    shares = [roofline_speedup(served, Limits(tokens, 256), 2048, 1, 32) / flops for tokens in (512, 2048, 16384)]
    assert 0.5 < shares[0] < shares[1] < shares[2] < 1
    assert shares[1] < 0.97 < shares[2]
    assert roofline_speedup(Served(LLAMA, None, H100), Limits(2048, 256), 2048, 16, 32) == 1


# Devices and their constants


def test_devices_are_found_by_what_machines_report():
    assert Device.found(["NVIDIA H100 80GB HBM3"] * 2, "any").name == "H100 SXM"
    assert Device.found(["NVIDIA H100 PCIe"], "any") is None
    assert Device.found([], "Intel(R) Xeon(R) Processor", ["avx2", "amx_bf16"]).cores == 2
    assert Device.found([], "Intel(R) Xeon(R) Processor", ["avx2"]) is None
    assert Device.found([], "AMD EPYC", ["avx512_bf16"]).bandwidth == 36e9
    with pytest.raises(UserError, match="no device 'h100' in resources/devices; there are .*h100-sxm, xeon-amx"):
        Device.load("h100")


def test_every_constant_has_its_source():
    for name in devices():
        assert all(constant["why"] and constant["sure"] for constant in constants(name).values())


def test_the_cache_has_what_weights_and_engine_leave():
    served, parameters = Served(LLAMA, None, H100), parameter_count(CONFIGS["llama-3.1-8b"])
    engine = {"gpu_memory_utilization": 0.9, "cpu_kv_cache_gib": None}
    whole, limited = (cache_tokens(served, parameters, engine, limit) for limit in (None, 16))
    assert 430e3 < whole < 470e3 and 0 < limited < 2256  # 128 KiB a token; at 16 GB not one request of Table 5
    assert cache_tokens(replace(served, merged=True), parameters, engine, 16) == pytest.approx(32 * limited)
    processor = Served(LLAMA, None, Device.load("xeon-amx"), 2)
    assert cache_tokens(processor, parameters, {"cpu_kv_cache_gib": 1}) == 2**30 / 131072


def test_an_h100_is_fitted_on_published_baselines_alone(published):
    baselines = published_baselines(published, CONFIGS)
    used = [cell for cell in published if cell.fitted]
    assert {(cell.column, cell.model) for cell in used} == {(BASELINE, "llama-3.1-8b")}
    assert len(baselines) == 5  # the sixth is out of memory
    found, factor = fit(replace(H100, compute_share=0.4, row=2e-5, layer=5e-5), baselines, BLOG)
    assert found.compute_share == pytest.approx(H100.compute_share, rel=0.01)
    assert found.row == pytest.approx(H100.row, rel=0.02)
    assert found.layer == pytest.approx(H100.layer, rel=0.02)
    assert 1.15 < factor[PAPER] < 1.3 and factor[BLOG] == pytest.approx(1, abs=0.01)


def test_what_was_held_out_is_predicted_as_well_as_the_docs_say(published):
    factor = factors(H100, published_baselines(published, CONFIGS))
    found = {cell: cell.predicted(H100, CONFIGS) for cell in published}
    assert {cell for cell in published if cell.published is None} == {
        cell for cell, value in found.items() if value is None
    }
    bases = {cell.place: value for cell, value in found.items() if cell.column == BASELINE}
    rates = {cell.place: cell.published for cell in published if cell.column == BASELINE}
    for cell, value in found.items():
        if cell.column == SWIFTKV and cell.gpus == 1 and value:
            ratio, stated = value / bases[cell.place], cell.published / rates[cell.place]
            assert ratio == pytest.approx(stated, rel=0.05), cell
        if cell.gpus == 4:
            assert value == pytest.approx(cell.published, rel=0.1), cell
        if cell.memory and cell.memory >= 20 and cell.column in (SWIFTKV, "swiftkv_50_across4"):
            assert factor[PAPER] * value == pytest.approx(cell.published, rel=0.1), cell


def test_sentences_are_read_with_their_bounds():
    with open(PUBLISHED / "values.csv", newline="") as file:
        found = statements(csv.DictReader(file))
    speedups = {(one.model, one.prompt): (one.low, one.high) for one in found if one.quantity == "speedup"}
    assert speedups["llama-3.1-8b", 2000] == (1.2, 1.3) and speedups["llama-3.1-70b", 128000] == (1.8, 2)
    (early,) = (one for one in found if one.quantity == "ttft_reduction_percent")
    assert early.error(40) == 0 and early.error(60) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("artifact", "points"), [("figure3_predicted", ["batch-128k"]), ("figure4_predicted", ["interactive-32k"])]
)
def test_what_is_predicted_says_so_and_has_nothing_measured(artifact, points, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = scale()
    config["artifacts"][artifact] |= {"points": points, "variants": ["baseline", "swiftkv-50"]}
    entry, needed = contents.resolve(typed(config), artifact), contents.needs(typed(config), artifact)
    assert set(needed) == {"dimensions", "devices"}
    drawing = KINDS[entry["kind"]].make(
        entry, {name: [ROOT / path for path in paths] for name, paths in needed.items()}
    )
    assert set(drawing.data["row"]) == {"predicted"} and set(drawing.data["status"]) == {"ok"}
    title, notes = drawing.figure.get_suptitle(), drawing.figure.legends[0].get_title().get_text()
    assert "predicted, not measured" in " ".join(title.split()) and "Nothing here was measured" in notes
    assert {patch.get_hatch() for axis in drawing.figure.axes for patch in axis.patches} - {None}
    assert all(patch.get_facecolor()[:3] == (1, 1, 1) for axis in drawing.figure.axes for patch in axis.patches)
    rates = drawing.data["tokens_per_second"]
    assert pd.notna(rates).all() and (rates > 0).all()


@pytest.mark.parametrize(("fp8", "peak"), [(False, 989.4), (True, 1978.9)])
def test_utilization_is_predicted_of_the_peak_of_the_served_format(fp8, peak):
    settings = {"measure": "throughput", "input_tokens": 2000, "output_tokens": 16, "total_tokens": 10**5}
    point = Point.read("p", settings | {"seed": 0, "engine": {"enforce_eager": True}}, gpus=1, threads=1)
    found = numbers(Served(LLAMA, None, H100, fp8=fp8), Limits(2048, 256), point, CONFIGS["llama-3.1-8b"])
    assert found["normalized_tflops_per_gpu"] / found["mfu_percent"] == pytest.approx(peak / 100)


def test_what_was_measured_stands_beside_its_prediction(tmp_path):
    entry = resolved("prediction_measured", models=["small"], variants=["baseline", "swiftkv-50"], points=["batch-2k"])
    rates = {"baseline": 20000.0, "swiftkv-50": 30000.0}
    records = saved(tmp_path, [throughput(LLAMA_8B, variant, "batch-2k", rate) for variant, rate in rates.items()])
    paths = {
        "dimensions": ["resources/architectures/llama-3.1-8b.json"],
        "devices": ["resources/devices/h100-sxm.json"],
    }
    files = {name: [ROOT / path for path in found] for name, found in paths.items()} | {"serving": records}
    base, faster = KINDS["prediction_measured"].make(entry, files).values.to_dict("records")
    assert (faster["speedup"], faster["tokens_per_second"]) == (1.5, 30000)
    assert faster["error_percent"] == pytest.approx(100 * (faster["tokens_per_second_predicted"] / 30000 - 1))
    assert 1.2 < faster["speedup_predicted"] < 2 and 1.2 < faster["roofline_speedup_limit"] < 2
    assert pd.isna(base["speedup"])


def test_prediction_and_publication_stand_side_by_side(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = typed(scale())
    entry, needed = contents.resolve(config, "prediction"), contents.needs(config, "prediction")
    made = KINDS["prediction"].make(entry, {name: [ROOT / path for path in paths] for name, paths in needed.items()})
    lines = made.values
    assert set(lines["use"]) == {"fitted", "held out"}
    fitted = lines[lines["use"] == "fitted"]
    assert set(fitted["variant"]) == {"baseline"} and set(fitted["model"]) == {"llama-3.1-8b"}
    assert lines[lines["out_of_memory_published"] == True]["predicted"].isna().all()  # noqa: E712
    assert "Held out" in made.notes[0] and "known" in made.notes[1]
