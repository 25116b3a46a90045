"""FLOPs per prefill token, KV cache bytes and the limits of each variant of one model."""

import argparse
from pathlib import Path

from swiftkv.artifacts.inputs import json_argument
from swiftkv.cost import cost_record
from swiftkv.errors import UserError, command_line
from swiftkv.records import read_json, write_json


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model-source", type=Path, help="source.json of a model")
    model.add_argument("--architecture", type=Path, help="JSON file with a model's config and where it came from")
    parser.add_argument("--name", help="the model's key, with --architecture (default: the file's name)")
    parser.add_argument("--title", help="the model's printed name, with --architecture (default: the key)")
    parser.add_argument(
        "--specs", required=True, help="JSON object: variant -> SwiftKVSpec fields, null for the baseline"
    )
    parser.add_argument("--sequence-length", type=int, required=True, help="prompt tokens")
    parser.add_argument("--output-tokens", type=int, default=256, help="generated tokens of the request limit")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    path = arguments.model_source or arguments.architecture
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{path} holds no model configuration: it has no `config`")
    if arguments.model_source:
        name, title = content["name"], content["title"]
        source = {key: content.get(key) for key in ("kind", "id", "revision", "resolved")}
    else:
        name = arguments.name or path.stem
        title, source = arguments.title or name, content.get("source")
    specs = json_argument(arguments.specs)
    lengths = arguments.sequence_length, arguments.output_tokens
    record = cost_record(name, title, content["config"], specs, *lengths, source)
    write_json(arguments.output, record)


if __name__ == "__main__":
    main()
