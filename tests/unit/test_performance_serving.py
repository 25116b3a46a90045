"""`make bench` for serving: its arithmetic, its turns, and one real run on a tiny model (slow)."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """Imports a program of performance/."""
    monkeypatch.syspath_prepend(ROOT / "performance")
    return importlib.import_module


def test_a_slower_minute_of_the_machine_changes_no_ratio(module):
    serving = module("serving")
    baseline, swiftkv = [2, 2, 20, 20, 2, 2], [1, 1.2, 10, 10, 1, 8]
    made = serving.compare(baseline, swiftkv, pairs=3)
    assert made["ratio"] == pytest.approx(0.5)
    # Samples are medians of neighbouring pairs: one disturbed pair moves neither.
    assert made["lowest_ratio"] == made["highest_ratio"] == pytest.approx(0.5)
    alone = serving.compare(baseline, swiftkv, pairs=1)
    assert (alone["lowest_ratio"], alone["highest_ratio"]) == (pytest.approx(0.5), pytest.approx(4))


def test_engines_take_turns(module):
    serving = module("serving")
    order = []

    def side(name):
        return SimpleNamespace(ask=lambda job: order.append((name, job["do"])) or job | {"turn": len(order)})

    engines = {name: side(name) for name in serving.SIDES}
    runs = serving.alternate(engines, {"do": "job"}, 3)
    first, second = serving.SIDES
    # Who begins changes, and the first turn of each is left out.
    assert order == [(name, "job") for name in (second, first, first, second, second, first, first, second)]
    assert [run["turn"] for run in runs[first]] == [3, 6, 7]
    assert [run["turn"] for run in runs[second]] == [4, 5, 8]

    order.clear()
    serving.alternate(engines, {"do": "job"}, 1, {"do": "warm-up"})
    assert order == [(name, kind) for name in (second, first, first, second) for kind in ("warm-up", "job")]


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
