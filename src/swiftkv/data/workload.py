"""The requests of a workload, in the form that vLLM's `TimedTrace` reads: when each comes, and how long it is.

One line a request: `timestamp` in seconds, `input_length` and `output_length` in tokens, and `hash_ids`, one id for each
`chunk_tokens` tokens of the prompt. Prompts that begin with the same ids begin with the same tokens. The lines come from a
public trace, or, as a stand-in, are drawn from the workload's stated statistics.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil
import statistics
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from swiftkv.errors import UserError
from swiftkv.hub import HubRepository, patiently
from swiftkv.records import atomic_path, write_json
from swiftkv.sources import file_identity

REQUESTS, RECORD = "requests.jsonl", "source.json"
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
DOWNLOAD_SECONDS = 60  # without a byte from a server

Request = dict[str, Any]


def write_workload(workload: dict[str, Any], seed: int, output: Path) -> None:
    """Write a folder with a workload's requests and where they are from.

    Args:
        workload: its entry in the config.
        seed: decides what is drawn for a stand-in.
        output: the folder: requests.jsonl, and source.json with kind, id, revision, resolved, requests, left_out,
            chunk_tokens, mean_input_tokens, mean_output_tokens and repeated (see `repeated_share`).

    Raises:
        UserError: the trace cannot be had or is not of the stated form, or no request of it is short enough.
    """
    if workload.get("stand_in"):
        requests, identity = draw_requests(workload, seed), _drawn_identity(workload, seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file, identity = _fetch(workload["source"], Path(folder))
            requests = list(read_trace(file, workload["source"], workload["chunk_tokens"]))
    short = [request for request in requests if _fits(request, workload["longest"])]
    if not short:
        raise UserError(f"no request of {identity['id']} is as short as the workload's `longest` asks for")
    with atomic_path(output) as scratch:
        scratch.mkdir()
        lines = (json.dumps({name: request[name] for name in FIELDS}) + "\n" for request in short)
        (scratch / REQUESTS).write_text("".join(lines))
        write_json(scratch / RECORD, identity | described(short, workload["chunk_tokens"], len(requests) - len(short)))
    print(f"{len(short)} requests from {identity['id']}; {len(requests) - len(short)} longer ones left out", flush=True)


def described(requests: list[Request], chunk_tokens: int, left_out: int) -> dict[str, Any]:
    """What there is to say of a workload's requests, as in `write_workload`."""
    return {
        "requests": len(requests),
        "left_out": left_out,
        "chunk_tokens": chunk_tokens,
        "mean_input_tokens": statistics.fmean(request["input_length"] for request in requests),
        "mean_output_tokens": statistics.fmean(request["output_length"] for request in requests),
        "repeated": repeated_share(requests, chunk_tokens),
    }


def repeated_share(requests: Iterable[Request], chunk_tokens: int) -> float:
    """Share of all prompt tokens that an earlier prompt began with too: what a cache without limit would save."""
    seen, repeated, total = set(), 0, 0
    for request in requests:
        chunks = sum(1 for _ in itertools.takewhile(seen.__contains__, request["hash_ids"]))
        repeated += min(chunks * chunk_tokens, request["input_length"])
        total += request["input_length"]
        seen.update(request["hash_ids"])
    return repeated / total


def average_lengths(workload: dict[str, Any]) -> tuple[float, float]:
    """Prompt and output tokens of a request on average, as stated, or of the stand-in."""
    divisors = workload.get("stand_in") or {"input_divisor": 1, "output_divisor": 1}
    return tuple(
        max(1.0, workload["statistics"][f"{what}_tokens"] / divisors[f"{what}_divisor"]) for what in ("input", "output")
    )


