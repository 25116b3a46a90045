"""`make bench` for serving: its arithmetic, its turns, and one real run on a tiny model (slow)."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from swiftkv.dimensions import Dimensions
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
SMOLLM2 = dict(
    model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
    num_attention_heads=9, num_key_value_heads=3,
)  # fmt: skip


@pytest.fixture
def module(monkeypatch):
    """Imports a program of performance/."""
    monkeypatch.syspath_prepend(ROOT / "performance")
    return importlib.import_module


def test_throughput_is_held_against_the_flop_limit(module):
    serving = module("serving")
    arch, spec = Dimensions.from_config(SMOLLM2), SwiftKVSpec(30, 14)
    runs = {
        "baseline": [{"tokens": 100, "seconds": seconds} for seconds in (10, 11, 12)],
        "swiftkv": [{"tokens": 100, "seconds": seconds} for seconds in (5, 5, 4)],
    }
    made = serving.throughput_result(runs, arch, spec, serving.Load(2000, 16, 8, 1))
    assert made["ratio"] == pytest.approx(2.2)  # 2, 2.2 and 3
    assert (made["lowest_ratio"], made["highest_ratio"]) == (pytest.approx(2), pytest.approx(3))
    # 16 of 30 layers skipped: at most 30 / 14 for prefill without K and V, less for what is left of them and decoding.
    assert 1.9 < made["limit"] < 30 / 14
    assert made["share_of_limit"] == pytest.approx(2.2 / made["limit"])
    assert made["goal"] == 0.95
    # Without decoding more of the work is saved.
    prompts = serving.throughput_result(runs, arch, spec, serving.Load(2000, 1, 8, 1))
    assert made["limit"] < prompts["limit"] < 30 / 14


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


def test_table_shows_every_number_and_whether_its_goal_was_reached(module):
    serving = module("serving")
    row = {"baseline": 444.4, "swiftkv": 888.8, "ratio": 2.0, "lowest_ratio": 1.95, "highest_ratio": 2.05}
    load = {"mode": "eager", "input": 2000, "output": 16, "prompts": 8}
    starts = {"register_seconds": {"first": 1.25, "again": 0.001}, "engine_start_seconds": {"swiftkv": 21.5}}
    reached = row | load | {"limit": 2.04, "share_of_limit": 0.98, "goal": 0.95}
    result = {
        "throughput": [reached, reached | {"share_of_limit": 0.949, "input": 512}],
        "decode": [row | load | {"goal": 1.0}, row | load | {"goal": 1.0, "ratio": 1.0, "prompts": 32}],
        "start_up": starts,
    }
    text = serving.table(result)
    assert "| eager | 2000, 16 | 444 | 889 | 2.000 (1.950 to 2.050) | 2.040 | 98.0% | 95% reached |" in text
    assert "| eager | 512, 16 | 444 | 889 | 2.000 (1.950 to 2.050) | 2.040 | 94.9% | 95% missed |" in text
    assert "| eager | 8 | 444.40 | 888.80 | 2.000 (1.950 to 2.050) | 1.00 missed |" in text
    assert "| eager | 32 | 444.40 | 888.80 | 1.000 (1.950 to 2.050) | 1.00 reached |" in text
    assert "| register() | 1.25 |" in text and "| engine, swiftkv | 21.5 |" in text
    assert "start-up" not in serving.table(result | {"start_up": None})


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
