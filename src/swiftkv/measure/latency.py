"""Interactive latency: a real server, Poisson arrivals at several rates, with `vllm bench serve` (Fig. 4, B.1)."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from swiftkv.data.read import choose_chats
from swiftkv.errors import UserError
from swiftkv.measure.client import BenchClient, bench_client
from swiftkv.measure.engine import EngineFailure, OutOfMemory, observed
from swiftkv.measure.point import Point, Subject, engine_arguments, engine_environment, max_model_len, printable, vllm
from swiftkv.measure.rates import search
from swiftkv.measure.record import record, request_cost
from swiftkv.measure.server import Server, serving
from swiftkv.records import read_json, write_json

STATISTICS = ("mean", "median", "p99")


def serve_command(subject: Subject, point: Point) -> list[str]:
    """`vllm serve` for one point, without host, port and name.

    Raises:
        OutOfMemory: the weights alone exceed the stated limit.
    """
    length = max_model_len(subject.config, point["input_tokens"], point["output_tokens"])
    return vllm("serve", str(subject.folder), *engine_arguments(subject, point, length, point.budget(subject)))


def client_command(
    subject: Subject, point: Point, url: str, name: str, rate: float, output: Path, chats: Path | None
) -> list[str]:
    """`vllm bench serve` for one rate: Poisson arrivals (burstiness 1), greedy decoding.

    Random prompts have one length and their outputs another, end of sequence or not. Chats end where the model ends
    them: forced on, a model repeats itself, and n-gram speculation would look better than it is.
    """
    generated = str(point["output_tokens"])
    if chats is None:
        data = ["--dataset-name", "random", "--random-range-ratio", "0", "--ignore-eos"]
        data += ["--random-input-len", str(point["input_tokens"]), "--random-output-len", generated]
    else:
        data = ["--dataset-name", "custom", "--dataset-path", str(chats), "--custom-output-len", generated]
        data += ["--skip-chat-template"]
    return vllm(
        *("bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"),
        *("--model", str(subject.folder), "--served-model-name", name, "--tokenizer", str(subject.folder)),
        *data,
        *("--num-prompts", str(number_of_requests(point, rate)), "--num-warmups", "1", "--seed", str(point["seed"])),
        *("--request-rate", f"{rate:g}", "--burstiness", "1.0", "--temperature", "0"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "99", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(output.parent), "--result-filename", output.name),
    )


def number_of_requests(point: Point, rate: float) -> int:
    """Requests of one measurement: `seconds` of arrivals, and no fewer than `min_requests`."""
    return max(point.get("min_requests", 1), round(rate * point["seconds"]))


def rate_result(report: dict[str, Any], rate: float, requests: int) -> dict[str, Any]:
    """The numbers of one `vllm bench serve` report; times in ms, `seconds` from the first arrival to the last token."""
    result = {
        "request_rate": rate,
        "requests": requests,
        "completed": report["completed"],
        "failed": report.get("failed", requests - report["completed"]),
        "achieved_request_rate": report["request_throughput"],
        "tokens_per_second": report["total_token_throughput"],
        "input_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "seconds": report["duration"],
    }
    for ours, theirs in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}.items():
        result[f"{ours}_ms"] = {statistic: report.get(f"{statistic}_{theirs}_ms") for statistic in STATISTICS}
    if "spec_decode_acceptance_rate" in report:
        result["acceptance_rate"] = report["spec_decode_acceptance_rate"]
        result["acceptance_length"] = report["spec_decode_acceptance_length"]
    return result


def measure_latency(subject: Subject, point: Point, work: Path, heldout: Path | None = None) -> dict[str, Any]:
    """The record of one latency point: all of its rates on one server.

    Args:
        work: folder that keeps each finished rate, so that a killed job does not measure it again; removed at the end.
        heldout: chats to send, for points with `dataset`; without them prompts are random.

    Raises:
        EngineFailure: the server or the client failed for another reason than memory.
    """
    started = time.monotonic()
    log, reason, result, command, sentence = work / "vllm.log", None, None, None, None
    work.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    name = f"{subject.model}-{subject.variant}"
    chats = None
    if point.get("dataset"):
        if heldout is None:
            raise UserError(f"point {point.name!r} sends chats, but no file with chats was given")
        chats = work / "prompts.jsonl"
        write_prompts(subject, point, heldout, chats)
    try:
        sentence = point.budget(subject).sentence
        command = serve_command(subject, point)
        same = _identity(subject, point, command)
        with (
            bench_client(work / "client.log") as client,
            serving(command, name, log, engine_environment(point), point.engine["start_timeout"]) as server,
        ):

            def measure(rate: float) -> dict[str, Any]:
                return _kept(work, rate, same, lambda: measure_rate(server, client, subject, point, rate, work, chats))

            result = search(point["request_rates"], measure, point.get("refine_steps", 0))
    except OutOfMemory as error:
        reason, result = str(error), None
    text = log.read_text(errors="replace") if log.exists() else ""
    content = record(
        subject,
        point,
        settings={
            "input_tokens": point["input_tokens"],
            "output_tokens": point["output_tokens"],
            "seconds": point["seconds"],
            "dataset": point.get("dataset") or "random",
            "arrivals": "Poisson",
            "temperature": 0,
            "memory": sentence,
            "command": printable(command, {str(subject.folder): "MODEL"}) if command else None,
            "client": printable(
                client_command(subject, point, "URL", name, 1.0, work / "rate.json", chats),
                {str(subject.folder): "MODEL", str(work): "WORK"},
            ),
        },
        engine=observed(text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None),
        cost=request_cost(subject, *_mean_lengths(point, result)),
        result=result,
        reason=reason,
        seconds=time.monotonic() - started,
    )
    shutil.rmtree(work)
    return content


def measure_rate(
    server: Server, client: BenchClient, subject: Subject, point: Point, rate: float, work: Path, chats: Path | None
) -> dict[str, Any]:
    """Measure one rate on a running server.

    Raises:
        EngineFailure: the client failed, or the server died meanwhile.
    """
    output = work / "client.json"
    output.unlink(missing_ok=True)
    _, _, _, *arguments = client_command(subject, point, server.url, server.name, rate, output, chats)
    client.run(arguments, server.check)
    server.check()
    report = read_json(output)
    if not report["completed"]:
        raise EngineFailure(f"not one request succeeded at {rate:g} requests a second (see {work / 'client.log'})")
    return rate_result(report, rate, number_of_requests(point, rate))


def write_prompts(subject: Subject, point: Point, heldout: Path, output: Path) -> None:
    """Write the opening user message of chats that fit into `input_tokens`, through the chat template, one a line.

    Raises:
        UserError: no chat is that short.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    lines = []
    for chat in choose_chats(heldout, 10**9, point["seed"]):
        opening = [message for message in chat["messages"][:1] if message["role"] == "user"]
        if not opening:
            continue
        text = tokenizer.apply_chat_template(opening, tokenize=False, add_generation_prompt=True)
        if len(tokenizer(text)["input_ids"]) <= point["input_tokens"]:
            lines.append(json.dumps({"prompt": text}))
    if not lines:
        raise UserError(f"{heldout} has no chat whose opening fits into {point['input_tokens']} tokens")
    output.write_text("\n".join(lines) + "\n")


