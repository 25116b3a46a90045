"""Write the requests of one workload: a public trace, or a stand-in drawn from stated statistics."""

import argparse
import json
from pathlib import Path

from swiftkv.data.workload import write_workload
from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=json.loads, required=True, help="its config entry, as JSON")
    parser.add_argument("--seed", type=int, required=True, help="seed of a stand-in")
    parser.add_argument("--output", type=Path, required=True, help="folder for the requests and their origin")
    arguments = parser.parse_args()
    write_workload(**vars(arguments))


if __name__ == "__main__":
    main()
