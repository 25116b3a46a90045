"""Score one variant of a model on tasks."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--checkpoint", type=Path, help="trained checkpoint; without it the model itself is scored")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--kv-cache", choices=("auto", "fp8"), required=True)
    parser.add_argument("--tasks", type=json.loads, required=True, help="config entries by name, as JSON")
    parser.add_argument(
        "--fetched", type=Path, nargs="*", default=(), help="folders of questions, named as their tasks"
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    add_gpus(parser)
    parser.add_argument("--engine-log", type=Path, help="file for what vLLM prints, where it generates")
    parser.add_argument("--shard", type=int, nargs=2, default=(1, 1), help="part of the questions, of so many parts")
    parser.add_argument("--state", type=Path, help="folder for the answers so far, which an ended job goes on from")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="a file for each task, in order")
    arguments = vars(parser.parse_args())

    compute_with(arguments.pop("threads"), arguments.pop("gpus"))
    from swiftkv.score.run import measure_scores

    measure_scores(**arguments | {"shard": tuple(arguments["shard"])})


if __name__ == "__main__":
    main()
