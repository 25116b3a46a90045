"""Checks that compare engines' answers with Hugging Face's in float32."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch
from gpu_models import OUTPUT, Outcome, Reference, Sizes, case, engines, half, make_model, make_prompts

from pipeline.engines.worker import Server, module, serving
from swiftkv.spec import SwiftKVSpec

# Root mean square of log-probabilities' differences from float32, relative to that of a yardstick of the same run; 200
# tokens give it within a tenth. Below ROUNDING nat a yardstick in float32 is too good to be one.
NOISE, ROUNDING = 1.5, 1e-3


def exactness(sizes: Sizes, folder: Path) -> Outcome:
    """Compare eager answers with Hugging Face's in float32, and count rows by step; with fast prefill and at full depth they
    may differ little more than the unchanged model's do."""
    prompts, eager = make_prompts(sizes), {"enforce_eager": True}
    models = {name: make_model(folder / name, sizes.small, spec)
              for name, spec in {"unchanged": None, "swiftkv": half(sizes.small)}.items()}  # fmt: skip
    cases = {
        "unchanged": case(models["unchanged"], prompts, eager),
        "fast prefill": case(models["swiftkv"], prompts, eager),
        "full depth": case(models["swiftkv"], prompts, eager | {"additional_config": {"swiftkv_full_depth": True}}),
    }
    few = make_prompts(sizes, lengths=(300, 20, 30, 300))
    rows = {"rows": case(models["swiftkv"], few, eager | {"max_num_batched_tokens": 128}, steps=True)}
    if torch.cuda.is_available():
        old = engines(folder, cases, VLLM_USE_V2_MODEL_RUNNER="0")
        answers = engines(folder, cases | rows, VLLM_USE_V2_MODEL_RUNNER="1")
        answers |= {f"{name}, first runner": answer for name, answer in old.items()}
    else:
        answers = engines(folder, cases | rows)
    steps = answers.pop("rows")["steps"]
    references = {name: Reference(model, prompts) for name, model in models.items()}
    found = {
        name: references["unchanged" if name.startswith("unchanged") else "swiftkv"].compare(answer)
        for name, answer in answers.items()
    }
    passed, line, numbers = judge_answers(found, "unchanged")
    right, told, counted = judge_steps(steps)
    asynchronous = [answer.get("async_scheduling", False) for answer in answers.values()]
    passed &= right and (all(asynchronous) or not torch.cuda.is_available())
    line += f", with asynchronous scheduling in {sum(asynchronous)} of {len(asynchronous)} engines"
    return passed, f"{line}; {told}", numbers | counted


def judge_answers(found: dict[str, dict[str, float]], yardstick: str) -> Outcome:
    """Judge each run's differences from a reference (`Reference.compare`): no sure token differs, and log-probabilities do
    so little more than those of the run `yardstick`."""
    usual = found[yardstick]["rms"]
    worst = max(found, key=lambda name: (found[name]["tokens"], found[name]["rms"]))
    tokens, rms, largest = (found[worst][key] for key in ("tokens", "rms", "largest"))
    line = (f"{tokens:.0f} of {found[worst]['sure']:.0f} sure tokens differ in {worst!r}, log-probabilities by {rms:.4f} nat "
            f"(rms; {largest:.3f} at most), by {usual:.4f} in {yardstick!r}")  # fmt: skip
    return tokens == 0 and rms <= max(ROUNDING, NOISE * usual), line, found


def judge_steps(steps: list[dict[str, Any]]) -> Outcome:
    """Judge by step the rows of upper products: none where no prompt ends, else as many as requests that got a token, and
    at most one for a prompt that goes on, whose last row vLLM counts as well."""

    def right(one: dict[str, Any]) -> bool:
        rows, sampled = set(one["upper"]), one["sampled"]
        return bool(rows) and rows <= {sampled, sampled + 1} if sampled else not rows

    wrong = [one for one in steps if not right(one)]
    idle = sum(not one["sampled"] for one in steps)
    line = f"{len(steps)} steps, {idle} of them without an end of a prompt; upper rows wrong in {len(wrong)}"
    return not wrong and idle > 0, line, {"steps": steps}


