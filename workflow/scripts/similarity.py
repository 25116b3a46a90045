"""Measure the similarity of layer inputs (Eq. 1) of one base model on chats."""

import argparse
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--data", type=Path, required=True, help="training chats, one a line")
    parser.add_argument("--documents", type=int, required=True, help="chats drawn")
    parser.add_argument("--max-length", type=int, required=True, help="tokens of a chat")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    add_gpus(parser)
    parser.add_argument("--output", type=Path, required=True)
    arguments = vars(parser.parse_args())

    compute_with(arguments.pop("threads"), arguments.pop("gpus"))
    from swiftkv.similarity import measure_similarity

    measure_similarity(**arguments)


if __name__ == "__main__":
    main()
