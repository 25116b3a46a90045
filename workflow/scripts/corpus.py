"""Gather the training chats of one mix: all but the held-out ones."""

import argparse
import json
from pathlib import Path

from swiftkv.data.build import build_corpus
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", required=True, type=json.loads, help="the `sources` list of the mix, as JSON")
    parser.add_argument("--seed", required=True, type=int, help="seed of the shuffle")
    parser.add_argument("--heldout", required=True, type=Path, help="the held-out chats, JSON lines")
    parser.add_argument("--output", required=True, type=Path, help="the chats, JSON lines")
    parser.add_argument("--record", required=True, type=Path, help="JSON: where they came from")
    arguments = parser.parse_args()
    build_corpus(**vars(arguments))


if __name__ == "__main__":
    main()
