"""Run vLLM engines one after another and report their answers, KV caches, CUDA graphs and the rows of their steps.

    python performance/gpu_engine.py cases.json answers.json

Each case has `model` (a folder), `engine` (arguments of `vllm.LLM`), `prompts` (token ids), `max_tokens`, and `steps`: whether
to note each step's rows, for which it has to run eagerly.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model stays in this process, where it can be looked into

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import cleanup_dist_env_and_memory

ENGINE = {"enable_prefix_caching": False, "max_model_len": 1024, "max_num_seqs": 32, "kv_cache_memory_bytes": 2**28,
          "skip_tokenizer_init": True}  # fmt: skip


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Start the engine of a case, run it and end it; return what `answer` does."""
    # With asynchronous scheduling, vLLM's default on GPUs, an answer comes a step after its rows, so steps are counted without.
    counted = {"async_scheduling": False} if case.get("steps") else {}
    llm = LLM(case["model"], **ENGINE | counted | case["engine"])
    result = answer(llm, case)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return result


def answer(llm: LLM, case: dict[str, Any]) -> dict[str, Any]:
    """Have an engine answer.

    Returns:
        tokens and logprobs of each greedy answer; kv_cache_tokens; async_scheduling; `captured`, the sizes of the upper half's
        graphs, and `sizes`, those of vLLM's; steps, see `note_steps`.
    """
    config = llm.llm_engine.vllm_config
    decoder = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model.model
    graphs, swiftkv = config.compilation_config, hasattr(decoder, "spec")
    piecewise = graphs.cudagraph_mode.has_piecewise_cudagraphs()
    result: dict[str, Any] = {
        "kv_cache_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "captured": sorted(descriptor.num_tokens for descriptor in decoder.graphs.captured) if swiftkv else [],
        "sizes": sorted(graphs.cudagraph_capture_sizes or []) if swiftkv and piecewise else [],
    }
    sampling = SamplingParams(
        temperature=0, logprobs=0, ignore_eos=True, detokenize=False, max_tokens=case["max_tokens"]
    )
    prompts = [TokensPrompt(prompt_token_ids=ids) for ids in case["prompts"]]
    if case.get("steps"):
        result["steps"] = note_steps(llm, decoder, prompts, sampling)
        return result
    answers = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
    result["tokens"] = [list(answer.token_ids) for answer in answers]
    result["logprobs"] = [
        [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
        for answer in answers
    ]
    return result


def note_steps(llm: LLM, decoder: Any, prompts: list[TokensPrompt], sampling: SamplingParams) -> list[dict[str, Any]]:
    """Send the prompts one step apart; note the rows of each step's products.

    Returns:
        A dictionary a step: `lower` and `upper`, the rows of each output projection below l and from l on, and `sampled`,
        the requests that got a token.
    """
    engine, steps = llm.llm_engine, []
    for number, layer in enumerate(decoder.layers):
        half = "lower" if number < decoder.spec.num_key_value_layers else "upper"
        layer.self_attn.o_proj.register_forward_hook(
            lambda module, inputs, output, half=half: steps[-1][half].append(inputs[0].size(0))
        )
    waiting = list(enumerate(prompts))
    while waiting or engine.has_unfinished_requests():
        if waiting:
            number, prompt = waiting.pop(0)
            engine.add_request(str(number), prompt, sampling)
        steps.append({"lower": [], "upper": []})
        steps[-1]["sampled"] = len(engine.step())
    return steps


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps([run(case) for case in cases]), encoding="utf-8")
