"""Table 2: quality by prefill and KV cache reduction; for other models Tables 3 and B.2 to B.5."""

import argparse
from pathlib import Path

from swiftkv.artifacts.inputs import json_argument, names, only_model, read_published, read_records
from swiftkv.artifacts.quality import table2
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=Path, nargs="*", default=[], help="score records of one model")
    parser.add_argument("--fidelity", type=Path, nargs="*", default=[], help="fidelity records of the same model")
    parser.add_argument("--variants", required=True, help="rows in order: a JSON list, or names separated by commas")
    parser.add_argument("--tasks", required=True, help="columns in order, a JSON object: task -> {title, shots}")
    parser.add_argument("--published", type=Path, nargs="*", default=[], help="CSV files with the paper's rows")
    parser.add_argument("--published-model", help="the model's name in those files (default: as in the records)")
    parser.add_argument("--output-csv", type=Path, required=True)
    parser.add_argument("--output-tex", type=Path, required=True)
    parser.add_argument("--output-md", type=Path, required=True)
    arguments = parser.parse_args()
    tasks, variants = json_argument(arguments.tasks), names(arguments.variants)
    scores = read_records(arguments.scores, ("variant", "kv_cache", "task"))
    fidelity = read_records(arguments.fidelity, ("variant", "kv_cache"))
    model = arguments.published_model or only_model(scores, fidelity)
    published = read_published(arguments.published, model, ("variant", "kv_cache"))
    table = table2(scores, fidelity, variants, tasks, published)
    write_table(table, arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
