"""`make bench` for serving: its arithmetic, its engines, and one real run on a tiny model (slow)."""

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.measure_helpers import LLAMA

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """Imports a program of performance/."""
    monkeypatch.syspath_prepend(ROOT / "performance")
    return importlib.import_module


def test_a_slower_minute_of_the_machine_changes_no_ratio_of_a_pair(module):
    pair = {"baseline": [2, 2, 20, 20, 2], "swiftkv": [1, 1.2, 10, 10, 8]}
    made = module("serving").compare([pair])
    assert made["ratio"] == made["lowest_ratio"] == made["highest_ratio"] == pytest.approx(0.5)


def test_the_range_is_that_of_pairs_of_engines(module):
    """However often a pair takes turns, it is one start of each engine: five alike turns are no five answers."""
    pairs = [
        {"baseline": [10.0] * turns, "swiftkv": [time] * turns} for time, turns in ((9.0, 5), (11.0, 3), (10.0, 5))
    ]
    made = module("serving").compare(pairs)
    assert made["ratios"] == [pytest.approx(ratio) for ratio in (0.9, 1.1, 1.0)]
    assert [made[name] for name in ("lowest_ratio", "ratio", "highest_ratio")] == [
        pytest.approx(x) for x in (0.9, 1, 1.1)
    ]


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([0.90, 0.93, 0.95, 0.92, 0.91], "faster"),
        ([1.02, 1.01, 1.05, 1.02, 1.03], "slower"),
        ([0.90, 0.93, 1.005, 0.92, 0.91], "no difference measured"),  # one pair says otherwise
        ([0.90, 0.91], "nothing: fewer than 5 pairs of engines"),
    ],
)
def test_decoding_differs_only_where_all_pairs_say_so(module, ratios, said):
    serving = module("serving")
    row = serving.compare([{"baseline": [1.0], "swiftkv": [ratio]} for ratio in ratios])
    assert serving.found(row) == said
    row |= {"mode": "eager", "prompts": 8}
    assert serving.table({"throughput": [], "decode": [row], "start_up": None}).endswith(f"| {said} |")


@pytest.fixture
def measured(module, tmp_path, monkeypatch):
    """The rows of two pairs of engines that answer every job at once, and what was done to which engine."""
    serving, order = module("serving"), []

    @contextlib.contextmanager
    def start(model, options, plugins, log, mode, scale):
        def ask(job):
            order.append((model.name, job["do"]))
            return {"seconds": 1.0, "tokens": 10 * scale, "steps": 2}

        order.append((model.name, f"start, {scale * options.chunk} tokens a step"))
        yield SimpleNamespace(ask=ask, job=SimpleNamespace(text=lambda: ""))
        order.append((model.name, "stop"))

    def measure():
        models = {side: tmp_path / side for side in (*serving.SIDES, serving.DOUBLED)}
        models["baseline"].mkdir()
        (models["baseline"] / "config.json").write_text(json.dumps(LLAMA))
        monkeypatch.setattr(serving, "engine", start)
        options = serving.parse(["--quick"])
        options.pairs = 2
        rows, _ = serving.measure_mode("compiled", models, options, tmp_path)
        return rows, order

    return measure


def test_each_pair_has_engines_of_its_own_that_start_in_the_other_order(module, measured):
    rows, order = measured()
    base, own, doubled = [*module("serving").SIDES, module("serving").DOUBLED]
    starts = {side: (side, f"start, {256 * (1 + (side == doubled))} tokens a step") for side in (base, own, doubled)}
    assert [each for each in order if each in starts.values() or each[1] == "stop"] == [
        *[starts[base], starts[own], starts[doubled], (doubled, "stop"), (own, "stop"), (base, "stop")],
        *[starts[doubled], starts[own], starts[base], (base, "stop"), (own, "stop"), (doubled, "stop")],
    ]
    # The first turn is the first engine's, after a warm-up; what fits into one step is not for the third.
    assert [name for name, do in order if do == "decode"] == 2 * [base, base, own, own] + 2 * [own, own, base, base]
    assert [row["ratios"] for row in rows["decode"]] == 2 * [[1.0, 1.0]]
    assert [len(pair[base]) for row in rows["decode"] for pair in row["runs"]] == 4 * [1]
    found = [(row["input"], row["chunk"], row["ratio"]) for row in rows["throughput"]]
    assert found == [(32, 256, 1.0), (256, 256, 1.0), (256, 512, 2.0)]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_both_sides_are_served_the_same_way(module, mode):
    serving = module("serving")
    options = serving.parse(["--threads", "2"])
    ours, theirs = (serving.engine_arguments(name, options, mode, 2048) for name in ("a", "b"))
    assert ["b" if word == "a" else word for word in ours] == theirs
    assert "--no-enable-prefix-caching" in ours and ("--enforce-eager" in ours) == (mode == "eager")
    assert ours[ours.index("--max-num-batched-tokens") + 1] == "2048"
    assert int(ours[ours.index("--max-model-len") + 1]) >= max(load.input + load.output for load in options.throughput)
    environment = serving.environment(options, "swiftkv")
    # Both cores compute: vLLM by itself would leave one free.
    assert environment["OMP_NUM_THREADS"] == "2" and environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["VLLM_PLUGINS"] == "swiftkv" and serving.environment(options, "")["VLLM_PLUGINS"] == ""


@pytest.mark.slow
def test_quick_run_with_real_engines(tmp_path):
    command = [
        sys.executable,
        "performance/serving.py",
        "--quick",
        "--threads",
        "1",
        "--output",
        str(tmp_path / "a.json"),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads((tmp_path / "a.json").read_text())
    assert [(row["mode"], row["input"], row["chunk"]) for row in result["throughput"]] == [
        (mode, *load) for mode in ("eager", "compiled") for load in ((32, 256), (256, 256), (256, 512))
    ]
    assert {(row["mode"], row["prompts"]) for row in result["decode"]} == {
        (mode, batch) for mode in ("eager", "compiled") for batch in (1, 8)
    }
    eager, compiled = (result["engine"][mode] for mode in ("eager", "compiled"))
    assert eager["swiftkv"]["fast_prefill"] is eager["swiftkv_doubled"]["fast_prefill"] is True
    assert eager["baseline"]["fast_prefill"] is False
    assert eager["baseline"]["compilation"] == "eager" and compiled["swiftkv"]["compilation"] != "eager"
    # 8 layers against 4 and 4 caches of the same size.
    assert eager["swiftkv"]["kv_cache_tokens"] == eager["baseline"]["kv_cache_tokens"]
    assert set(result["start_up"]["engine_start_seconds"]) == {"baseline, no plugin", "baseline, plugin", "swiftkv"}
    assert "| 256, 4 |" in run.stdout
