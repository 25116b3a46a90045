"""Measure early exit: agreement of the two heads on held-out chats, and answers decoded with and without it."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--checkpoint", type=Path, required=True, help="trained checkpoint with an early exit head")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON")
    parser.add_argument("--heldout", type=Path, required=True, help="held-out chats, one a line")
    parser.add_argument("--settings", type=json.loads, required=True, help="early_exit of the config as JSON")
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    add_gpus(parser)
    parser.add_argument("--output", type=Path, required=True)
    arguments = vars(parser.parse_args())

    compute_with(arguments.pop("threads"), arguments.pop("gpus"))
    from swiftkv.score.early_exit import measure_early_exit

    measure_early_exit(**arguments)


if __name__ == "__main__":
    main()
