"""Table B.1: how each task was run, next to the paper's settings."""

import argparse
from pathlib import Path

from swiftkv.artifacts.inputs import json_argument, read_published, read_records
from swiftkv.artifacts.settings import tableB1
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="score records of one model and KV cache")
    parser.add_argument("--tasks", required=True, help="rows in order, a JSON object: task -> {title, shots}")
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="CSV file with the paper's settings")
    parser.add_argument("--output-csv", type=Path, required=True)
    parser.add_argument("--output-tex", type=Path, required=True)
    parser.add_argument("--output-md", type=Path, required=True)
    arguments = parser.parse_args()
    scores = read_records(arguments.scores, ("task", "variant"))
    published = read_published(arguments.published, None, ("task",))
    table = tableB1(scores, json_argument(arguments.tasks), published)
    write_table(table, arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
