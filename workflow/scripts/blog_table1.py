"""The blog's Table 1: throughput with less compute against throughput with less memory."""

from swiftkv.artifacts.serving import parser, serving_of
from swiftkv.artifacts.serving_tables import blog_table1
from swiftkv.artifacts.table import write_table
from swiftkv.errors import command_line


@command_line
def main() -> None:
    arguments = parser(__doc__, ("csv", "tex", "md")).parse_args()
    serving = serving_of(arguments, "throughput", ("model", "input_length"))
    write_table(blog_table1(serving), arguments.output_csv, arguments.output_tex, arguments.output_md)


if __name__ == "__main__":
    main()
