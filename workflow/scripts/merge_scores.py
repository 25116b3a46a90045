"""Make one score of the shards it was computed in."""

import argparse
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.score.shards import merge_scores


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="their records, in order")
    parser.add_argument("--output", type=Path, required=True, help="the record of the whole score")
    arguments = parser.parse_args()
    merge_scores(**vars(arguments))
    print(f"{len(arguments.shards)} shards merged")


if __name__ == "__main__":
    main()