def graphs_and_caches(sizes: Sizes, folder: Path) -> Outcome:
    """Compare graphs, prompts in chunks beside decoding, FP8 KV and AcrossKV with Hugging Face; count graphs and caches; start
    one engine twice, the second time from the cache of compiled code."""
    layers, prompts, graphs = sizes.small["num_hidden_layers"], make_prompts(sizes, 2 * sizes.lengths), sizes.graphs
    spec = half(sizes.small)
    across = SwiftKVSpec(layers, spec.num_key_value_layers, (layers - spec.num_key_value_layers) // 2)
    specs = {"plain": spec, "shared": across, "unchanged": None}
    plain, shared, unchanged = (make_model(folder / name, sizes.small, one) for name, one in specs.items())
    eager, served = {"enforce_eager": True}, {"enforce_eager": not graphs, "max_num_batched_tokens": 2048}
    cases = {"one step": case(plain, prompts, eager),
             "AcrossKV": case(shared, prompts, served | {"max_num_batched_tokens": 64})}  # fmt: skip
    if torch.cuda.is_available():
        fp8 = eager | {"kv_cache_dtype": "fp8"}
        cases |= {"unchanged, FP8": case(unchanged, prompts, fp8), "FP8": case(plain, prompts, fp8)}
    answers = engines(folder, cases)
    # As served: steps above the largest graph, and without a stated cache vLLM captures graphs to measure their memory, and
    # deletes them.
    served |= {"kv_cache_memory_bytes": None} if graphs else {}
    for name in ("first start", "second start"):
        cases[name] = case(plain, prompts, served)
        answers |= engines(folder, {name: cases[name]}, VLLM_CACHE_ROOT=str(folder / "cache"))
    references = {str(model): Reference(model, prompts) for model in (plain, shared, unchanged)}
    numbers: dict[str, Any] = {name: references[cases[name]["model"]].compare(one) for name, one in answers.items()}
    base = answers["one step"]["kv_cache_tokens"]
    heads = sizes.small["num_key_value_heads"]
    wanted = (1 - spec.kv_cache_reduction(heads)) / (1 - across.kv_cache_reduction(heads))
    capacity = {"AcrossKV": (answers["AcrossKV"]["kv_cache_tokens"] / base, wanted)}
    captured = {name: (answer["captured"], answer["sizes"]) for name, answer in answers.items()}
    starts = [{key: answers[name][key] for key in ("compiled", "loaded")} for name in ("first start", "second start")]
    judged = [
        judge_answers({name: one for name, one in numbers.items() if "FP8" not in name}, "one step")[:2],
        judge_graphs(captured),
    ]
    if graphs and torch.cuda.is_available():  # for processors vLLM saves compiled code, but fails to load it
        judged.append(judge_starts(*starts))
    if small := answers.get("FP8"):
        capacity["FP8"] = (small["kv_cache_tokens"] / base, 2.0)
        judged.append(judge_fp8(numbers["unchanged, FP8"], numbers["FP8"]))
    judged.append(judge_capacity(capacity))
    numbers |= {"captured": captured, "capacity": capacity, "starts": starts}
    return all(passed for passed, _ in judged), "; ".join(line for _, line in judged), numbers


def judge_fp8(unchanged: dict[str, float], swiftkv: dict[str, float]) -> tuple[bool, str]:
    """Judge differences from a reference without FP8 by those of the unchanged model: FP8 alone moves log-probabilities of a
    random model of 20 layers by 0.07 to 0.1 nat (rms, simulated), so tokens that are sure in bfloat16 may differ."""
    line = f"FP8 {swiftkv['rms']:.3f} nat rms, unchanged model {unchanged['rms']:.3f}"
    return swiftkv["rms"] <= NOISE * unchanged["rms"], line


def judge_starts(first: dict[str, int], second: dict[str, int]) -> tuple[bool, str]:
    """Judge that a second start compiles nothing, and loads each part that the first compiled."""
    good = first["compiled"] > 0 and second == {"compiled": 0, "loaded": first["compiled"]}
    return good, f"{first['compiled']} parts compiled, {second['loaded']} loaded by the second start"


def judge_graphs(captured: dict[str, tuple[list[int], list[int]]]) -> tuple[bool, str]:
    """Judge by run the upper half's graphs after the start: all of vLLM's sizes, and no other."""
    stale = {name for name, (own, sizes) in captured.items() if own != sizes}
    count = max(len(sizes) for _, sizes in captured.values())
    return not stale, f"{count} graphs of the upper half" + (f", not vLLM's in {', '.join(stale)}" if stale else "")


def judge_capacity(capacity: dict[str, tuple[float, float]]) -> tuple[bool, str]:
    """Judge by cache its measured and expected tokens, relative to SingleInputKV's: within 3 %."""
    words = [f"{name} cache x {measured:.2f} (x {wanted:.2f})" for name, (measured, wanted) in capacity.items()]
    return all(abs(measured / wanted - 1) <= 0.03 for measured, wanted in capacity.values()), ", ".join(words)


def ways_to_start(sizes: Sizes, folder: Path) -> Outcome:
    """Compare an engine that Python forks and `vllm serve`, which spawns its own and answers one HTTP request and refuses
    another, with Hugging Face."""
    model, prompts = make_model(folder / "model", sizes.small, half(sizes.small)), make_prompts(sizes)
    one = case(model, prompts, {"enforce_eager": True}, apart=True)
    answers = engines(folder, {"forked": one}, VLLM_WORKER_MULTIPROC_METHOD="fork")
    words = (
        f"--dtype {one['engine']['dtype']} --enforce-eager --max-model-len 1024 --kv-cache-memory-bytes {2**28}".split()
    )
    command = module("vllm.entrypoints.cli.main", "serve", str(model), *words)
    with serving(command, "model", folder / "vllm-serve.log", os.environ, 300) as server:
        choices = complete(server, prompt=prompts, max_tokens=OUTPUT, logprobs=0)["choices"]
        try:
            complete(server, prompt=prompts[0], max_tokens=1, prompt_logprobs=0)
            refused = False
        except urllib.error.HTTPError as error:
            refused = error.code == 400
    answers["served"] = {
        "tokens": [choice["token_ids"] for choice in choices],
        "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
    }
    reference = Reference(model, prompts)
    passed, line, found = judge_answers({name: reference.compare(one) for name, one in answers.items()}, "forked")
    return passed and refused, f"{line}; prompt_logprobs {'refused' if refused else 'not refused'}", found


def complete(server: Server, **body: Any) -> dict[str, Any]:
    """Ask a server for greedy completions; return its JSON."""
    body |= {"model": "model", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def fp8_weights(sizes: Sizes, folder: Path) -> Outcome:
    """Compare FP8 weights with Hugging Face's in 16 bits."""
    found = beside_unchanged(sizes, folder, {"quantization": "fp8"})
    return *judge_fp8(found["unchanged"], found["swiftkv"]), found


def two_gpus(sizes: Sizes, folder: Path) -> Outcome:
    """Compare engines of two ranks with Hugging Face."""
    return judge_answers(beside_unchanged(sizes, folder, {"tensor_parallel_size": 2}, apart=True), "unchanged")


def beside_unchanged(sizes: Sizes, folder: Path, settings: dict[str, Any], **how: bool) -> dict[str, dict[str, float]]:
    """Compare an eager engine of the unchanged model and one of a SwiftKV model, with graphs if the machine has them, with
    Hugging Face."""
    prompts, found = make_prompts(sizes), {}
    for name, spec in {"unchanged": None, "swiftkv": half(sizes.small)}.items():
        model = make_model(folder / name, sizes.small, spec)
        eager = {"enforce_eager": spec is None or not sizes.graphs}
        answers = engines(folder, {name: case(model, prompts, settings | eager, **how)})
        found[name] = Reference(model, prompts).compare(answers[name])
    return found
