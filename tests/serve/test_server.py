"""A real `vllm serve` with prefix caching and speculation: OpenAI clients good and bad, then a soak of short requests."""

import asyncio
import random

import openai
import pytest
import torch
from tests.serve.conftest import MARGIN, reference
from tests.serve.server import CACHED_AND_SPECULATING, LENGTH, NAME, ask, client, serving

from swiftkv.models import load_any

pytestmark = pytest.mark.thorough

LONGEST = 40  # tokens of an answer
# Number of the request among the 200: its bad arguments. vLLM's own fast prefill ends the server on the last two.
REFUSED = {
    77: {"temperature": -1},
    98: {"extra": {"prompt_logprobs": 1}},
    99: {"extra": {"prompt_logprobs": 0}},
    100: {"echo": True, "logprobs": 0},
}
# The worker of any model grows until it has met most sizes of a step, so the first requests are a warm-up.
WARM_UP, REQUESTS, AT_ONCE = 2000, 4000, 64
SHORT = 8  # tokens of an answer
# MiB, thus 50 KiB a request: what the worker's allocator adds by itself was 51 to 53 MiB.
GROWTH = 200


@pytest.fixture(scope="module")
def folder(checkpoint):
    """Few possible answers recur, so drafts are made, accepted and rejected."""
    return checkpoint("llama", 4, 4, answers=24)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    with serving(folder, tmp_path_factory.mktemp("server"), *CACHED_AND_SPECULATING) as server:
        yield server


async def cancel(asker, prompt, seconds=None):
    """Ask for many tokens and go away after the first, or after so many seconds.

    Greedy as all others: vLLM 0.32 on a processor gives greedy requests wrong tokens while another of the batch samples and
    drafts are checked, whatever the model (vllm-project/vllm, pull request 42638, was closed).
    """
    arguments = {"max_tokens": LENGTH - len(prompt) - 1, "temperature": 0, "extra_body": {"ignore_eos": True}}
    stream = await asker.completions.create(model=NAME, prompt=prompt, stream=True, **arguments)
    await (anext(aiter(stream)) if seconds is None else asyncio.sleep(seconds))
    await stream.close()
    return "cancelled"


async def traffic(server, prompts):
    """Answers of the 20 prompts one at a time, then of 200 requests at once, then of the 20 again."""
    async with client(server) as asker:
        before = [await ask(asker, prompt, LONGEST) for prompt in prompts]
        too_long = prompts[0] + [7] * LENGTH
        together = []
        for number in range(200):
            prompt = prompts[number % 20]
            if number % 20 == 3:
                together.append(cancel(asker, prompt, 0.02 * number))
            elif number % 25 == 4:
                together.append(ask(asker, too_long))
            elif number in REFUSED:
                together.append(ask(asker, prompt, **REFUSED[number]))
            else:
                together.append(ask(asker, prompt, max_tokens=1 + number % LONGEST))
        together = await asyncio.gather(*together)
        return before, together, [await ask(asker, prompt, LONGEST) for prompt in prompts]


def greedy(model, prompts, answers):
    """The prompts and answers whose tokens no rounding can turn; all others are Hugging Face's, too."""
    sure = []
    for prompt, tokens in zip(prompts, answers, strict=True):
        expected, margin, _ = reference(model, prompt, tokens)
        if margin > MARGIN:
            assert tokens == expected
            sure.append((prompt, tokens))
    return sure


def test_good_and_bad_requests_at_once(server, folder, prompts):
    before, together, after = asyncio.run(traffic(server, prompts))
    assert server.process.poll() is None, server.log.read_text()[-4000:]
    assert before == after
    assert len(greedy(load_any(folder, torch.float32), prompts, before)) == len(prompts)

    good = {number: answer for number, answer in enumerate(together) if isinstance(answer, list)}
    assert len(good) == 200 - 10 - 8 - len(REFUSED) and together.count("cancelled") == 10
    for number, tokens in good.items():
        assert tokens == before[number % 20][: 1 + number % LONGEST]

    errors = {number: answer for number, answer in enumerate(together) if isinstance(answer, openai.APIError)}
    assert all(isinstance(error, openai.BadRequestError) for error in errors.values())
    assert "temperature" in errors.pop(77).message
    assert "prompt logprobs" in errors.pop(98).message  # vLLM's own sentence
    for number in (99, 100):
        assert "prompt_logprobs" in errors[number].message and "swiftkv_full_depth" in errors.pop(number).message
    assert len(errors) == 8 and all(str(LENGTH) in error.message for error in errors.values())
    server.assert_idle()


def short(prompts, number):
    """Prompts of 16 to 96 tokens that begin like one chat and end like another, so that blocks recur and are evicted."""
    chance = random.Random(0)
    made = []
    for _ in range(number):
        start, end = chance.sample(prompts, 2)
        made.append(start[: chance.randint(8, 64)] + end[-chance.randint(8, 32) :])
    return made


async def alone(server, pool):
    """Answers of the prompts one at a time."""
    async with client(server) as asker:
        return [await ask(asker, prompt, SHORT) for prompt in pool]


async def soak(server, known, requests):
    """Wrong answers to so many requests; `known` are prompts and their answers."""
    wrong, numbers = [], iter(range(requests))
    async with client(server) as asker:

        async def work():
            for number in numbers:
                prompt, right = random.Random(number).choice(known)
                tokens = 1 + number % SHORT
                if number % 20 == 7:
                    await cancel(asker, prompt)
                elif (answer := await ask(asker, prompt, tokens)) != right[:tokens]:
                    wrong.append((number, answer))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return wrong


@pytest.mark.slow
def test_thousands_of_short_requests(server, folder, prompts, capsys):
    processes = {process.pid for process in server.family()}
    pool = short(prompts, 100)
    known = greedy(load_any(folder, torch.float32), pool, asyncio.run(alone(server, pool)))
    assert len(known) > 75
    assert not asyncio.run(soak(server, known, WARM_UP))
    before = server.memory() / 2**20
    assert not asyncio.run(soak(server, known, REQUESTS))
    after = server.memory() / 2**20
    with capsys.disabled():
        print(f"\n{REQUESTS} requests after {WARM_UP}: from {before:.0f} to {after:.0f} MiB")
    assert after - before < GROWTH
    assert {process.pid for process in server.family()} == processes
    server.assert_idle()


def test_caching_and_speculation_took_part_and_no_process_is_left(server):
    assert server.metric("vllm:prefix_cache_hits_total") > 0
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 100 < accepted < server.metric("vllm:spec_decode_num_draft_tokens_total") - 100
    assert server.healthy() and len(server.family()) > 1
    server.stop()
    assert not server.family() and not server.healthy()
