"""`make bench` for serving: its arithmetic, its workers, and one real run on a tiny model (slow)."""

import importlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from swiftkv.cost import Architecture
from swiftkv.measure.engine import EngineFailure, OutOfMemory
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
SMOLLM2 = dict(
    model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
    num_attention_heads=9, num_key_value_heads=3,
)  # fmt: skip


@pytest.fixture
def module(monkeypatch):
    """Imports a program of performance/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
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
        return SimpleNamespace(ask=lambda job: order.append((name, job["kind"])) or job)

    job, warm_up = {"kind": "job"}, {"kind": "warm-up"}
    runs = serving.alternate({name: side(name) for name in serving.SIDES}, job, warm_up, 3)
    assert order == [(name, kind) for name in ("baseline", "swiftkv") for kind in ("warm-up", "job")] * 3
    assert runs == {"baseline": [job] * 3, "swiftkv": [job] * 3}


def test_both_sides_are_served_the_same_way(module):
    serving = module("serving")
    options = serving.parse(["--threads", "2"])
    ours, theirs = (serving.engine_arguments(Path(name), options) for name in ("a", "b"))
    assert ours | {"model": "b"} == theirs
    assert ours["enforce_eager"] and ours["max_num_batched_tokens"] == 2048 and not ours["enable_prefix_caching"]
    assert ours["max_model_len"] >= max(serving.LENGTHS) + options.output_tokens
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


class FakeEngine:
    """An engine core: `chunk` requests at a time finish their prompt in a step, then all that did gain a token a step."""

    def __init__(self, chunk, shorten=0):
        self.chunk, self.shorten, self.requests, self.steps = chunk, shorten, {}, 0
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 5000)

    def add_request(self, name, prompt, parameters):
        assert min(prompt["prompt_token_ids"]) >= 1000 and parameters.ignore_eos
        self.requests[name] = [0, parameters.max_tokens - self.shorten]

    def has_unfinished_requests(self):
        return any(done < wanted for done, wanted in self.requests.values())

    def step(self):
        time.sleep(0.001)
        self.steps += 1
        fresh = [name for name, (done, _) in self.requests.items() if done == 0][: self.chunk]
        moved = [name for name, (done, wanted) in self.requests.items() if 0 < done < wanted] + fresh
        for name in moved:
            self.requests[name][0] += 1
        made = [
            SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[0] * self.requests[name][0])])
            for name in moved
        ]
        return made


@pytest.fixture
def worker(module, monkeypatch):
    worker = module("engine_worker")
    sampling = lambda tokens: SimpleNamespace(max_tokens=tokens, ignore_eos=True)  # noqa: E731
    monkeypatch.setattr(worker, "forced", sampling)
    return worker


@pytest.mark.parametrize(("batch", "chunk", "steps"), [(1, 1, 9), (8, 8, 9), (8, 2, 6)])
def test_decode_counts_only_steps_of_the_whole_batch(worker, batch, chunk, steps):
    engine = FakeEngine(chunk)
    job = {"batch": batch, "input": 4, "output": 10}
    answer = worker.decode(SimpleNamespace(llm_engine=engine), job, random.Random(0))
    # With 8 requests, 2 beginning a step, the first is at 4 tokens when the last begins.
    assert answer["steps"] == steps
    assert 0.001 * steps <= answer["seconds"] < 0.001 * engine.steps * 30
    assert not engine.has_unfinished_requests()


def test_decode_without_a_common_step_or_with_short_outputs_is_refused(worker):
    job = {"batch": 8, "input": 4, "output": 6}
    with pytest.raises(RuntimeError, match="whole batch"):
        worker.decode(SimpleNamespace(llm_engine=FakeEngine(1)), job, random.Random(0))
    with pytest.raises(RuntimeError, match="were asked for"):
        worker.decode(SimpleNamespace(llm_engine=FakeEngine(8, shorten=1)), job, random.Random(0))


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def fake_worker(module, monkeypatch, tmp_path, program):
    """A worker whose program is `program` instead of vLLM."""
    worker = module("engine_worker")
    file = tmp_path / "program.py"
    file.write_text(program)
    monkeypatch.setattr(worker, "worker_command", lambda arguments: [sys.executable, str(file)])
    return worker


def test_worker_answers_jobs_and_leaves_nothing_behind(module, monkeypatch, tmp_path):
    program = """
import json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print(json.dumps({"child": child.pid}), flush=True)
for line in sys.stdin:
    print(json.dumps({"job": json.loads(line)}), flush=True)
"""
    worker = fake_worker(module, monkeypatch, tmp_path, program)
    with worker.engine({}, os.environ, tmp_path / "log") as engine:
        assert engine.ask({"kind": "decode"}) == {"job": {"kind": "decode"}}
        assert alive(engine.ready["child"])
    for _ in range(50):
        if not alive(engine.ready["child"]):
            break
        time.sleep(0.1)
    assert not alive(engine.ready["child"])


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        ("ValueError: no such model", EngineFailure, "ended with status 1: ValueError: no such model"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", OutOfMemory, "not enough memory"),
    ],
)
def test_a_dead_worker_says_why(module, monkeypatch, tmp_path, words, kind, sentence):
    worker = fake_worker(module, monkeypatch, tmp_path, f"import sys\nprint({words!r}, file=sys.stderr)\nsys.exit(1)")
    with pytest.raises(kind, match=sentence), worker.engine({}, os.environ, tmp_path / "log"):
        pass


def test_a_silent_worker_is_given_up(module, monkeypatch, tmp_path):
    worker = fake_worker(module, monkeypatch, tmp_path, "import time; time.sleep(600)")
    with pytest.raises(TimeoutError), worker.engine({}, os.environ, tmp_path / "log", timeout=0.2) as engine:
        raise AssertionError(engine)


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
