"""Time of one forward pass over batches of prompt tokens (Fig. 2, right); run as a program, the measuring process.

The paper says what the figure shows ("the time per forward pass", "across a range of batch sizes") but not what is in a
batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine, one
token out. It is the loop of `vllm bench latency`, with all sizes on one engine instead of one start each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.measure.engine import OutOfMemory, failure, observed
from swiftkv.measure.point import Point, Subject, engine_arguments, engine_environment, max_model_len, printable
from swiftkv.measure.process import running
from swiftkv.measure.record import record, request_cost
from swiftkv.records import read_json

WHAT = (
    "wall time of one engine step that computes a prompt of so many tokens in one forward pass and samples one token, "
    "scheduling included"
)


def forward_command(subject: Subject, point: Point, output: Path) -> list[str]:
    """The measuring process for one point.

    Raises:
        OutOfMemory: the weights alone exceed the stated limit.
        UserError: a batch does not fit into one step.
    """
    largest, chunk = max(point["batch_tokens"]), point.engine["max_num_batched_tokens"]
    if largest > chunk:
        raise UserError(
            f"point {point.name!r}: a batch of {largest} tokens does not fit into one step of {chunk} "
            "(serving.engine.max_num_batched_tokens)"
        )
    return engine_command(subject, point, max_model_len(subject.config, largest, 1), output, point["batch_tokens"])


def engine_command(subject: Subject, point: Point, length: int, output: Path, batch_tokens: list[int]) -> list[str]:
    """This program, which starts an engine for sequences of `length` tokens and times each of `batch_tokens` (or none).

    Raises:
        OutOfMemory: the weights alone exceed the stated limit.
    """
    return [
        *(sys.executable, "-m", "swiftkv.measure.forward", "--model", str(subject.folder)),
        *("--batch-tokens", json.dumps(batch_tokens), "--repeats", str(point.get("repeats", 1))),
        *("--output-json", str(output), *engine_arguments(subject, point, length, point.budget(subject))),
    ]


def engine_only_environment(point: Point) -> dict[str, str]:
    """The environment of this program: on one device the engine is in its own process, and nothing stands between."""
    single = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if point.tensor_parallel_size == 1 else {}
    return engine_environment(point) | single


def measure_forward(subject: Subject, point: Point, work: Path) -> dict[str, Any]:
    """The record of one forward-time point; arguments and errors as in `throughput.measure_throughput`."""
    started = time.monotonic()
    report, log, command, reason, result = work / "forward.json", work / "vllm.log", None, None, None
    work.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    sentence = None
    try:
        sentence = point.budget(subject).sentence
        command = forward_command(subject, point, report)
        with running(command, log, engine_only_environment(point)) as job:
            if status := job.wait():
                raise failure("the forward-time measurement", status, job.text(), job.log)
        times = read_json(report)
        result = {
            "batch_tokens": point["batch_tokens"],
            "seconds": {
                "median": [statistics.median(each) for each in times],
                "min": [min(each) for each in times],
            },
            "repeats": point["repeats"],
            "what": WHAT,
        }
    except OutOfMemory as error:
        reason = str(error)
    text = log.read_text(errors="replace") if log.exists() else ""
    return record(
        subject,
        point,
        settings={
            "batch_tokens": point["batch_tokens"],
            "repeats": point["repeats"],
            "memory": sentence,
            "command": printable(command, {str(subject.folder): "MODEL", str(work): "WORK"}) if command else None,
        },
        engine=observed(text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None),
        cost=request_cost(subject, max(point["batch_tokens"]), 1),
        result=result,
        reason=reason,
        seconds=time.monotonic() - started,
    )


def main(arguments: list[str]) -> None:
    """Time each batch size on one engine; the engine's arguments are vLLM's own."""
    import numpy as np
    from vllm import LLM, EngineArgs, SamplingParams, TokensPrompt

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    parser.add_argument("--batch-tokens", type=json.loads, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--output-json", type=Path, required=True)
    options: argparse.Namespace = EngineArgs.add_cli_args(parser).parse_args(arguments)
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(options))
    one_token = SamplingParams(max_tokens=1, ignore_eos=True, temperature=0.0, detokenize=False)
    random = np.random.default_rng(options.seed)
    times: list[list[float]] = []
    for tokens in options.batch_tokens:
        prompt = TokensPrompt(prompt_token_ids=random.integers(100, 10_000, tokens).tolist())
        llm.generate(prompt, one_token, use_tqdm=False)  # kernels are chosen and memory is taken in the first pass
        times.append([])
        for _ in range(options.repeats):
            start = time.perf_counter()
            llm.generate(prompt, one_token, use_tqdm=False)
            times[-1].append(time.perf_counter() - start)
    options.output_json.write_text(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1:])
