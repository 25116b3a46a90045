"""One vLLM engine in a process of its own; `python -m pipeline.measure.engine_program ENGINE-ARGUMENTS PIPE` runs it.

It does jobs, each a dictionary whose `do` names one of the functions below. Prompts are token ids, made before
the clock starts: random ones, and outputs have a forced length, but where questions are answered. Sampling is greedy.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.engines.worker import answer
from pipeline.prompts import random_prompts

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams, TokensPrompt

# Seconds by which the kernel's counts of a job may be off: two ticks, which are much of a step of a few tokens
TICKS = 0.02


def ready(llm: LLM, job: dict[str, Any]) -> None:
    """Do nothing: the engine is up."""


def throughput(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Send `prompts` requests of `input` tokens all at once, `output` tokens each.

    Returns:
        seconds: until all have ended.
        decode_only_seconds: of these, after all requests have their first token, so that no prompt is left.
    """
    prompts, lengths, first = _prompts(llm, job["prompts"], job), [0], None
    start = time.perf_counter()
    for now, ids in _steps(llm, prompts, _greedy(job["output"], ignore_eos=True)):
        lengths = list(map(len, ids))
        if first is None and len(lengths) == job["prompts"]:
            first = now
    if set(lengths) != {job["output"]}:
        raise RuntimeError(f"outputs of {sorted(set(lengths))} tokens where {job['output']} were asked for")
    return {"seconds": now - start, "decode_only_seconds": now - first}


def decode(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Time the steps that only decode, with the whole batch of `batch` requests.

    They lie between the moment when all requests have their first token and the one when the first has its last.
    """
    begin = end = None
    for now, ids in _steps(llm, _prompts(llm, job["batch"], job), _greedy(job["output"], ignore_eos=True)):
        counts = list(map(len, ids))
        if begin is None and len(counts) == job["batch"]:
            begin = now, counts
        elif begin is not None and end is None and max(counts) == job["output"]:
            end = now, counts
    steps = {after - before for before, after in zip(begin[1], end[1], strict=True)} if begin and end else {0}
    # Also zero steps: the first request ended before the last one began.
    if len(steps) != 1 or steps == {0}:
        raise RuntimeError(
            f"no steps with the whole batch: requests advanced by {sorted(steps)} tokens; ask for more output"
        )
    return {"seconds": end[0] - begin[0], "steps": steps.pop()}


def reply(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Answer `prompts`, token ids, at once with at most `output` tokens each, and time the first token.

    An answer ends with one of the tokens `stop`, which belongs to it.
    """
    prompts: list[TokensPrompt] = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    start = time.perf_counter()
    first = None
    for now, ids in _steps(llm, prompts, _greedy(job["output"], stop_token_ids=job["stop"])):
        if first is None and ids:
            first = now - start
    return {"tokens": ids, "first_token_seconds": first}


JOBS = {function.__name__: function for function in (ready, throughput, decode, reply)}


def on_gpus(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job."""
    return JOBS[job["do"]](llm, job) or {}


def on_processor(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job on the processor, where vLLM computes in this process, and add the processor seconds that went to it.

    Returns:
        cpu_seconds: of this process, over all threads.
        other_cores: mean number of cores that other programs kept busy meanwhile.
    """
    import psutil

    def read() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle = times.idle + times.iowait + times.guest + times.guest_nice  # guests are counted among users, too
        return time.monotonic(), sum(times) - idle, time.process_time()

    before = read()
    answer = on_gpus(llm, job)
    seconds, busy, own = (after - first for first, after in zip(before, read(), strict=True))
    return answer | {"cpu_seconds": own, "other_cores": max(0.0, busy - own - TICKS) / max(seconds, 1e-9)}


def _steps(
    llm: LLM, prompts: Iterable[TokensPrompt], parameters: SamplingParams
) -> Iterator[tuple[float, list[list[int]]]]:
    """Run requests to their ends; after each step, yield the time and the ids so far of those that have any, in order."""
    engine, ids = llm.llm_engine, dict[str, list[int]]()
    for prompt in prompts:
        name = uuid.uuid4().hex
        ids[name] = []
        engine.add_request(name, prompt, parameters)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            if tokens := output.outputs[0].token_ids:
                ids[output.request_id] = tokens
        yield now, [tokens for tokens in ids.values() if tokens]


def _prompts(llm: LLM, count: int, job: dict[str, Any]) -> list[TokensPrompt]:
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    return [{"prompt_token_ids": ids} for ids in random_prompts(count, job["input"], vocabulary, job["seed"])]


def _greedy(tokens: int, **how: Any) -> SamplingParams:
    """Greedy sampling of at most so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, detokenize=False, **how)


def main(arguments: Sequence[str]) -> None:
    """Start the engine with vLLM's own arguments, then do jobs."""
    *words, pipe = arguments
    from vllm import LLM, EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(options))
    do = on_processor if current_platform.is_cpu() else on_gpus
    answer(pipe, lambda job: do(llm, job))


if __name__ == "__main__":
    main(sys.argv[1:])
