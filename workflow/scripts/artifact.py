"""Make one table or figure of the contents page from its measurement files."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entry", type=json.loads, required=True, help="the resolved entry of artifacts.yaml, as JSON")
    parser.add_argument(
        "--files", type=json.loads, required=True, help="JSON object: name -> list of files it is made of"
    )
    parser.add_argument(
        "--output", type=Path, nargs="+", required=True, help="one file a form, told apart by its ending"
    )
    arguments = parser.parse_args()

    from swiftkv.artifacts.make import make

    files = {name: [Path(path) for path in paths] for name, paths in arguments.files.items()}
    make(arguments.entry, files, {path.suffix.removeprefix("."): path for path in arguments.output})


if __name__ == "__main__":
    main()
