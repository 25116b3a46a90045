"""Every configuration mistake is answered by one sentence that names the key, before anything runs."""

import copy
from pathlib import Path

import pytest
import yaml

from swiftkv import config as cfg
from swiftkv.errors import UserError

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"


@pytest.fixture
def config():
    return yaml.safe_load((ROOT / "config.yaml").read_text())


def merged(config, override):
    """The configuration with an override laid over it, as Snakemake does: mappings merge, all else is replaced."""
    config = copy.deepcopy(config)
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = merged(config[key], value) if both else value
    return config


def test_the_paper_configuration_is_valid(config):
    cfg.check(config, SCHEMA)


@pytest.mark.parametrize("scale", ["local", "smoke"])
def test_every_override_is_valid(config, scale):
    override = yaml.safe_load((ROOT / f"profiles/{scale}/override.yaml").read_text())
    cfg.check(merged(config, override), SCHEMA)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ({"modles": {}}, "modles"),
        ({"models": {"llama-3.1-8b": {"titel": "x"}}}, "models.llama-3.1-8b.*titel"),
        ({"recipes": {"distillation": {"learning_rat": 1}}}, "recipes.distillation.*learning_rat"),
        ({"data": {"ultrachat": {"sources": [{"hub": "a/b", "split": "x", "chat": "messages"}]}}}, "chat"),
        ({"recipes": {"distillation": {"learning_rate": "fast"}}}, "recipes.distillation.learning_rate"),
        ({"artifacts": {"table2": {"model": "llama-9"}}}, "artifacts.table2: 'llama-9' is not defined under models"),
        ({"artifacts": {"table2": {"variants": ["swiftkv-99"]}}}, "'swiftkv-99' is not defined under variants"),
        ({"artifacts": {"table2": {"tasks": ["chess"]}}}, "'chess' is not defined under tasks"),
        ({"artifacts": {"table2": {"variants": ["swiftkv-45"]}}}, "45 % prefill reduction"),
        ({"models": {"llama-3.1-8b": {"num_key_value_layers": {"50": 33}}}}, "num_key_value_layers is 33"),
        ({"variants": {"swiftkv-50-across16": {"acrosskv": 17}}}, "group_size is 17"),
        ({"variants": {"swiftkv-50": {"acrosskv": 0}}}, "variants.swiftkv-50.acrosskv"),
        ({"variants": {"swiftkv-50": {"recipe": "secret"}}}, "recipe 'secret' is not defined"),
        (
            {"recipes": {"distillation": {"data": "nothing"}}},
            "recipes.distillation: 'nothing' is not defined under data",
        ),
        ({"models": {"llama-3.1-8b": {"source": {"local": "x"}}}}, "models.llama-3.1-8b.source"),
        ({"models": {"llama-3.1-8b": {"serving_weights": "none"}}}, "models.llama-3.1-8b.serving_weights"),
        ({"serving": {"engine": {"eager": True}}}, "serving.engine.*eager"),
        ({"serving": {"points": {"batch-2k": {"measure": "speed"}}}}, "serving.points.batch-2k.measure"),
        (
            {"serving": {"points": {"x": {"measure": "throughput", "input_tokens": 9}}}},
            "serving.points.x.*total_tokens",
        ),
        ({"serving": {"points": {"batch-2k": {"seconds": 1}}}}, "points.batch-2k: a throughput point has no seconds"),
        ({"serving": {"points": {"forward": {"batch_tokens": [4096]}}}}, "points.forward: 4096 tokens do not fit"),
        ({"serving": {"points": {"ngram-on": {"dataset": "books"}}}}, "'books' is not defined under data"),
        ({"artifacts": {"table5": {"fp8_variants": ["swiftkv-99"]}}}, "'swiftkv-99' is not defined under variants"),
        ({"artifacts": {"table2": {"variants": ["merge-all-layers"]}}}, "'merge-all-layers' can only be served"),
    ],
)
def test_a_mistake_is_named(config, override, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        cfg.check(merged(config, override), SCHEMA)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [("a: 1\nb: 2\na: 3\n", 3, "a"), ("a:\n  b:\n    c: 1\n    c: 2\n", 4, "c"), ("a: [{b: 1, b: 2}]\n", 1, "b")],
)
def test_duplicate_keys_are_refused_at_every_level(tmp_path, text, line, key):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=f"line {line}: key '{key}' stands twice"):
        cfg.refuse_duplicate_keys([str(file)])


def test_a_merge_key_may_be_overridden(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\n")
    cfg.refuse_duplicate_keys([str(file)])


def test_yaml_that_does_not_parse_is_one_sentence(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("a: [1\nb: 2\n")
    with pytest.raises(UserError, match="not valid YAML") as error:
        cfg.refuse_duplicate_keys([str(file)])
    assert "\n" not in str(error.value)


def test_spec_of_a_variant(config):
    assert cfg.spec(config, "llama-3.1-8b", "baseline") is None
    assert cfg.spec(config, "llama-3.1-8b", "swiftkv-62.5") == {
        "num_hidden_layers": 32,
        "num_key_value_layers": 12,
        "key_value_group_size": 1,
        "num_key_value_heads": None,
    }


SERVED = {
    "artifacts": {"kv_capacity": {"models": ["llama-3.1-8b"], "variants": ["baseline"], "points": ["kv-capacity"]}}
}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            {"artifacts": {"kv_capacity": {"points": ["memory-1tb"]}}},
            "'memory-1tb' is not defined under serving.points",
        ),
        ({"artifacts": {"kv_capacity": {"variants": ["swiftkv-45"]}}}, "45 % prefill reduction"),
        ({"models": {"llama-3.1-8b": {"gpus": {"serve": 0}}}}, "needs serving.engine.cpu_kv_cache_gib"),
    ],
)
def test_what_an_artifact_serves_is_checked(config, override, sentence):
    config = merged(config, SERVED)
    cfg.check(config, SCHEMA)
    with pytest.raises(UserError, match=sentence):
        cfg.check(merged(config, override), SCHEMA)


def test_a_point_has_what_all_points_share(config):
    point = cfg.point(config, "memory-40gb")
    assert (point["output_tokens"], point["memory_gib"], point["engine"]["enforce_eager"]) == (256, 40, True)
    config["serving"]["points"]["memory-40gb"]["output_tokens"] = 8
    assert cfg.point(config, "memory-40gb")["output_tokens"] == 8


def test_a_served_model_says_its_gpus(config):
    del config["models"]["llama-3.1-8b"]["gpus"]["serve"]
    config["artifacts"] = {"table1": {"model": "llama-3.1-8b", "variants": ["baseline"], "points": ["forward"]}}
    with pytest.raises(UserError, match="models.llama-3.1-8b.gpus has no serve"):
        cfg.check(config, SCHEMA)


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
