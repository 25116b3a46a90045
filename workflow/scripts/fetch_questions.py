"""Fetch the questions of one task from the hub, for scoring jobs that cannot reach it."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.score.fetch import fetch_questions


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", type=json.loads, required=True, help="task and source of its config entry, as JSON")
    parser.add_argument("--attempts", type=Path, required=True, help="text file that counts attempts without success")
    parser.add_argument("--output", type=Path, required=True, help="the folder of questions")
    arguments = parser.parse_args()
    fetch_questions(**vars(arguments))


if __name__ == "__main__":
    main()
