"""Measure KL to the teacher, top-1 agreement and perplexity of one variant on held-out chats."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--checkpoint", type=Path, help="trained checkpoint; not given for the baseline")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--kv-cache", choices=("auto", "fp8"), required=True)
    parser.add_argument("--heldout", type=Path, required=True, help="held-out chats, one a line")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--max-length", type=int, required=True, help="tokens of a chat")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--moments", type=Path, help="what a fitted start was fitted to")
    parser.add_argument("--ridge", type=float, default=0.0, help="penalty of that fit")
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    add_gpus(parser)
    parser.add_argument("--output", type=Path, required=True)
    arguments = vars(parser.parse_args())

    compute_with(arguments.pop("threads"), arguments.pop("gpus"))
    from swiftkv.score.fidelity import measure_fidelity

    measure_fidelity(**arguments)


if __name__ == "__main__":
    main()
