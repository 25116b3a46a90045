"""Requests that no server should be sent, and clients that behave as none should; a bounded number, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import struct
from collections.abc import AsyncIterator

from tests.serve.server import LENGTH, NAME, Server, ask, client

SIZE = 50 * 10**6  # bytes, of a huge body
CONNECTIONS = 1000
SECONDS = 60  # for any one answer
GOOD = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}


def body(**changes) -> bytes:
    """A request for a completion as JSON, with what json makes of NaN and infinity."""
    return json.dumps(GOOD | changes).encode()


NAN, INFINITY = float("nan"), float("inf")
# Every one of these is answered with a 4xx.
MALFORMED = {
    **{f"no JSON: {text[:20]!r}": text for text in (b"", b"{", b"[]", b"null", b"12", b'"x"', b"a=b", b"\0" * 100)},
    "invalid UTF-8": b'{"model": "tiny", "prompt": "\xff\xfe"}',
    "half a surrogate": b'{"model": "tiny", "prompt": "\\ud800"}',
    "deep list": b"[" * 10**5,
    "deep object": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "deep prompt": body(prompt="?").replace(b'"?"', b"[" * 900 + b"]" * 900),
    "no such model": body(model="other"),
    "model a number": body(model=5),
    "stream a word": body(stream="maybe"),
    "10^5 stop strings": body(stop=["a"] * 10**5),
    "seed": body(seed=2**64),
    "regex": body(structured_outputs={"regex": "("}),
    "grammar": body(structured_outputs={"grammar": "x"}),
    "embeddings": body(prompt_embeds="!!!"),
    **{
        f"prompt {prompt!r:.20}": body(prompt=prompt)
        for prompt in (
            *(
                None,
                3,
                {},
                "",
                [],
                [[]],
                [[5], []],
                [1, "a"],
                [1.5],
                [-1, 5],
                [10**9],
                [49152],
                [2**31],
                [2**63],
                [10**30],
            ),
            *([7] * (LENGTH + 1), "a " * 10**5),
        )
    },
    **{
        f"{name} {value!r:.20}": body(**{"temperature": 1, name: value})
        for name, values in {
            "max_tokens": (-1, 0, LENGTH + 1, 10**12, 10**30, 1.5, "x"),
            "temperature": (-1, NAN, INFINITY, 1e308, "hot"),
            "top_p": (NAN, 0, 2),
            "min_p": (NAN, 2),
            "top_k": (-5,),
            "repetition_penalty": (NAN, INFINITY, 0, -1),
            "presence_penalty": (NAN, 1e9),
            "n": (0, -1, 10**6, 10**12),
            "logprobs": (-1, 21, 10**9),
            "prompt_logprobs": (-7, -1, 0, 1, 10**9),
            "logit_bias": ({"x": 1}, {"-5": 1}, {str(2**70): 1}),
            "allowed_token_ids": ([], [-1], [10**9]),
            "stop_token_ids": ([-1], [2**70]),
            "min_tokens": (-1, 100),
            "truncate_prompt_tokens": (0, 10**6),
            "bad_words": ([""],),
        }.items()
        for value in values
    },
}


# And so are these of 50 MB, each made when it is needed.
HUGE = {
    "letters": lambda: b"a" * SIZE,
    "brackets": lambda: b"[" * SIZE,
    "text": lambda: body(prompt="a " * (SIZE // 2)),
    "token ids": lambda: body(prompt=[7] * (SIZE // 3)),
}


def http(body=b"", *headers, method="POST", path="/v1/completions", version="1.1", length=None) -> bytes:
    """An HTTP request whose connection ends with the answer."""
    lines = [f"{method} {path} HTTP/{version}", "Host: x", "Content-Type: application/json", "Connection: close"]
    lines += [f"Content-Length: {len(body) if length is None else length}"] * (length is not False)
    return "\r\n".join([*lines, *headers]).encode() + b"\r\n\r\n" + body


# Every one of these is answered with a 4xx too.
BROKEN = {
    "zeros": bytes(1000),
    "TLS": bytes.fromhex("1603010200010001fc0303") + b"x" * 500,
    "HTTP/9.9": http(body(), version="9.9"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no content type": http(body()).replace(b"Content-Type", b"X"),
    "form": http(body()).replace(b"application/json", b"application/x-www-form-urlencoded"),
    "length negative": http(body(), length=-5),
    "length a word": http(body(), length="many"),
    "length 10^30": http(body(), length=10**30),
    "length too short": http(body(), length=10),
    "two lengths": http(body(), "Content-Length: 3"),
    "length and chunks": http(body(), "Transfer-Encoding: chunked"),
    "chunk of length zz": http(b"zz\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False),
    "chunk too long": http(b"f" * 18 + b"\r\nabc", "Transfer-Encoding: chunked", length=False),
    "unknown coding": http(body(), "Transfer-Encoding: zip", length=False),
    "header with a zero": http(body(), "X: a\0b"),
    "header without a colon": http(body(), "nonsense"),
    "path of 100 kB": http(path="/" + "a" * 10**5),
    "percent": http(method="GET", path="/%ff%00%zz"),
    "climbing path": http(method="GET", path="/../../etc/passwd"),
    "unknown path": http(body(), path="/v1/nothing"),
    **{method: http(method=method) for method in ("GET", "HEAD", "PUT", "DELETE", "TRACE", "CONNECT", "BREW", "post")},
    "websocket": http(method="GET").replace(b"close", b"Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x"),
}
# And these are odd, but vLLM takes them: each is given the right answer.
ODD = {
    "nothing": http(body()),
    "HTTP/1.0": http(body(), version="1.0"),
    "no host": http(body()).replace(b"Host: x\r\n", b""),
    "header of 1 MB": http(body(), "X: " + "a" * 10**6),
    "10,000 headers": http(body(), *(f"X{number}: a" for number in range(10**4))),
    "best_of": http(body(best_of=10**6)),
    "deep unknown field": http(body(x="?").replace(b'"?"', b"[" * 900 + b"]" * 900)),
    "unknown field of 10 MB": http(body(x="a" * 10**7)),
    "top_k 10^12": http(body(top_k=10**12)),
    "UTF-16": http(json.dumps(GOOD).encode("utf-16")),
}


async def exchange(server: Server, request: bytes, half_close: bool = False) -> bytes:
    """All that comes back until the server closes the connection; `half_close` says at once that no more will be sent."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):  # it may answer and close before it has read everything
            writer.write(request)
            if half_close:
                writer.write_eof()
            await writer.drain()
        answer = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(2**16):
                answer += part
        writer.close()
        return bytes(answer)


