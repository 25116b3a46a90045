"""Make a SwiftKV checkpoint that others trained available as a variant of a model."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.published import fetch_checkpoint
from swiftkv.sources import read_source


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model it was made of")
    parser.add_argument("--variant", required=True, help="name of the variant")
    parser.add_argument("--source", type=json.loads, required=True, help="the model's `checkpoints` entry, as JSON")
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of the variant's SwiftKVSpec as JSON")
    parser.add_argument("--output", type=Path, required=True, help="folder of links to its files")
    arguments = parser.parse_args()
    model = read_source(arguments.model_source)
    identity = fetch_checkpoint(arguments.source, arguments.spec, arguments.variant, model, arguments.output)
    print(f"{arguments.variant} of {model['title']}: {identity['kind']} {identity['id']}, {identity['resolved']}")


if __name__ == "__main__":
    main()