def _kept(work: Path, rate: float, same: dict[str, Any], measure: Any) -> dict[str, Any]:
    """A finished rate's result from `work` if it was measured under the same settings, else a new measurement."""
    file = work / f"rate-{rate:g}.json"
    if file.exists():
        kept = read_json(file)
        if kept["settings"] == same:
            return kept["result"]
    result = measure()
    write_json(file, {"settings": same, "result": result})
    print(f"{rate:g} requests/s: median TTFT {result['ttft_ms']['median']:.0f} ms", flush=True)
    return result


def _identity(subject: Subject, point: Point, command: list[str]) -> dict[str, Any]:
    """What two measurements of one rate must have in common to be the same, as it comes back from a JSON file."""
    config = subject.folder / "config.json"
    values = {key: value for key, value in point.values.items() if key not in ("request_rates", "refine_steps")}
    content = {"command": command, "point": values, "threads": point.threads, "model_time": config.stat().st_mtime}
    return json.loads(json.dumps(content))


def _mean_lengths(point: Point, result: dict[str, Any] | None) -> tuple[int, int]:
    """Mean prompt and output tokens of a request: those asked for, or for chats those of the lowest rate."""
    if result and point.get("dataset"):
        lowest = result["rates"][0]
        return tuple(max(1, round(lowest[key] / lowest["completed"])) for key in ("input_tokens", "output_tokens"))
    return point["input_tokens"], point["output_tokens"]
