"""Write a checkpoint folder without weights, for serving with `--load-format dummy`."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import UserError, command_line
from swiftkv.sources import read_source


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="source.json of a model, or file of its dimensions")
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--tokenizer", help="hub id or folder of the model's own tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="the folder")
    arguments = parser.parse_args()

    from swiftkv.measure.dummy import write_dummy

    content = read_source(arguments.source)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{arguments.source} holds no model configuration: it has no `config`")
    tokenizer = arguments.tokenizer or content.get("path")
    print(f"tokenizer: {write_dummy(content['config'], arguments.spec, tokenizer, arguments.output)}")


if __name__ == "__main__":
    main()
