"""Set aside the chats of one mix that everything is measured on and nothing is trained on."""

import argparse
import json
from pathlib import Path

from swiftkv.data.build import draw_heldout
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", required=True, type=json.loads, help="the `sources` list of the mix, as JSON")
    parser.add_argument("--chats", required=True, type=int, help="how many chats are set aside")
    parser.add_argument("--seed", required=True, type=int, help="seed of the shuffle")
    parser.add_argument("--output", required=True, type=Path, help="the chats, JSON lines")
    parser.add_argument("--record", required=True, type=Path, help="JSON: where they came from")
    arguments = parser.parse_args()
    draw_heldout(**vars(arguments))


if __name__ == "__main__":
    main()
