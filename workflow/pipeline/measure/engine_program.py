"""One vLLM engine in a process of its own; `python -m pipeline.measure.engine_program ENGINE-ARGUMENTS SOCKET` runs it.

It does jobs, each a dictionary whose `do` names one of the functions below. Prompts are token ids, made before
the clock starts: random ones, and outputs have a forced length, but where one prompt is answered. Sampling is greedy.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.measure.client import random_prompts
from pipeline.measure.worker import answer

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams, TokensPrompt


def ready(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Nothing: the engine is up."""
    return {}


def forget(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Empty the prefix cache: what comes next finds nothing of what was before."""
    if not llm.reset_prefix_cache():
        raise RuntimeError("the prefix cache cannot be emptied: requests are under way")
    return {}


def forward(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Time one prompt of `input` tokens, one token out, `repeats` times; the loop of `vllm bench latency`."""
    (prompt,) = _prompts(llm, 1, job)
    parameters, seconds = _forced(1), []
    llm.generate(prompt, parameters, use_tqdm=False)  # kernels are chosen and memory is taken in the first pass
    for _ in range(job["repeats"]):
        start = time.perf_counter()
        llm.generate(prompt, parameters, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def throughput(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Send `prompts` requests of `input` tokens all at once, `output` tokens each."""
    prompts, parameters = _prompts(llm, job["prompts"], job), _forced(job["output"])
    start = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - start
    _check_lengths([len(output.outputs[0].token_ids) for output in outputs], job["output"])
    return {"seconds": seconds, "tokens": job["prompts"] * (job["input"] + job["output"])}


def decode(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Time the steps that only decode, with the whole batch of `batch` requests.

    They lie between the moment when all requests have their first token and the one when the first has its last.
    """
    engine = llm.llm_engine
    for prompt in _prompts(llm, job["batch"], job):
        engine.add_request(uuid.uuid4().hex, prompt, _forced(job["output"]))
    begin = first = result = None
    counts: dict[str, int] = {}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        counts |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if begin is None and len(counts) == job["batch"] and min(counts.values()) > 0:
            begin, first = now, dict(counts)
        elif begin is not None and result is None and max(counts.values()) == job["output"]:
            steps = {counts[name] - first[name] for name in counts}
            # Also zero steps: the first request ended before the last one began.
            if len(steps) != 1 or steps == {0}:
                raise RuntimeError(f"no steps with the whole batch: requests advanced by {sorted(steps)} tokens")
            result = {"seconds": now - begin, "steps": steps.pop()}
    _check_lengths(list(counts.values()), job["output"])
    if result is None:
        raise RuntimeError("no steps with the whole batch: ask for more output tokens")
    return result


def reply(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Answer `prompt`, token ids, with at most `output` tokens, and time the first token and all of them.

    The answer ends with one of the tokens `stop`, which belongs to it.
    """
    from vllm import SamplingParams

    engine = llm.llm_engine
    parameters = SamplingParams(temperature=0.0, max_tokens=job["output"], stop_token_ids=job["stop"], detokenize=False)
    start = time.perf_counter()
    engine.add_request(uuid.uuid4().hex, {"prompt_token_ids": job["prompt"]}, parameters)
    ids, first = [], None
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids = list(output.outputs[0].token_ids)
        if ids and first is None:
            first = time.perf_counter() - start
    return {"tokens": ids, "first_token_seconds": first, "seconds": time.perf_counter() - start}


JOBS = {function.__name__: function for function in (ready, forget, forward, throughput, decode, reply)}


def _prompts(llm: LLM, count: int, job: dict[str, Any]) -> list[TokensPrompt]:
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    return [{"prompt_token_ids": ids} for ids in random_prompts(count, job["input"], vocabulary, job["seed"])]


def _forced(tokens: int) -> SamplingParams:
    """Greedy sampling of exactly so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def _check_lengths(lengths: Sequence[int], expected: int) -> None:
    """Refuse a measurement in which a request came back shorter than asked for."""
    if set(lengths) != {expected}:
        raise RuntimeError(f"outputs of {sorted(set(lengths))} tokens where {expected} were asked for")


def main(arguments: Sequence[str]) -> None:
    """Start the engine with vLLM's own arguments, then answer; each answer also says how long vLLM's start took."""
    *words, address = arguments
    from vllm import LLM, EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
    begin = time.perf_counter()
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(options))
    started = {"engine_seconds": time.perf_counter() - begin}
    answer(address, lambda job: JOBS[job["do"]](llm, job) | started)


if __name__ == "__main__":
    main(sys.argv[1:])
