"""Table 5: throughput under memory limits."""

from swiftkv.artifacts.serving import parser, serving_of
from swiftkv.artifacts.serving_tables import table5
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("csv", "tex", "md")).parse_args()
    serving = serving_of(arguments, "throughput", ("model", "memory_gib"))
    write_table(table5(serving), arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
