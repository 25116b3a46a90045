"""The keys of the configuration: each says what it means, and the editor's schema accepts what we ship."""

import jsonschema
import pytest
import yaml
from tests.unit.artifact_helpers import ROOT

from pipeline.artifacts.editor import editor_schema


@pytest.fixture(scope="module")
def schema():
    return editor_schema()


def test_every_key_is_described(schema):
    definitions = schema["$defs"]

    def described(key):
        if "description" in key or "const" in key:
            return True
        forms = key.get("anyOf", [key])
        return all("$ref" in form and definitions[form["$ref"].rpartition("/")[2]]["description"] for form in forms)

    assert len(definitions) > 50
    for name, section in {"Config": schema, **definitions}.items():
        if not name.endswith("_entry"):  # docs/artifacts.md describes the keys of the kinds
            assert not {key for key, content in section["properties"].items() if not described(content)}, name


@pytest.mark.parametrize("file", ["config.yaml", "artifacts.yaml", *sorted(ROOT.glob("profiles/*/override.yaml"))])
def test_the_schema_for_editors_accepts_what_we_ship_and_nothing_unknown(schema, file):
    content, validator = yaml.safe_load((ROOT / file).read_text()), jsonschema.Draft202012Validator(schema)
    assert not list(validator.iter_errors(content))
    assert list(validator.iter_errors(content | {"modles": {}}))
