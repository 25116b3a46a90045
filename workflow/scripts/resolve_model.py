"""Make a model available as a plain checkpoint and record what it resolved to."""

import argparse
import json
import os

from swiftkv.errors import UserError, command_line
from swiftkv.records import write_json
from swiftkv.sources import resolve_model


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="key of the model in the config")
    parser.add_argument("--title", required=True, help="published name of the model")
    parser.add_argument("--source", required=True, type=json.loads, help="the model's `source` entry, as JSON")
    parser.add_argument(
        "--chat-template", required=True, type=json.loads, help="its `chat_template` entry, as JSON; null: its own"
    )
    parser.add_argument("--num-hidden-layers", required=True, type=int, help="L the config expects")
    parser.add_argument("--folder", required=True, help="where the checkpoint is to be found")
    parser.add_argument("--output", required=True, help="source.json")
    arguments = parser.parse_args()
    record = resolve_model(arguments.name, arguments.title, arguments.source, arguments.folder, arguments.chat_template)
    if record["num_hidden_layers"] != arguments.num_hidden_layers:
        raise UserError(
            f"model {arguments.name!r} has {record['num_hidden_layers']} layers, but its num_hidden_layers in the config "
            f"is {arguments.num_hidden_layers}"
        )
    path = os.path.relpath(record["path"], os.path.dirname(arguments.output))  # read_source reads it so
    write_json(arguments.output, record | {"path": path})
    print(f"{record['title']}: {record['kind']} {record['id']}, {record['resolved']}")


if __name__ == "__main__":
    main()
