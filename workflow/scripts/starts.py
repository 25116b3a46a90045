"""Measure how close a model rewired at each l is to its teacher before training, with copied and with fitted starts."""

import argparse
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--moments", type=Path, required=True, help="what the starts are fitted to")
    parser.add_argument("--ridge", type=float, required=True, help="penalty of the fits")
    parser.add_argument("--heldout", type=Path, required=True, help="held-out chats, one a line")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--max-length", type=int, required=True, help="tokens of a chat")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    add_gpus(parser)
    parser.add_argument("--output", type=Path, required=True)
    arguments = vars(parser.parse_args())

    compute_with(arguments.pop("threads"), arguments.pop("gpus"))
    from swiftkv.score.starts import measure_starts

    measure_starts(**arguments)


if __name__ == "__main__":
    main()
