"""YAML that does not say what its writer thinks is refused before it is merged."""

import pytest

from pipeline.config import load_yaml
from swiftkv.errors import UserError


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [("a: 1\nb: 2\na: 3\n", 3, "a"), ("a:\n  b:\n    c: 1\n    c: 2\n", 4, "c"), ("a: [{b: 1, b: 2}]\n", 1, "b")],
)
def test_duplicate_keys_are_refused_at_every_level(tmp_path, text, line, key):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"line {line}: key '{key}' stands twice"):
        load_yaml(file)


def test_a_merge_key_may_be_overridden(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\n")
    load_yaml(file)


def test_yaml_that_does_not_parse_is_one_sentence(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: [1\nb: 2\n")
    with pytest.raises(UserError, match="not valid YAML") as error:
        load_yaml(file)
    assert "\n" not in str(error.value)
