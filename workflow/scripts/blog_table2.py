"""The blog's Table 2: FLOPs of a prefill token with Q, K, V and O apart."""

import argparse
from pathlib import Path

from swiftkv.artifacts.flops import blog_table2
from swiftkv.artifacts.inputs import read_cost, read_published
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", type=Path, required=True, help="cost record of the model")
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="CSV files with published rows")
    parser.add_argument("--published-model", help="the model's name in those files (default: as in the record)")
    parser.add_argument("--output-csv", type=Path, required=True)
    parser.add_argument("--output-tex", type=Path, required=True)
    parser.add_argument("--output-md", type=Path, required=True)
    arguments = parser.parse_args()
    record = read_cost(arguments.cost)
    model = arguments.published_model or record["model"]
    published = read_published(arguments.published, model, ("variant", "sequence_length"))
    table = blog_table2(record, published)
    write_table(table, arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
