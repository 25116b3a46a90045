"""Measure one serving point of one model and variant, with vLLM."""

import argparse
import json
import shutil
from pathlib import Path

from swiftkv.errors import UserError, command_line
from swiftkv.gpus import compute_with
from swiftkv.measure.point import Point, Subject
from swiftkv.records import write_json
from swiftkv.sources import read_source


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="key of the model in the config")
    parser.add_argument("--title", required=True, help="published name of the model")
    parser.add_argument("--source", type=Path, required=True, help="the model's source.json, or file of its dimensions")
    parser.add_argument("--checkpoint", type=Path, nargs="?", help="folder to serve; without it, the model of --source")
    parser.add_argument("--weights", choices=("original", "trained", "dummy"), required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--merge-all-layers", action="store_true", help="keep one layer's KV cache (Section 5.1)")
    parser.add_argument("--quantization", help="vLLM's --quantization")
    parser.add_argument("--plugin", choices=("arctic-inference",), help="serve with the authors' vLLM plugin")
    parser.add_argument("--kv-cache", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--point", required=True, help="key of the point under serving.points")
    parser.add_argument("--settings", type=json.loads, required=True, help="the point and what all points share, JSON")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs the model is spread over; 0 is the processor")
    parser.add_argument("--start-timeout", type=float, required=True, help="seconds a server may take until it answers")
    parser.add_argument("--threads", type=int, required=True, help="processor threads")
    parser.add_argument("--heldout", type=Path, nargs="?", help="chats to send, for points with a dataset")
    parser.add_argument("--workloads", type=Path, nargs="*", default=[], help="folders of requests, for such points")
    parser.add_argument("--work-dir", type=Path, required=True, help="folder for logs and unfinished measurements")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def read_subject(arguments: argparse.Namespace) -> Subject:
    """What is served."""
    source = read_source(arguments.source)
    if "kind" not in source:  # the dimensions of a model, whose weights nobody has
        source = {"kind": "architecture", "id": arguments.source.name}
    folder = arguments.checkpoint or source.get("path")
    if folder is None:
        raise UserError(f"{arguments.source} is no model that can be served; give --checkpoint")
    return Subject(
        identity={**source, "name": arguments.model, "title": arguments.title},
        variant=arguments.variant,
        kv_cache=arguments.kv_cache,
        # Absolute, so that vLLM never takes it for the name of a hub repository.
        folder=Path(folder).resolve(),
        weights=arguments.weights,
        spec=arguments.spec,
        merge_all_layers=arguments.merge_all_layers,
        quantization=arguments.quantization,
        plugin=arguments.plugin,
    )


@command_line
def main() -> None:
    arguments = parse()
    compute_with(None, arguments.gpus)
    subject = read_subject(arguments)
    point = Point(arguments.point, arguments.settings, arguments.gpus, arguments.threads, arguments.start_timeout)

    from swiftkv.measure.run import headline, measure

    record = measure(subject, point, arguments.work_dir, arguments.heldout, arguments.workloads)
    write_json(arguments.output, record)
    shutil.rmtree(arguments.work_dir, ignore_errors=True)
    print(f"{point.name}, {subject.variant}, {subject.kv_cache}: {headline(record)}")


if __name__ == "__main__":
    main()
