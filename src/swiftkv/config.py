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
    for name, entry in config["serving"]["points"].items():
        _check_point(config, name, entry)
    for name, artifact in config["artifacts"].items():
        place = f"artifacts.{name}"
        models = artifact.get("models", [artifact["model"]] if "model" in artifact else [])
        for model in models:
            _defined(config, "models", model, place)
        for variant in [*artifact.get("variants", []), *artifact.get("fp8_variants", [])]:
            _defined(config, "variants", variant, place)
            if config["variants"][variant].get("merge_all_layers") and "points" not in artifact:
                raise UserError(f"config, at {place}: variant {variant!r} can only be served, so it needs points")
            for model in models:
                spec(config, model, variant)
        for point_name in artifact.get("points", []):
            _defined(config["serving"], "points", point_name, place, "serving.points")
        for model in models if "points" in artifact else []:
            _check_served(config, model, place)
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


def point(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A serving point with what all points share filled in, as the measuring scripts take it."""
    serving = config["serving"]
    shared = {key: serving[key] for key in ("output_tokens", "seed", "engine")}
    return shared | serving["points"][name]


# What each kind of serving point must have, and what it may have.
_POINT_KEYS = {
    "throughput": ({"input_tokens", "total_tokens"}, {"output_tokens", "memory_gib", "warmups"}),
    "latency": (
        {"input_tokens", "request_rates", "seconds"},
        {"output_tokens", "memory_gib", "min_requests", "refine_steps", "dataset", "speculative"},
    ),
    "forward_time": ({"batch_tokens", "repeats"}, {"memory_gib"}),
    "kv_capacity": ({"input_tokens"}, {"output_tokens", "memory_gib"}),
}


def _check_point(config: dict[str, Any], name: str, point: dict[str, Any]) -> None:
    place, kind, keys = f"serving.points.{name}", point["measure"], set(point) - {"measure"}
    required, optional = _POINT_KEYS[kind]
    if missing := sorted(required - keys):
        raise UserError(f"config, at {place}: a {kind} point needs {missing[0]}")
    if unknown := sorted(keys - required - optional):
        raise UserError(f"config, at {place}: a {kind} point has no {unknown[0]}")
    chunk = config["serving"]["engine"]["max_num_batched_tokens"]
    if kind == "forward_time" and max(point["batch_tokens"]) > chunk:
        raise UserError(
            f"config, at {place}: {max(point['batch_tokens'])} tokens do not fit into one step, which has at most "
            f"serving.engine.max_num_batched_tokens = {chunk}"
        )
    if "dataset" in point:
        _defined(config, "data", point["dataset"], place)


def _check_served(config: dict[str, Any], model: str, place: str) -> None:
    gpus = config["models"][model]["gpus"]
    if "serve" not in gpus:
        raise UserError(f"config, at {place}: models.{model}.gpus has no serve, the GPUs it is served on")
    if gpus["serve"] == 0 and config["serving"]["engine"]["cpu_kv_cache_gib"] is None:
        raise UserError(
            f"config, at {place}: model {model!r} is served on the processor, which needs serving.engine.cpu_kv_cache_gib"
        )


def _defined(config: dict[str, Any], section: str, name: str, place: str, printed: str | None = None) -> None:
    if name not in config[section]:
        known = ", ".join(config[section])
        raise UserError(f"config, at {place}: {name!r} is not defined under {printed or section} (known: {known})")


def _dotted(path) -> str:
    return ".".join(str(part) for part in path) or "the top level"
