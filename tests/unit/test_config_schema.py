"""The schema of the configuration, which is its reference for people too."""

from pathlib import Path

import yaml

SCHEMA = Path(__file__).parents[2] / "workflow/schemas/config.schema.yaml"


def test_every_key_of_the_schema_is_described():
    schema = yaml.safe_load(SCHEMA.read_text())
    bare, definitions = [], schema["$defs"]

    def walk(node, path):
        for name, entry in node.get("properties", {}).items():
            reference = definitions.get(entry.get("$ref", "").rsplit("/", 1)[-1], {})
            if "description" not in entry and "description" not in reference:
                bare.append(f"{path}.{name}")
            walk(entry, f"{path}.{name}")
        for inner in ("items", "additionalProperties"):
            if isinstance(node.get(inner), dict):
                walk(node[inner], path)

    for name, node in {"config": schema, **definitions}.items():
        walk(node, name)
    assert not bare