def status(answer: bytes) -> int | None:
    """The status of an answer, None if there is none."""
    return int(answer.split(maxsplit=2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def token_ids(answer: bytes) -> list[int]:
    """What was generated, according to an answer with status 200."""
    assert status(answer) == 200, answer[:1000]
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0]["token_ids"]


async def reset(server: Server) -> None:
    """Break the connection in the middle of a streamed answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(http(body(stream=True, max_tokens=LENGTH - 10, ignore_eos=True)))
    assert status(await reader.readuntil(b"data: ")) == 200
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def lingering(server: Server) -> AsyncIterator[None]:
    """While the block runs: idle connections, bodies announced that never come, and headers that come byte by byte."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], max(limit[0], 2 * CONNECTIONS)), limit[1]))
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS + 20)]
    for _, writer in connections[:10]:
        writer.write(http(length=100))

    async def drip():
        for byte in http(body()) * 1000:
            for _, writer in connections[10:20]:
                writer.write(bytes([byte]))
            await asyncio.sleep(0.1)

    dripping = asyncio.create_task(drip())
    try:
        yield
    finally:
        dripping.cancel()
        for _, writer in connections:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in connections), return_exceptions=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


async def abuse(server: Server, prompts: list[list[int]], longest: int) -> tuple[dict[str, bytes], list]:
    """Do all of it.

    Returns:
        What came back by name, and the answers to `prompts`, of `longest` tokens, asked over and over meanwhile.
    """
    answers, good, over = {}, [], asyncio.Event()
    async with client(server) as asker:

        async def go_on():
            while not over.is_set() or len(good) < len(prompts):
                good.append(await ask(asker, prompts[len(good) % len(prompts)], longest))

        going_on = asyncio.create_task(go_on())
        async with lingering(server):
            for name, request in MALFORMED.items():
                answers[name] = await exchange(server, http(request))
            for name, request in (BROKEN | ODD).items():
                answers[name] = await exchange(server, request)
            for name, make in HUGE.items():
                answers[name] = await exchange(server, http(make()))
            answers["half-closed"] = await exchange(server, http(body()), half_close=True)
            answers["half-closed, half sent"] = await exchange(server, http(length=100), half_close=True)
            await asyncio.gather(*(reset(server) for _ in range(10)))
            over.set()
            await going_on
    return answers, good
