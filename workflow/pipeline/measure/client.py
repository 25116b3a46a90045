"""Prompts as token ids, and vLLM's own benchmark client, sent such prompts.

`vllm bench serve` makes its prompts as text. What it calls, `vllm.benchmarks.serve.benchmark`, sends a list of token ids
as it is, and vLLM's completions endpoint takes it. So the time to first token holds no tokenizing, as in Appendix B.2, and
arrivals, requests and statistics are vLLM's. The arguments given here are all in vLLM 0.26 to 0.32.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.measure.engine import EngineFailure
from swiftkv.chats import check_refusals, choose_chats, tokenize_chat
from swiftkv.errors import UserError

_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
# Special tokens stand at either end of a vocabulary: Llama-2's and SmolLM's first, Llama-3's last.
MARGIN = 1000
FORM = re.compile(r"(Title: .*)\n(Background: .*)\n(Question: .*)", re.DOTALL)
INSTRUCTION = "Answer with a few words of the text."


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids below `vocabulary`, without those at either end of it."""
    margin = min(MARGIN, vocabulary // 4)
    source = random.Random(seed)
    ids = range(margin, vocabulary - margin)
    return [source.choices(ids, k=length) for _ in range(count)]


def chat_prompts(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[list[int]]:
    """Token ids of the opening user messages of all chats that fit into `longest` tokens, in drawn order.

    Args:
        folder: the model, with its tokenizer.
        heldout: chats, as `swiftkv.chats.read_chats` reads them.

    Raises:
        UserError: no chat is that short, or the chat template refuses more than 1 % of them.
    """
    tokenizer = load_tokenizer(folder)
    prompts, chats, refusals = [], choose_chats(heldout, 10**9, seed), []
    for chat in chats:
        if chat["messages"][0]["role"] == "user":
            try:
                ids = opening(tokenizer, chat["messages"][0])
            except UserError as error:
                refusals.append(f"chat {chat.get('id')}: {error}")
                continue
            if len(ids) <= longest:
                prompts.append(ids)
    check_refusals(refusals, len(chats))
    if not prompts:
        raise UserError(f"{heldout} has no chat whose opening fits into {longest} tokens")
    return prompts


def load_tokenizer(folder: str | Path) -> Any:
    """Return the tokenizer of a checkpoint; transformers warns of one whose classes it does not know."""
    from transformers import AutoTokenizer

    import swiftkv.models  # noqa: F401 - registers SwiftKV's classes; late, as planning imports this module without torch

    return AutoTokenizer.from_pretrained(folder)


def opening(tokenizer: Any, message: dict[str, str]) -> list[int]:
    """Token ids of a chat that begins with `message` and waits for the answer."""
    return tokenize_chat(tokenizer, [message], add_generation_prompt=True)


def choose_questions(chats: Path, items: int, seed: int) -> list[list[str]]:
    """Draw questions of SQuAD: title, passage, question, and each accepted answer.

    Args:
        chats: the questions as chats, with accepted answers on lines of their own.
        items, seed: as `choose_chats` draws them.

    Raises:
        UserError: the file is missing or damaged, or a question is not of the form `FORM`, or has no answer.
    """
    found = []
    for asked, *rest in (chat["messages"] for chat in choose_chats(chats, items, seed)):
        if not (rest and (form := FORM.fullmatch(asked["content"]))):
            raise UserError(f"every question of {chats} must have Title, Background and Question, and an answer")
        answers = rest[0]
        found.append([*form.groups(), *answers["content"].split("\n")])
    return found


def ask(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Token ids of texts with a question after them, in the chat template."""
    return opening(tokenizer, {"role": "user", "content": "\n".join([*texts, INSTRUCTION])})


def measure_rate(
    url: str, name: str, folder: Path, prompts: Sequence[list[int]], output: int, rate: float, seed: int, forced: bool
) -> dict[str, Any]:
    """Send requests to a server, with Poisson arrivals; greedy decoding, one request to warm up.

    Args:
        url: of the server, which knows the model as `name`.
        folder: the model, with its tokenizer.
        prompts: token ids of each request.
        output: tokens of each answer at most.
        rate: requests a second.
        seed: of the arrivals.
        forced: whether every answer has so many tokens, end of sequence or not.

    Returns:
        request_rate, requests, completed, failed, achieved_request_rate, tokens_per_second, input_tokens, output_tokens,
        seconds (from the first arrival to the last token), ttft_ms, tpot_ms, itl_ms and e2e_ms (each with mean, median, p99);
        with speculation acceptance_rate (percent) and acceptance_length.

    Raises:
        EngineFailure: no request succeeded.
    """
    import numpy as np
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    def sample(prompt: Any) -> SampleRequest:  # vLLM 0.26 and 0.27 take token ids too, and do not say so
        return SampleRequest(prompt=prompt, prompt_len=len(prompt), expected_output_len=output)

    random.seed(seed)
    np.random.seed(seed)  # arrivals are drawn from it

    report = asyncio.run(
        benchmark(
            task_type=TaskType.GENERATION,
            endpoint_type="openai",
            api_url=f"{url}/v1/completions",
            base_url=url,
            model_id=str(folder),
            model_name=name,
            tokenizer=load_tokenizer(folder),  # vLLM 0.26 reports no latencies without one
            input_requests=list(map(sample, prompts)),
            logprobs=None,
            request_rate=rate,
            burstiness=1.0,  # Poisson
            disable_tqdm=True,
            num_warmups=1,
            ready_check_timeout_sec=0,
            profile=False,
            selected_percentile_metrics=list(_METRICS.values()),
            selected_percentiles=[99.0],
            ignore_eos=forced,
            goodput_config_dict={},
            max_concurrency=None,
            lora_modules=None,
            extra_headers=None,
            extra_body={"temperature": 0.0},
        )
    )
    return rate_result(report, rate, len(prompts))


def rate_result(report: dict[str, Any], rate: float, requests: int) -> dict[str, Any]:
    """The numbers of vLLM's report, as `measure_rate` returns them."""
    if not report["completed"]:
        error = " ".join(filter(None, report["errors"])).strip().splitlines()[-1:]
        raise EngineFailure(f"not one request succeeded at {rate:g} requests a second: {''.join(error)}")
    result = {
        "request_rate": rate,
        "requests": requests,
        "completed": report["completed"],
        "failed": requests - report["completed"],
        "achieved_request_rate": report["request_throughput"],
        "tokens_per_second": report["total_token_throughput"],
        "input_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "seconds": report["duration"],
    }
    for ours, theirs in _METRICS.items():  # numpy's numbers, which JSON does not have
        result[f"{ours}_ms"] = {
            statistic: float(report[f"{statistic}_{theirs}_ms"]) for statistic in ("mean", "median", "p99")
        }
    if "spec_decode_acceptance_rate" in report:
        result["acceptance_rate"] = report["spec_decode_acceptance_rate"]
        result["acceptance_length"] = report["spec_decode_acceptance_length"]
    return result
