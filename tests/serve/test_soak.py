"""10,000 short requests on one server with prefix caching and speculation, some cancelled: right answers, flat memory."""

import asyncio
import random
import time

import pytest
import torch
from tests.serve.conftest import MARGIN, reference
from tests.serve.server import CACHED_AND_SPECULATING, NAME, ask, client, serving

from swiftkv.models import load_any

REQUESTS, AT_ONCE = 10_000, 64
# Before them: the worker of any model grows until it has met most sizes of a step (docs/serving.md).
WARM_UP = 16_000
SAMPLE = 1000  # requests between two looks at the memory
LONGEST = 8  # tokens of an answer
GROWTH = 1.02

pytestmark = pytest.mark.slow


def short(prompts, number):
    """Prompts of 16 to 96 tokens that begin like one chat and end like another, so that blocks recur and are evicted."""
    chance = random.Random(0)
    made = []
    for _ in range(number):
        start, end = chance.sample(prompts, 2)
        made.append(start[: chance.randint(8, 64)] + end[-chance.randint(8, 32) :])
    return made


async def cancel(asker, prompt):
    """Go away after the first of 100 tokens."""
    arguments = {"max_tokens": 100, "temperature": 0, "extra_body": {"ignore_eos": True}}
    stream = await asker.completions.create(model=NAME, prompt=prompt, stream=True, **arguments)
    await anext(aiter(stream))
    await stream.close()


async def alone(server, pool):
    """Answers of the prompts one at a time."""
    async with client(server) as asker:
        return [await ask(asker, prompt, LONGEST) for prompt in pool]


async def soak(server, known, requests):
    """What was wrong, and the server's memory in MiB by requests sent; `known` are prompts and their answers."""
    wrong, memory, numbers = [], {}, iter(range(requests))
    async with client(server) as asker:

        async def work():
            for number in numbers:
                if number % SAMPLE == 0:
                    memory[number] = server.memory() / 2**20
                prompt, right = random.Random(number).choice(known)
                tokens = 1 + number % LONGEST
                if number % 20 == 7:
                    await cancel(asker, prompt)
                elif (answer := await ask(asker, prompt, tokens)) != right[:tokens]:
                    wrong.append((number, answer))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    memory[requests] = server.memory() / 2**20
    return wrong, memory


def test_10000_requests(checkpoint, prompts, tmp_path, capsys):
    folder = checkpoint("llama", 4, 4, answers=24)
    model = load_any(folder, torch.float32)
    with serving(folder, tmp_path, *CACHED_AND_SPECULATING) as server:
        processes = {process.pid for process in server.family()}
        known = []
        for prompt, tokens in zip(pool := short(prompts, 300), asyncio.run(alone(server, pool)), strict=True):
            expected, margin, _ = reference(model, prompt, tokens)
            if margin > MARGIN:
                assert tokens == expected
                known.append((prompt, tokens))
        assert len(known) > 250
        start = time.monotonic()
        wrong, memory = asyncio.run(soak(server, known, WARM_UP + REQUESTS))
        with capsys.disabled():
            print(f"\n{WARM_UP + REQUESTS} requests in {time.monotonic() - start:.0f} s; MiB by requests:")
            print({number: round(size, 1) for number, size in memory.items()})
        assert not wrong
        assert max(size for number, size in memory.items() if number >= WARM_UP) <= GROWTH * memory[WARM_UP]
        assert {process.pid for process in server.family()} == processes
        assert server.metric("vllm:prefix_cache_hits_total") > 0
        assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
        server.assert_idle()
