"""A real `vllm serve` process and a client for it."""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import openai
from tests.serve.conftest import NGRAM, engine_environment

from pipeline.measure import worker
from pipeline.measure.worker import Server

LENGTH = 512
NAME = "tiny"
CACHED_AND_SPECULATING = ("--enable-prefix-caching", "--speculative-config", json.dumps(NGRAM))


def serving(model: Path, place: Path, *options: str) -> AbstractContextManager[Server]:
    """Serve a checkpoint as a user would, by its path, in float32 and eager; its log and caches are in `place`."""
    command = [
        str(Path(sys.executable).with_name("vllm")),
        "serve",
        str(model),
        "--dtype",
        "float32",
        "--enforce-eager",
    ]
    command += ["--max-model-len", str(LENGTH), "--max-num-seqs", "32", "--max-num-batched-tokens", "256"]
    command += ["--kv-cache-memory-bytes", str(2**25), "--block-size", "32", *options]
    return worker.serving(command, NAME, place / "log", engine_environment(place))


def metric(server: Server, name: str) -> float:
    """A number of /metrics, summed over its labels."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def client(server: Server) -> openai.AsyncOpenAI:
    """A client that tries nothing twice; a context manager."""
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=600)


async def ask(client: openai.AsyncOpenAI, prompt: list[int], max_tokens: int = 12, **changes):
    """Token ids of one greedy answer, or the client's error."""
    body = {"return_token_ids": True, "ignore_eos": True} | changes.pop("extra", {})
    try:
        answer = await client.completions.create(
            model=NAME, prompt=prompt, max_tokens=max_tokens, extra_body=body, **{"temperature": 0} | changes
        )
    except openai.APIError as error:
        return error
    return answer.choices[0].token_ids
