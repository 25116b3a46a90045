"""`make bench` for serving: its arithmetic, its turns, and one real run on a tiny model (slow)."""

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


class Engine:
    """Answers every job at once."""

    job = SimpleNamespace(text=lambda: "")

    def __init__(self, name, order):
        self.name, self.order = name, order

    def ask(self, job):
        self.order.append((self.name, job["do"]))
        return job | {"turn": len(self.order), "seconds": 1.0, "tokens": 10, "steps": 2}


def test_engines_take_turns(module):
    serving = module("serving")
    order = []
    first, second = serving.SIDES
    engines = {name: Engine(name, order) for name in (first, second)}
    runs = serving.alternate(engines, {"do": "job"}, 3)
    # Who begins changes, and the turn before the first is left out.
    assert order == [(name, "job") for name in (second, first, first, second, second, first, first, second)]
    assert [run["turn"] for run in runs[first]] == [3, 6, 7]
    assert [run["turn"] for run in runs[second]] == [4, 5, 8]

    order.clear()
    serving.alternate(engines, {"do": "job"}, 1, {"do": "warm-up"})
    assert order == [(name, kind) for name in (second, first, first, second) for kind in ("warm-up", "job")]


def test_each_pair_has_engines_of_its_own_that_start_in_the_other_order(module, tmp_path, monkeypatch):
    serving = module("serving")
    order = []

    @contextlib.contextmanager
    def start(model, options, plugins, log, mode):
        name = model.name
        order.append((name, "start"))
        yield Engine(name, order)
        order.append((name, "stop"))

    models = {side: tmp_path / side for side in serving.SIDES}
    models["baseline"].mkdir()
    (models["baseline"] / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(serving, "engine", start)
    options = serving.parse(["--quick"])
    options.pairs = 2
    rows, _ = serving.measure_mode("compiled", models, options, tmp_path)
    first, second = serving.SIDES
    assert [(name, do) for name, do in order if do in ("start", "stop")] == [
        *[(first, "start"), (second, "start"), (second, "stop"), (first, "stop")],
        *[(second, "start"), (first, "start"), (first, "stop"), (second, "stop")],
    ]
    # The first turn that counts is the first engine's.
    decoding = [name for name, do in order if do == "decode"]
    assert decoding == [second, first, first, second, first, second, second, first]
    (row,) = rows["decode"]
    assert row["ratios"] == [1.0, 1.0] and [len(pair[first]) for pair in row["runs"]] == [1, 1]
    (row,) = rows["throughput"]
    assert row["ratio"] == 1.0 and row["limit"] > 1


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_both_sides_are_served_the_same_way(module, mode):
    serving = module("serving")
    options = serving.parse(["--threads", "2"])
    ours, theirs = (serving.engine_arguments(name, options, mode) for name in ("a", "b"))
    assert ["b" if word == "a" else word for word in ours] == theirs
    assert "--no-enable-prefix-caching" in ours and ("--enforce-eager" in ours) == (mode == "eager")
    assert ours[ours.index("--max-num-batched-tokens") + 1] == "2048"
    assert int(ours[ours.index("--max-model-len") + 1]) >= max(load.input + load.output for load in options.throughput)
    environment = serving.environment(options, "swiftkv")
    # Both cores compute: vLLM by itself would leave one free.
    assert environment["OMP_NUM_THREADS"] == "2" and environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["VLLM_PLUGINS"] == "swiftkv" and serving.environment(options, "")["VLLM_PLUGINS"] == ""
    assert set(serving.SHARE_GOALS) == {load.input for load in options.throughput}


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
    assert {(row["mode"], row["input"]) for row in result["throughput"]} == {
        ("eager", 32),
        ("eager", 256),
        ("compiled", 32),
    }
    assert {(row["mode"], row["prompts"]) for row in result["decode"]} == {("eager", 1), ("eager", 8), ("compiled", 1)}
    eager, compiled = (result["engine"][mode] for mode in ("eager", "compiled"))
    assert eager["swiftkv"]["fast_prefill"] is True and eager["baseline"]["fast_prefill"] is False
    assert eager["baseline"]["compilation"] == "eager" and compiled["swiftkv"]["compilation"] != "eager"
    # 8 layers against 4 and 4 caches of the same size.
    assert eager["swiftkv"]["kv_cache_tokens"] == eager["baseline"]["kv_cache_tokens"]
    assert set(result["start_up"]["engine_start_seconds"]) == {"baseline, no plugin", "baseline, plugin", "swiftkv"}
    assert "| 256, 4 |" in run.stdout
