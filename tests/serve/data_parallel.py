"""Answer prompts with vLLM's own data parallelism, two engines in processes of their own.

    python tests/serve/data_parallel.py cases.json answers.json

The cases are those of `generate.py`, each with one run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from vllm import AsyncEngineArgs, SamplingParams, TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot


async def main(model: str, engine: dict, prompts: list[list[int]]) -> dict:
    """Greedy answers as `generate.run` gives them, and how many requests each engine finished."""
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model, data_parallel_size=2, **engine))
    settings = SamplingParams(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True)

    async def ask(number: int, ids: list[int]):
        async for output in llm.generate(TokensPrompt(prompt_token_ids=ids), settings, str(number)):
            last = output
        return last.outputs[0]

    try:
        outputs = await asyncio.gather(*(ask(number, ids) for number, ids in enumerate(prompts)))
        finished = {"0": 0, "1": 0}
        for metric in get_metrics_snapshot():
            if metric.name == "vllm:request_success":
                finished[metric.labels["engine"]] += metric.value
    finally:
        llm.shutdown()
    return {
        "tokens": [list(o.token_ids) for o in outputs],
        "logprobs": [[step[t].logprob for t, step in zip(o.token_ids, o.logprobs, strict=True)] for o in outputs],
        "finished": finished,
    }


if __name__ == "__main__":
    cases, place = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    answers = [asyncio.run(main(case["model"], case["engine"], case["runs"][0]["prompts"])) for case in cases]
    place.write_text(json.dumps(answers))
