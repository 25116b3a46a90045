"""Latency of one serving point over request rates (Figures 4 and B.1), with `vllm serve` and `vllm bench serve`."""

import argparse
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.measure.arguments import add_arguments, read_arguments, write_record


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--heldout", type=Path, help="chats to send, for points with a dataset")
    arguments = parser.parse_args()
    subject, point = read_arguments(arguments)

    from swiftkv.measure.latency import measure_latency

    write_record(arguments, measure_latency(subject, point, arguments.work_dir, arguments.heldout))


if __name__ == "__main__":
    main()
