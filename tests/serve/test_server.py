"""A real `vllm serve` process under OpenAI client traffic, good and bad, cancelled and too long."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import psutil
import pytest
import torch

from swiftkv.models import load_any
from tests.serve.conftest import engine_environment, reference

START_SECONDS, STOP_SECONDS = 600, 60
LENGTH = 512
NAME = "tiny"
# Number of the request among the 200: its bad arguments. vLLM's own fast prefill ends the server on the last two.
REFUSED = {
    77: {"temperature": -1},
    98: {"extra": {"prompt_logprobs": 1}},
    99: {"extra": {"prompt_logprobs": 0}},
    100: {"echo": True, "logprobs": 0},
}


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama", 4, 4)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """The server's address, process and log, started as a user would: with the checkpoint's path."""
    place = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(LENGTH), "--max-num-seqs", "32", "--max-num-batched-tokens", "256"]
    command += ["--kv-cache-memory-bytes", str(2**25), "--block-size", "32"]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=engine_environment(place), start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not healthy(url):
            assert process.poll() is None and time.monotonic() < deadline, (place / "log").read_text()[-4000:]
            time.sleep(0.5)
        yield url, process, place / "log"
    finally:
        for left in family(process.pid):
            left.kill()
        process.wait()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def family(session: int) -> list[psutil.Process]:
    """All running processes of a session, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


async def ask(client, prompt, max_tokens=12, **changes):
    """Token ids of one greedy answer, or the client's error."""
    body = {"return_token_ids": True, "ignore_eos": True} | changes.pop("extra", {})
    try:
        answer = await client.completions.create(
            model=NAME, prompt=prompt, max_tokens=max_tokens, extra_body=body, **{"temperature": 0} | changes
        )
    except openai.APIError as error:
        return error
    return answer.choices[0].token_ids


async def cancel(client, prompt, seconds):
    """Start an answer of many tokens and go away."""
    stream = await client.completions.create(
        model=NAME, prompt=prompt, max_tokens=LENGTH - len(prompt) - 1, stream=True, extra_body={"ignore_eos": True}
    )
    await asyncio.sleep(seconds)
    await stream.close()
    return "cancelled"


async def traffic(url, prompts):
    """Answers of the 20 prompts one at a time, then of 200 requests at once, then of the 20 again."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=600) as client:
        before = [await ask(client, prompt) for prompt in prompts]
        too_long = prompts[0] + [7] * LENGTH
        together = []
        for number in range(200):
            prompt = prompts[number % 20]
            if number % 20 == 3:
                together.append(cancel(client, prompt, 0.02 * number))
            elif number % 25 == 4:
                together.append(ask(client, too_long))
            elif number in REFUSED:
                together.append(ask(client, prompt, **REFUSED[number]))
            else:
                together.append(ask(client, prompt, max_tokens=1 + number % 12))
        together = await asyncio.gather(*together)
        return before, together, [await ask(client, prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def answers(server, prompts):
    url, process, log = server
    given = asyncio.run(traffic(url, prompts))
    assert process.poll() is None, log.read_text()[-4000:]
    return given


def test_answers_before_and_after_are_huggingfaces(answers, folder, prompts):
    before, _, after = answers
    model = load_any(folder, torch.float32)
    assert (
        before == after == [reference(model, prompt, tokens)[0] for prompt, tokens in zip(prompts, before, strict=True)]
    )


def test_every_good_answer_among_200_is_the_one_given_alone(answers):
    before, together, _ = answers
    good = {number: answer for number, answer in enumerate(together) if isinstance(answer, list)}
    assert len(good) == 200 - 10 - 8 - len(REFUSED)
    for number, tokens in good.items():
        assert tokens == before[number % 20][: 1 + number % 12]


def test_each_bad_request_gets_its_own_error(answers):
    _, together, _ = answers
    errors = {number: answer for number, answer in enumerate(together) if isinstance(answer, openai.APIError)}
    assert all(isinstance(error, openai.BadRequestError) for error in errors.values())
    assert "temperature" in errors.pop(77).message
    assert "prompt logprobs" in errors.pop(98).message  # vLLM's own sentence
    for number in (99, 100):
        assert "prompt_logprobs" in errors[number].message and "swiftkv_full_depth" in errors.pop(number).message
    assert len(errors) == 8 and all(str(LENGTH) in error.message for error in errors.values())
    assert together.count("cancelled") == 10


def test_it_stops_and_leaves_no_process(answers, server):
    url, process, log = server
    assert healthy(url) and len(family(process.pid)) > 1
    process.send_signal(signal.SIGTERM)
    process.wait(STOP_SECONDS)
    deadline = time.monotonic() + STOP_SECONDS
    while family(process.pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not family(process.pid) and not healthy(url)
