"""Time of one forward pass over several batch sizes (Figure 2, right)."""

import argparse

from swiftkv.errors import command_line
from swiftkv.measure.arguments import add_arguments, read_arguments, write_record


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    subject, point = read_arguments(arguments)

    from swiftkv.measure.forward import measure_forward

    write_record(arguments, measure_forward(subject, point, arguments.work_dir))


if __name__ == "__main__":
    main()
