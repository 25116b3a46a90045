"""Reading and checking config.yaml before any job starts: duplicate keys, the schema, and what refers to what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a later duplicate key win silently; here it is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                mark = key_node.start_mark
                raise UserError(f"{mark.name}, line {mark.line + 1}: key {key!r} stands twice in the same block")
            seen.add(key)
        return super().construct_mapping(node, deep)


def refuse_duplicate_keys(files: list[str]) -> None:
    """Raise a `UserError` for the first duplicate key, at any level, of the given YAML files."""
    for file in files:
        try:
            with open(file, encoding="utf-8") as stream:
                yaml.load(stream, Loader=_UniqueKeyLoader)
        except yaml.YAMLError as error:
            raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None


def check(config: dict[str, Any], schema: str | Path) -> None:
    """Raise a `UserError` that names the key if `config` breaks the schema or refers to something undefined.

    Args:
        config: the merged configuration.
        schema: path of the JSON schema, in YAML.
    """
    import jsonschema

    with open(schema, encoding="utf-8") as stream:
        validator = jsonschema.Draft202012Validator(yaml.safe_load(stream))
    error = jsonschema.exceptions.best_match(validator.iter_errors(config))
    if error is not None:
        raise UserError(f"config, at {_dotted(error.absolute_path)}: {error.message}")
    for name, variant in config["variants"].items():
        if variant["prefill_reduction"] is not None and variant.get("recipe") not in config["recipes"]:
            raise UserError(
                f"config, at variants.{name}: recipe {variant.get('recipe')!r} is not defined under recipes"
            )
    for name, recipe in config["recipes"].items():
        _defined(config, "data", recipe["data"], f"recipes.{name}")
    for section in ("similarity", "fidelity"):
        _defined(config, "data", config[section]["data"], section)
    for name, artifact in config["artifacts"].items():
        place = f"artifacts.{name}"
        for model in artifact.get("models", [artifact["model"]] if "model" in artifact else []):
            _defined(config, "models", model, place)
        for variant in artifact.get("variants", []):
            _defined(config, "variants", variant, place)
            spec(config, artifact["model"], variant)
        for task in artifact.get("tasks", []):
            _defined(config, "tasks", task, place)
        for kv_cache in artifact.get("kv_caches", []):
            if kv_cache not in config["kv_caches"]:
                raise UserError(f"config, at {place}: {kv_cache!r} is not one of kv_caches {config['kv_caches']}")


def spec(config: dict[str, Any], model: str, variant: str) -> dict[str, int | None] | None:
    """The fields of the `SwiftKVSpec` of one variant on one model; None for the unchanged model.

    Raises:
        UserError: the model has no such prefill reduction, or l, group size or KV heads cannot be.
    """
    settings, reduction = config["models"][model], config["variants"][variant]["prefill_reduction"]
    if reduction is None:
        return None
    if reduction not in settings["num_key_value_layers"]:
        known = ", ".join(settings["num_key_value_layers"])
        raise UserError(
            f"variant {variant!r} asks for {reduction} % prefill reduction, but models.{model}.num_key_value_layers "
            f"only has {known}"
        )
    fields = {
        "num_hidden_layers": settings["num_hidden_layers"],
        "num_key_value_layers": settings["num_key_value_layers"][reduction],
        "key_value_group_size": config["variants"][variant]["acrosskv"],
        "num_key_value_heads": config["variants"][variant]["kv_heads"],
    }
    try:
        SwiftKVSpec(**fields)
    except ValueError as error:
        raise UserError(f"variant {variant!r} cannot be made of model {model!r}: {error}") from None
    return fields


def recipe(config: dict[str, Any], model: str, name: str) -> dict[str, Any]:
    """The training recipe as the trainer takes it: the recipe's settings and the model's ZeRO stage."""
    return config["recipes"][name] | {"zero_stage": config["models"][model]["zero_stage"]}


def layers_below(config: dict[str, Any], model: str) -> list[int]:
    """Every l the model can be rewired at, largest first."""
    return sorted(set(config["models"][model]["num_key_value_layers"].values()), reverse=True)


def _defined(config: dict[str, Any], section: str, name: str, place: str) -> None:
    if name not in config[section]:
        known = ", ".join(config[section])
        raise UserError(f"config, at {place}: {name!r} is not defined under {section} (known: {known})")


def _dotted(path) -> str:
    return ".".join(str(part) for part in path) or "the top level"
