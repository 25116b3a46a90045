"""Run vLLM engines one after another and report what they answered; a process of its own, so that nothing leaks.

    python tests/serve/generate.py cases.json answers.json

A case is {"model": folder, "engine": arguments of vllm.LLM, "runs": [{"prompts": [[token id, ...], ...],
arguments of `run`}, ...], "pretend": that this is a "sleeping platform", which has vLLM's sleep mode, that attention
"reads on host" where rows start, that vLLM "expands" temperatures to drafts, or that there are "suffix trees"}. Its answer
is {"error": sentence} if the engine did not start, else what `report` and `run` return. Runs of a case share the engine and
its prefix cache.
"""

import contextlib
import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

# The engine in this process: its model can be looked into, and its errors arrive as they are.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import drafters
import torch
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.inputs import EmbedsPrompt
from vllm.platforms import current_platform
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

from swiftkv.serve import refusals

DEFAULTS = dict(
    dtype="float32",
    enforce_eager=True,
    max_model_len=512,
    max_num_seqs=32,
    enable_prefix_caching=False,
    kv_cache_memory_bytes=2**26,
    disable_log_stats=False,
)


STEPS: list[dict] = []  # of all SwiftKV models of this process: how many tokens, and positions that the upper half ran


def note_steps(llm: LLM) -> None:
    """Note them from now on, where the engine's model is in this process."""
    if not hasattr(llm.llm_engine, "model_executor") or llm.llm_engine.vllm_config.parallel_config.world_size > 1:
        return
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model.model
    if getattr(model, "caches", None) is None:
        return
    write, upper = model.caches.write, model.graphs.upper

    def noted_write(keys: torch.Tensor, values: torch.Tensor) -> None:  # after the lower half
        STEPS.append({"tokens": keys.size(0), "upper": []})
        write(keys, values)

    def noted_upper(positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        STEPS[-1]["upper"] += positions.tolist()
        return upper(positions, hidden_states)

    model.caches.write, model.graphs.upper = noted_write, noted_upper


def answer(case: dict) -> dict:
    """One case from start to stop of its engine."""
    gc.freeze()  # each of vLLM's collections would look at all that its libraries hold
    pretended = {
        "sleeping platform": patch.object(type(current_platform), "is_sleep_mode_available", lambda self: True),
        "reads on host": patch.object(refusals, "DEVICE_STARTS", set()),
        "expands": patch("vllm.utils.cpu_triton_utils._expand_kernel_impl", expand),
        "suffix trees": patch.dict(
            sys.modules, {"arctic_inference": drafters, "arctic_inference.suffix_decoding": drafters}
        ),
    }
    try:
        with pretended.get(case.get("pretend"), contextlib.nullcontext()):
            llm = LLM(case["model"], **DEFAULTS | case.get("engine", {}))
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    note_steps(llm)
    try:
        result = report(llm)
        result["runs"] = [run(llm, **arguments) for arguments in case.get("runs", [])]
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    return result


def expand(output, values, ends, replaced, by, MAX_NUM_TOKENS=None):
    """What vLLM's kernel for processors leaves in a copy of `output`: each request's value, once for each of its drafts."""
    values = values.masked_fill(values == replaced, by)
    output.copy_(values.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)).long()))


def report(llm: LLM) -> dict:
    """The engine's settings, its KV cache, and (in this process only) what the model holds."""
    config = llm.llm_engine.vllm_config
    result = {
        "fast_prefill": config.cache_config.kv_sharing_fast_prefill,
        "kv_cache_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        "reported_tokens": config.cache_config.kv_cache_size_tokens,
        "compilation": config.compilation_config.mode.name,
    }
    if config.parallel_config.world_size == 1 and hasattr(llm.llm_engine, "model_executor"):
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        result["parameters"] = {name: list(p.shape) for name, p in runner.model.named_parameters()}
        storages = {cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes() for cache in runner.kv_caches}
        result["kv_cache_bytes"] = sum(storages.values())
    return result


def run(
    llm: LLM,
    prompts: list[list[int]],
    max_tokens: int = 12,
    embedded: bool = False,
    each: Sequence[dict] = ({},),
    **settings: Any,
) -> dict:
    """Answers of one call, greedy unless `settings` of vLLM's sampling, or those of `each` prompt, say otherwise; or its error.

    Prompts are token ids, or `embedded`; settings may be "structured" by a grammar, or "beam_width". Drafts and preemptions
    are counted from the engine's start, see STEPS for steps.
    """
    given: list = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
    if embedded:
        model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
        given = [EmbedsPrompt(prompt_embeds=model.embed_input_ids(torch.tensor(ids))) for ids in prompts]
    if "beam_width" in settings:
        beams = llm.beam_search(given, BeamSearchParams(max_tokens=max_tokens, **settings))
        found = [(ids, answer.sequences) for ids, answer in zip(prompts, beams, strict=True)]
        return {"all_tokens": [[beam.tokens[len(ids) :] for beam in answers] for ids, answers in found]}
    greedy = {"temperature": 0, "logprobs": 0, "ignore_eos": True}
    asked = [greedy | settings | own for own in each]
    for one in asked:
        if "structured" in one:
            one["structured_outputs"] = StructuredOutputsParams(**one.pop("structured"))
    before = len(STEPS)
    try:
        sampling = [SamplingParams.from_optional(**one, max_tokens=max_tokens) for one in asked]
        outputs = llm.generate(given, sampling if len(each) > 1 else sampling[0], use_tqdm=False)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    firsts, metrics = [output.outputs[0] for output in outputs], llm.get_metrics()
    return {
        "tokens": [list(first.token_ids) for first in firsts],
        "logprobs": [chosen(first.token_ids, first.logprobs) for first in firsts],
        "all_tokens": [[list(answer.token_ids) for answer in output.outputs] for output in outputs],
        "texts": [[answer.text for answer in output.outputs] for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "prompt_logprobs": [
            chosen(ids, output.prompt_logprobs or []) for ids, output in zip(prompts, outputs, strict=True)
        ],
        "accepted_drafts": sum(m.value for m in metrics if m.name == "vllm:spec_decode_num_accepted_tokens"),
        "preemptions": sum(m.value for m in metrics if m.name == "vllm:num_preemptions"),
        "steps": STEPS[before:],
    }


def chosen(ids: list[int], steps: list) -> list[float | None]:
    return [None if step is None else step[token].logprob for token, step in zip(ids, steps, strict=False)]


if __name__ == "__main__":
    cases, place = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    place.write_text(json.dumps([answer(case) for case in cases]))
