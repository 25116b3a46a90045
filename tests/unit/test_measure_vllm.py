"""The measuring program against a real vLLM on a tiny random model: one start here, the rest marked slow."""

import json
import subprocess

import pytest
from tests.conftest import GGUF
from tests.unit.measure_helpers import ENGINE

from pipeline.engines.worker import module
from pipeline.measure.job import ServingSettings
from swiftkv.cost import GIBI, parameter_count
from swiftkv.io import read_json

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    from pipeline.sources import resolve_model

    folder = tmp_path_factory.mktemp("tiny")
    resolve_model("tiny", "Tiny", GGUF | {"random": SHAPE}, folder / "source.json")
    return folder / "source.json"


def command(source, tmp_path, **points):
    engine = ENGINE | {"dtype": "float32", "max_num_batched_tokens": 128, "max_num_seqs": 64, "cpu_kv_cache_gib": 0.05}
    lengths = {"input_tokens": 100, "output_tokens": 4}
    asked = {
        kind: {"measure": kind, "seed": 0, "engine": engine} | (lengths if kind != "forward_time" else {}) | own
        for kind, own in points.items()
    }
    options = {
        "settings": ServingSettings("original", None, False, None, asked).text,
        **{"model": "tiny", "title": "Tiny", "variant": "baseline", "kv-cache": "auto", "source": source},
        **{"chats": tmp_path / "chats.jsonl", "start-timeout": 300, "threads": 1, "gpus": 0},
        **{"log": tmp_path / "vllm.log", "state": tmp_path / "state"},
    }
    words = [str(word) for option, value in options.items() for word in (f"--{option}", value)]
    outputs = [str(tmp_path / f"{kind}/tiny/baseline/auto.json") for kind in points]
    return [*module("pipeline.stages", "measure"), *words, "--checkpoint", "--outputs", *outputs]


def measured(source, tmp_path, **points):
    """The records of a job run to its end; they have no place of this machine in them."""
    done = subprocess.run(command(source, tmp_path, **points), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [read_json(tmp_path / f"{kind}/tiny/baseline/auto.json") for kind in points]
    assert str(tmp_path) not in json.dumps(records)
    return records


def test_points_of_one_engine(source, tmp_path):
    questions = {"questions": 3, "batch": 2, "draw": {"items": 5, "seed": 1}}
    passage = {"role": "user", "content": "Title: Sky\nBackground: It is blue.\nQuestion: Which color?"}
    chat = {"messages": [passage, {"role": "assistant", "content": "blue"}]}
    (tmp_path / "chats.jsonl").write_text(3 * f"{json.dumps(chat)}\n")
    sizes = {"batch_sizes": [1, 4], "repeats": 3, "input_tokens": 64, "output_tokens": 12}
    throughput, decode, answer, capacity = measured(
        source, tmp_path, throughput={"total_tokens": 520}, decode=sizes, answer=questions, kv_capacity={}
    )
    assert (tmp_path / "vllm.log").read_text().count("Initializing a V1 LLM engine") == 1

    assert throughput["model"]["kind"] == "random" and throughput["settings"]["num_prompts"] == 5
    assert throughput["result"]["tokens"] == 520 and throughput["result"]["tokens_per_second"] > 0
    assert 0 < throughput["result"]["decode_only_percent"] < 100
    assert throughput["result"]["samples_cpu_seconds"][0] > 0 <= throughput["result"]["samples_other_cores"][0]
    engine = throughput["engine"]
    assert engine["compilation"] == "eager" and engine["prefix_caching"] is False and engine["fast_prefill"] is False
    # 8 layers, 2 heads of 32, K and V in float32: 4 KB a token
    assert engine["kv_cache_tokens"] == pytest.approx(0.05 * 2**30 / 4096, rel=0.01)

    result = decode["result"]
    # Of 11 decoding steps the whole batch of one has all; of four, 2 of which begin in a step, fewer.
    assert result["steps"][0] == [11, 11, 11] and all(1 <= steps < 11 for steps in result["steps"][1])
    for samples, middle in zip(result["samples_ms"], result["tpot_ms"]["median"], strict=True):
        assert len(samples) == 3 and min(samples) > 0 and middle in samples

    result = answer["result"]
    assert result["asked"] == [["Question: Which color?", "blue"]] * 3 and result["baseline_answers"] is None
    assert len(result["answers"]["text"]) == 3 and len(result["samples_ms"]) == 2  # batches
    assert result["answers"]["f1"] == [0, 0, 0]  # of random weights

    assert capacity["result"]["kv_cache_bytes"] == int(0.05 * 2**30)
    assert capacity["result"]["kv_cache_tokens"] == capacity["engine"]["kv_cache_tokens"] > 0


@pytest.mark.slow
def test_latency_and_forward_time(source, tmp_path):
    chosen = {"request_rates": [2, 8], "seconds": 2, "refine_steps": 1}
    (record,) = measured(source, tmp_path, latency=chosen)
    rates = record["result"]["rates"]
    assert [entry["completed"] for entry in rates][:2] == [4, 16]
    # Exactly the tokens asked for arrived: they were sent as ids, not as text that is tokenized again.
    assert [entry["input_tokens"] for entry in rates][:2] == [400, 1600] and rates[0]["output_tokens"] == 16
    assert rates[0]["ttft_ms"]["median"] > 0 and record["engine"]["kv_cache_tokens"] > 0
    (record,) = measured(source, tmp_path, forward_time={"batch_tokens": [64, 128], "repeats": 2})
    assert len(record["result"]["seconds"]["median"]) == 2


@pytest.mark.slow
def test_vllm_s_own_refusal_for_memory_is_a_record(source, tmp_path):
    # Room for the weights and 0.1 MB, but not for the 0.5 MB of one request.
    limit = (4 * parameter_count(read_json(source)["config"]) + 100_000) / GIBI
    (record,) = measured(source, tmp_path, kv_capacity={"memory_gib": limit})
    assert record["status"] == "oom" and record["reason"].startswith("vLLM has not enough memory: ")
