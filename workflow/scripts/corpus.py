"""Gather the chats of one data mixture and set some aside for measuring."""

import argparse
import json
from pathlib import Path

from swiftkv.data.build import build_corpus
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sources", required=True, type=json.loads, help="the `sources` list of the data entry, as JSON"
    )
    parser.add_argument("--heldout", required=True, type=int, help="chats set aside for measuring")
    parser.add_argument("--seed", required=True, type=int, help="seed of the shuffle")
    parser.add_argument("--output-train", required=True, type=Path)
    parser.add_argument("--output-heldout", required=True, type=Path)
    parser.add_argument("--output-source", required=True, type=Path)
    arguments = parser.parse_args()
    build_corpus(
        arguments.sources,
        arguments.heldout,
        arguments.seed,
        arguments.output_train,
        arguments.output_heldout,
        arguments.output_source,
    )


if __name__ == "__main__":
    main()
