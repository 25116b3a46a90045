"""The command line that the four measuring scripts share."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.measure.point import Point, Subject
from swiftkv.records import read_json, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every measurement of a serving point takes."""
    parser.add_argument("--model", required=True, help="key of the model in the config")
    parser.add_argument("--title", required=True, help="published name of the model")
    parser.add_argument("--model-source", type=Path, help="source.json of the model, served without --checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="folder to serve: a SwiftKV checkpoint, or one without weights")
    parser.add_argument("--weights", choices=("trained", "dummy"), default="trained")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--merge-all-layers", action="store_true", help="keep one layer's KV cache (Section 5.1)")
    parser.add_argument("--quantization", help="vLLM's --quantization")
    parser.add_argument("--kv-cache", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--point", required=True, help="key of the point under serving.points")
    parser.add_argument("--settings", type=json.loads, required=True, help="the point and what all points share, JSON")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs the model is spread over; 0 is the processor")
    parser.add_argument("--threads", type=int, required=True, help="processor threads")
    parser.add_argument("--work-dir", type=Path, required=True, help="folder for logs and unfinished measurements")
    parser.add_argument("--output", type=Path, required=True)


def read_arguments(arguments: argparse.Namespace) -> tuple[Subject, Point]:
    """What is served, and how.

    Raises:
        UserError: neither a checkpoint nor a model was given.
    """
    folder, weights = arguments.checkpoint, arguments.weights
    if folder is None:
        if arguments.model_source is None:
            raise UserError("give --checkpoint, or --model-source for the unchanged model")
        folder, weights = Path(read_json(arguments.model_source)["path"]), "original"
    subject = Subject(
        model=arguments.model,
        title=arguments.title,
        variant=arguments.variant,
        kv_cache=arguments.kv_cache,
        # Absolute, so that vLLM never takes it for the name of a hub repository.
        folder=folder.resolve(),
        weights=weights,
        spec=arguments.spec,
        merge_all_layers=arguments.merge_all_layers,
        quantization=arguments.quantization,
    )
    return subject, Point(arguments.point, arguments.settings, arguments.gpus, arguments.threads)


def write_record(arguments: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write the record, say it in a line, and remove the work folder."""
    write_json(arguments.output, record)
    shutil.rmtree(arguments.work_dir, ignore_errors=True)
    print(f"{record['point']}, {record['variant']}, {record['kv_cache']}: {summary(record)}")


def summary(record: dict[str, Any]) -> str:
    """The main number of a record in words."""
    result = record["result"]
    if result is None:
        return f"OOM, {record['reason']}"
    if record["measure"] == "throughput":
        return f"{result['tokens_per_second']:.1f} tokens/s"
    if record["measure"] == "latency":
        return f"sustains {result['highest_sustained_rate']} requests/s"
    if record["measure"] == "kv_capacity":
        return f"{result['kv_cache_tokens']} tokens"
    return ", ".join(
        f"{tokens} tokens {1000 * seconds:.1f} ms"
        for tokens, seconds in zip(result["batch_tokens"], result["seconds"]["median"], strict=True)
    )
