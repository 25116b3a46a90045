"""Tokens that fit into the KV cache, by variant and KV-cache format."""

from swiftkv.artifacts.capacity import kv_capacity
from swiftkv.artifacts.serving import parser, serving_of
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("csv", "tex", "md")).parse_args()
    serving = serving_of(arguments, "kv_capacity")
    write_table(kv_capacity(serving), arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
