"""`make bench` for serving: its arithmetic, its turns, and one real run on a tiny model (slow)."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from swiftkv.cost import Architecture
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
    arch, spec = Architecture.from_config(SMOLLM2), SwiftKVSpec(30, 14)
    runs = {
        "baseline": [{"tokens": 100, "seconds": seconds} for seconds in (10, 11, 12)],
        "swiftkv": [{"tokens": 100, "seconds": seconds} for seconds in (5, 5.5, 4)],
    }
    made = serving.throughput_result(runs, arch, spec, 2000, 16)
    assert made["ratio"] == pytest.approx(2.2)  # of the medians, 11 s and 5 s
    assert (made["lowest_ratio"], made["highest_ratio"]) == (pytest.approx(2), pytest.approx(3))
    # 16 of 30 layers skipped: at most 30 / 14 for prefill without K and V, less for what is left of them and decoding.
    assert 1.9 < made["limit"] < 30 / 14
    assert made["share_of_limit"] == pytest.approx(2.2 / made["limit"])


def test_engines_take_turns(module):
    serving = module("serving")
    order = []

    def side(name):
        return SimpleNamespace(ask=lambda job: order.append((name, job["do"])) or job)

    job, warm_up = {"do": "job"}, {"do": "warm-up"}
    runs = serving.alternate({name: side(name) for name in serving.SIDES}, job, warm_up, 3)
    assert order == [(name, kind) for name in ("baseline", "swiftkv") for kind in ("warm-up", "job")] * 3
    assert runs == {"baseline": [job] * 3, "swiftkv": [job] * 3}


def test_both_sides_are_served_the_same_way(module):
    serving = module("serving")
    options = serving.parse(["--threads", "2"])
    ours, theirs = (serving.engine_arguments(name, options) for name in ("a", "b"))
    assert ["b" if word == "a" else word for word in ours] == theirs
    assert {"--enforce-eager", "--no-enable-prefix-caching"} <= set(ours)
    assert ours[ours.index("--max-num-batched-tokens") + 1] == "2048"
    assert int(ours[ours.index("--max-model-len") + 1]) >= max(serving.LENGTHS) + options.output_tokens
    environment = serving.environment(options, "swiftkv")
    # Both cores compute: vLLM by itself would leave one free.
    assert environment["OMP_NUM_THREADS"] == "2" and environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["VLLM_PLUGINS"] == "swiftkv" and serving.environment(options, "")["VLLM_PLUGINS"] == ""
    assert set(serving.TARGETS["lengths"]) <= set(serving.LENGTHS)


def test_table_shows_every_number(module):
    serving = module("serving")
    row = {"baseline": 444.4, "swiftkv": 888.8, "ratio": 2.0, "lowest_ratio": 1.95, "highest_ratio": 2.05}
    starts = {"register_seconds": {"first": 1.25, "again": 0.001}, "engine_start_seconds": {"swiftkv": 21.5}}
    result = {
        "throughput": {"2000": row | {"limit": 2.04, "share_of_limit": 0.98}},
        "decode_tpot_ms": {"1": row},
        "start_up": starts,
    }
    text = serving.table(result)
    assert "| 2000 | 444 | 889 | 2.00 (1.95 to 2.05) | 2.04 | 98.0% |" in text
    assert "| 1 | 444.40 | 888.80 | 2.000 (1.950 to 2.050) |" in text
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
    assert set(result["throughput"]) == {"32", "256"} and set(result["decode_tpot_ms"]) == {"1", "8"}
    assert result["engine"]["swiftkv"]["fast_prefill"] is True and result["engine"]["baseline"]["fast_prefill"] is False
    assert result["engine"]["baseline"]["compilation"] == "eager"
    # 8 layers against 4 and 4 caches of the same size.
    assert result["engine"]["swiftkv"]["kv_cache_tokens"] == result["engine"]["baseline"]["kv_cache_tokens"]
    assert set(result["start_up"]["engine_start_seconds"]) == {"baseline, no plugin", "baseline, plugin", "swiftkv"}
    assert "| 256 |" in run.stdout