def draw_requests(workload: dict[str, Any], seed: int) -> list[Request]:
    """Requests with the workload's stated statistics, prompts and outputs shorter by the stand-in's divisors.

    Lengths are log-normal, gaps between arrivals gamma with a mean of 1 s. Each prompt begins with as much of one of
    `prefixes` texts as `shared` says; those are as long as the longest prompt needs.
    """
    shape, stand_in = workload["statistics"], workload["stand_in"]
    chunk, count, generator = workload["chunk_tokens"], stand_in["requests"], np.random.default_rng(seed)

    def lengths(average: float) -> np.ndarray:
        # The mean of a log-normal is above its median.
        above = shape["spread"] ** 2 / 2 if shape["average"] == "mean" else 0
        sampled = generator.lognormal(math.log(average) - above, shape["spread"], count)
        return np.maximum(1, np.rint(sampled)).astype(int)

    prompts, outputs = (lengths(average) for average in average_lengths(workload))
    arrivals = np.cumsum(generator.gamma(shape["burstiness"], 1 / shape["burstiness"], count))
    prefixes = generator.integers(shape["prefixes"], size=count)
    fresh = itertools.count(shape["prefixes"] * int(prompts.max()))  # above every id of a shared text
    requests = []
    for prompt, output, arrival, prefix in zip(prompts, outputs, arrivals, prefixes, strict=True):
        shared = int(shape["shared"] * prompt) // chunk
        first = int(prefix) * int(prompts.max())
        unshared = itertools.islice(fresh, math.ceil(prompt / chunk) - shared)
        ids = [*range(first, first + shared), *unshared]
        requests.append(dict(zip(FIELDS, (float(arrival), int(prompt), int(output), ids), strict=True)))
    return requests


def read_trace(file: Path, source: dict[str, Any], chunk_tokens: int) -> Iterator[Request]:
    """The requests of a trace, in its order, times in seconds from its first.

    Args:
        source: `milliseconds: true` where a JSON-lines trace counts those; `columns` of a CSV trace by `FIELDS`.
            A CSV says nothing of texts that prompts share: there each is its own.
        chunk_tokens: tokens that one id stands for.

    Raises:
        UserError: a line, which is named, is not of that form.
    """
    number, start, own = 0, None, itertools.count()
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            columns = source.get("columns")
            for number, line in enumerate(csv.DictReader(lines) if columns else lines, start=1):
                record = {name: line[column] for name, column in columns.items()} if columns else json.loads(line)
                prompt, output = int(record["input_length"]), int(record["output_length"])
                chunks = math.ceil(prompt / chunk_tokens)
                ids = list(itertools.islice(own, chunks)) if columns else record["hash_ids"]
                if len(ids) < chunks:
                    raise ValueError(f"{len(ids)} ids of {chunk_tokens} tokens are fewer than {prompt} tokens")
                time = _seconds(record["timestamp"], source)
                start = time if start is None else start
                yield dict(zip(FIELDS, (time - start, prompt, output, ids), strict=True))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file.name}, request {number}, is not of the stated form ({error!r})") from None


def _seconds(stamp: Any, source: dict[str, Any]) -> float:
    if not source.get("columns"):
        return float(stamp) / (1000 if source.get("milliseconds") else 1)
    try:
        return float(stamp)
    except ValueError:  # a date; fractions finer than Python's are cut
        return datetime.fromisoformat(stamp[:26]).replace(tzinfo=UTC).timestamp()


def _fits(request: Request, longest: dict[str, int]) -> bool:
    prompt, output = request["input_length"], request["output_length"]
    return 1 <= prompt <= longest["input_tokens"] and 1 <= output <= longest["output_tokens"]


def _drawn_identity(workload: dict[str, Any], seed: int) -> dict[str, Any]:
    stand_in = workload["stand_in"]
    divisors = {"prompts": stand_in["input_divisor"], "outputs": stand_in["output_divisor"]}
    shorter = [f"{what} {divisor:g} times shorter" for what, divisor in divisors.items() if divisor != 1]
    return {
        "kind": "drawn",
        "id": ", ".join(["stated statistics", *shorter]),
        "revision": None,
        "resolved": f"seed {seed}",
    }


def _fetch(source: dict[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    """A trace's file, downloaded into `folder` where it is from no hub, and its identity."""
    if "hub" in source:
        repository = HubRepository("dataset", source["hub"], source.get("revision", "main"))
        file = repository.download([source["file"]]) / source["file"]
        if not file.is_file():
            raise UserError(f"data set {source['hub']!r} has no file {source['file']!r}; check it in the config")
        return file, repository.identity
    file = Path(source["local"]).expanduser() if "local" in source else _download(source["url"], folder)
    if not file.is_file():
        raise UserError(f"local trace {source['local']!r} does not exist; check `source` of the workload")
    return file, file_identity(source, [file])


def _download(url: str, folder: Path) -> Path:
    file = folder / url.rsplit("/", 1)[-1]

    def fetch() -> None:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as answer, file.open("wb") as copy:
            shutil.copyfileobj(answer, copy)

    try:
        patiently(fetch, url)
    except OSError as error:
        raise UserError(
            f"{url} cannot be downloaded ({error}): connect to the network, or download it elsewhere and name it as a "
            "`local` source, or set `stand_in`"
        ) from None
    return file
