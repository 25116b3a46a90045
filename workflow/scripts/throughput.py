"""Batch throughput of one serving point (Figure 3, Table 5), with `vllm bench throughput`."""

import argparse

from swiftkv.errors import command_line
from swiftkv.measure.arguments import add_arguments, read_arguments, write_record


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    subject, point = read_arguments(arguments)

    from swiftkv.measure.throughput import measure_throughput

    write_record(arguments, measure_throughput(subject, point, arguments.work_dir))


if __name__ == "__main__":
    main()
