"""The JSON schema of configuration files for editors; `python -m pipeline.artifacts.editor > FILE` writes it.

It holds of config.yaml, artifacts.yaml and of every override alike, so no key is required by it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from pipeline.artifacts.entry import KINDS
from pipeline.config import Config


def editor_schema() -> dict[str, Any]:
    """Return the JSON schema by which an editor completes and explains keys."""
    entries = list(dict.fromkeys(kind.entry for kind in KINDS.values()))
    references, schema = models_json_schema([(section, "validation") for section in (Config, *entries)])
    # An override may leave out the key that tells one form from another.
    definitions = json.loads(json.dumps(schema["$defs"]).replace('"oneOf"', '"anyOf"'))
    for definition in definitions.values():
        definition.pop("required", None)
    whole = definitions.pop(references[Config, "validation"]["$ref"].rpartition("/")[2])
    for entry in entries:
        kinds = [name for name, kind in KINDS.items() if kind.entry is entry]
        definitions[references[entry, "validation"]["$ref"].rpartition("/")[2]]["properties"]["kind"]["enum"] = kinds
    whole["properties"]["artifacts"]["additionalProperties"] = {
        "anyOf": [references[entry, "validation"] for entry in entries]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions, **whole}


if __name__ == "__main__":
    print(json.dumps(editor_schema(), indent=1))
