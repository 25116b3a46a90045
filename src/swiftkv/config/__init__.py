"""The configuration, checked before any job starts (duplicate keys, every key, what refers to what), and what follows from it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from swiftkv.architectures import architecture, check_fit, check_latent_heads
from swiftkv.config.settings import Config
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.points import check_points, engine
from swiftkv.score.catalogue import KNOWN
from swiftkv.score.shards import check_shards
from swiftkv.section import plain, read, undefined
from swiftkv.spec import SwiftKVSpec

YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every job of a cluster reads the configuration twice


class _UniqueKeyLoader(YAML):
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


def check(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with every value in the form its key has, such as prefill reductions as text.

    Args:
        config: the merged configuration; artifacts are checked further by `contents.check`, which knows their kinds.

    Raises:
        UserError: a key or value cannot be, or refers to something undefined; one sentence that names the place.
    """
    typed = read(Config, config)
    config = plain(typed)
    for name, entry in config["recipes"].items():
        if "zero_stage" in entry:
            raise UserError(f"config, at recipes.{name}: zero_stage stands at the models, not at a recipe")
        _defined(config, "data", entry["data"], f"recipes.{name}")
    for name, model in config["models"].items():
        for variant in model.get("checkpoints", {}):
            _check_checkpoint(config, name, variant)
    for section in ("heldout", "similarity"):
        _defined(config, "data", config[section]["data"], section)
    _defined(config, "recipes", config["choose_l"]["recipe"], "choose_l")
    for name in config["planning"]["data"]:
        _defined(config, "data", name, "planning.data")
    for section in ("fidelity", "choose_l", "early_exit"):
        if config[section]["documents"] > config["heldout"]["chats"]:
            raise UserError(
                f"config, at {section}: {config[section]['documents']} documents cannot be drawn from the "
                f"{config['heldout']['chats']} chats of heldout"
            )
    for name in config["recipes"]:
        _check_recipe(config, name)
    for name in config["variants"]:
        _check_variant(config, name)
    check_points(typed.serving, typed.workloads)
    _check_together(config)
    check_shards(config, _in_use(config))
    for name in config["tasks"]:
        _check_backend(config, name)
        _check_splits(name, config["tasks"][name])
    return config


def _check_checkpoint(config: dict[str, Any], model: str, variant: str) -> None:
    place = f"models.{model}.checkpoints"
    _defined(config, "variants", variant, place)
    if config["variants"][variant].get("recipe") is not None:
        raise UserError(f"config, at {place}: variant {variant!r} has a recipe, so it is trained; name one without")
    if config["variants"][variant]["prefill_reduction"] is None:
        raise UserError(f"config, at {place}: variant {variant!r} has no prefill_reduction, so it needs no checkpoint")
    try:
        spec(config, model, variant)
    except UserError as error:
        raise UserError(f"config, at {place}: {error}") from None


def _check_recipe(config: dict[str, Any], name: str) -> None:
    """The recipe on every model in use."""
    for model in _in_use(config):
        try:
            Recipe.from_dict(recipe(config, model, name)).accumulation(
                max(1, config["models"][model]["gpus"]["distill"])
            )
        except UserError as error:
            raise UserError(f"config, at recipes.{name}, for model {model!r}: {_bare(error)}") from None


def _check_variant(config: dict[str, Any], name: str) -> None:
    """The variant alone, and that it fits at least one model."""
    variant, place = config["variants"][name], f"config, at variants.{name}"
    reduction, trained = variant["prefill_reduction"], variant.get("recipe")
    if trained is not None:
        _defined(config, "recipes", trained, f"variants.{name}")
    if reduction is None:
        if trained is not None:
            _check_trained(config, name, None)
        return
    if trained is None and not any(name in entry.get("checkpoints", {}) for entry in config["models"].values()):
        raise UserError(f"{place}: it needs a recipe, or a model that names a checkpoint for it under its checkpoints")
    having = [model for model, entry in config["models"].items() if reduction in entry["num_key_value_layers"]]
    if not having:
        raise UserError(f"{place}: no model has {reduction} under its num_key_value_layers")
    refusal = None
    for model in having:
        try:
            spec(config, model, name)
        except UserError as error:
            refusal = error
        else:
            if trained is not None:
                _check_trained(config, name, model)
            break
    else:
        raise UserError(f"{place}: it fits no model; {refusal}")


def _check_trained(config: dict[str, Any], name: str, model: str | None) -> None:
    """Whether a variant's recipe can train it; `model` is None for a variant that is not rewired."""
    fields = None if model is None else spec(config, model, name)
    trained = config["variants"][name]["recipe"]
    settings = recipe(config, model or next(iter(config["models"])), trained)
    try:
        Recipe.from_dict(settings).check_spec(None if fields is None else SwiftKVSpec(**fields))
    except UserError as error:
        raise UserError(f"config, at variants.{name}: recipe {trained!r} cannot train it: {_bare(error)}") from None


def _bare(error: UserError) -> str:
    """What is said of a recipe without how it begins."""
    return re.sub("^recipe(, at )?:? ?", "", str(error))


def _in_use(config: dict[str, Any]) -> list[str]:
    """The models that play a role at this scale, or that an artifact names itself."""
    scopes = [scope for entry in config["artifacts"].values() for scope in (entry, *entry.get("parts", []))]
    named = {*config["roles"].values(), *(name for scope in scopes for name in scope.get("models", []))}
    return [name for name in config["models"] if name in named]


def spec(config: dict[str, Any], model: str, variant: str) -> dict[str, int | None] | None:
    """The fields of the `SwiftKVSpec` of one variant on one model; None for the unchanged model.

    Raises:
        UserError: the model has no such prefill reduction, or l, group size, KV heads or the start cannot be.
    """
    settings, reduction = config["models"][model], config["variants"][variant]["prefill_reduction"]
    if reduction is None:
        return None
    if reduction not in settings["num_key_value_layers"]:
        known = ", ".join(settings["num_key_value_layers"])
        raise UserError(
            f"variant {variant!r} asks for {reduction} % prefill reduction, but models.{model}.num_key_value_layers "
            f"only has {known}; add its l, or let another variant stand in (stand_ins)"
        )
    if "recipe" not in config["variants"][variant] and variant not in settings.get("checkpoints", {}):
        raise UserError(f"variant {variant!r} is not trained here, and models.{model}.checkpoints names none for it")
    fields = {
        "num_hidden_layers": settings["num_hidden_layers"],
        "num_key_value_layers": settings["num_key_value_layers"][reduction],
        "key_value_group_size": config["variants"][variant]["acrosskv"],
        "num_key_value_heads": config["variants"][variant].get("kv_heads"),
    }
    if config["variants"][variant].get("early_exit"):
        fields["early_exit"] = True
    try:
        SwiftKVSpec(**fields)
        kind = family(config, model)
        check_latent_heads(kind is not None and architecture(kind).latent, fields["num_key_value_heads"])
        trained = config["variants"][variant].get("recipe")
        if kind and trained and config["recipes"][trained]["start"] == "fitted":
            check_fit(kind, fields["key_value_group_size"])
    except (ValueError, UserError) as error:
        raise UserError(
            f"variant {variant!r} cannot be made of model {model!r}: {error}; another may stand in (stand_ins)"
        ) from None
    return fields


def family(config: dict[str, Any], model: str) -> str | None:
    """transformers' model_type of a model where the configuration says it; a few families lack something."""
    entry = config["models"][model]
    return entry.get("model_type", entry["source"].get("random", {}).get("model_type"))


def check_fitted(config: dict[str, Any], model: str) -> None:
    """Refuse a fitted start without AcrossKV groups, as far as the configuration says what the model is.

    Raises:
        UserError: naming the model.
    """
    try:
        if kind := family(config, model):
            check_fit(kind, group_size=1)
    except UserError as error:
        raise UserError(f"no start can be fitted for model {model!r}: {error}") from None


def check_early_exit(config: dict[str, Any], variant: str) -> None:
    """Refuse to measure early exit of a variant that has no head for it.

    Raises:
        UserError: naming the variant and those that have one.
    """
    having = [name for name, entry in config["variants"].items() if entry.get("early_exit")]
    if variant not in having:
        known = ", ".join(having) or "none"
        raise UserError(f"variant {variant!r} has no early exit head; variants with early_exit: true are: {known}")


def recipe(config: dict[str, Any], model: str, name: str) -> dict[str, Any]:
    """The training recipe as the trainer takes it: the recipe's settings and the model's ZeRO stage."""
    return config["recipes"][name] | {"zero_stage": config["models"][model]["zero_stage"]}


def layers_below(config: dict[str, Any], model: str) -> list[int]:
    """Every l the model can be rewired at, largest first."""
    return sorted(set(config["models"][model]["num_key_value_layers"].values()), reverse=True)


def stored_layers(config: dict[str, Any], model: str, recipes: list[str]) -> list[int]:
    """The layers whose entering states `recipes` read from one file: every l, and what one of them compares."""
    total, compared = config["models"][model]["num_hidden_layers"], set()
    for name in recipes:
        layer = config["recipes"][name]["hidden_state_layer"]
        if config["recipes"][name]["hidden_state_weight"]:
            compared.add(layer + (total + 1 if layer < 0 else 0))
    ordinary = {layer for layer in layers_below(config, model) if layer < total}
    return sorted(ordinary | {layer for layer in compared if 0 < layer < total}, reverse=True)


def candidate_layers(config: dict[str, Any], model: str) -> list[int]:
    """Every l that a start is fitted for: those the model is rewired at, and every few layers between."""
    total, step = config["models"][model]["num_hidden_layers"], config["choose_l"]["every"]
    return sorted({*layers_below(config, model), *range(step, total, step)} - {total})


def _check_backend(config: dict[str, Any], name: str) -> None:
    task = config["tasks"][name]
    if _asked_backend(config, name) == "transformers":
        return
    if "backend" in task and not _is_generated(task["task"]):
        raise UserError(
            f"config, at tasks.{name}: {task['task']} is scored by log-likelihoods of prompts, which vLLM with fast prefill "
            "does not compute; its backend can only be transformers"
        )
    if config["serving"]["engine"]["cpu_kv_cache_gib"] is None:
        for model in _in_use(config):
            if config["models"][model]["gpus"]["score"] == 0:
                raise UserError(
                    f"config, at tasks.{name}: model {model!r} is scored with vLLM on the processor, which needs "
                    "serving.engine.cpu_kv_cache_gib"
                )


def _check_splits(name: str, task: dict[str, Any]) -> None:
    """Of a task whose scored split is known without lm-eval, the files must have it."""
    splits, known = task.get("source", {}).get("splits"), KNOWN.get(task["task"])
    if splits and known and known.split not in splits:
        place = f"config, at tasks.{name}.source.splits"
        raise UserError(f"{place}: {task['task']} scores split {known.split!r}, which is not among {', '.join(splits)}")


def _asked_backend(config: dict[str, Any], task: str) -> str:
    return config["tasks"][task].get("backend", config["scoring"]["backend"])


def _is_generated(lm_eval_task: str) -> bool:
    from swiftkv.score.catalogue import output_type  # lm-eval is needed only where vLLM is asked for

    return output_type(lm_eval_task) == "generate_until"


def scored_together(config: dict[str, Any], task: str) -> list[str]:
    """The tasks that one job scores with this one, itself among them: a set of `scoring.together`, or it alone."""
    sets = (config["sets"]["tasks"][name] for name in config["scoring"]["together"])
    return next((tasks for tasks in sets if task in tasks), [task])


def _check_together(config: dict[str, Any]) -> None:
    """Each task is scored in one way, so the sets must exist and have nothing in common."""
    owners: dict[str, str] = {}
    for name in config["scoring"]["together"]:
        if name not in config["sets"]["tasks"]:
            raise UserError(f"config, at scoring.together: {undefined(name, 'sets.tasks', config['sets']['tasks'])}")
        for task in config["sets"]["tasks"][name]:
            if owners.setdefault(task, name) != name:
                raise UserError(f"config, at scoring.together: task {task!r} is in {owners[task]!r} and in {name!r}")


def scoring_engine(config: dict[str, Any], model: str, variant: str, kv_cache: str, task: str) -> dict[str, Any] | None:
    """The vLLM engine that generates the answers of a task; None where transformers computes the score.

    That it does for every task scored by log-likelihoods, as fast prefill has none of prompts; for an FP8 cache, as vLLM's
    has one scale a tensor and not one a token (Section 5.3); and for variants that vLLM cannot serve.

    Returns:
        gpus, the tensor parallel size (0 is the processor), and what `serving.engine` says of a run.
    """
    if _asked_backend(config, task) == "transformers" or kv_cache != "auto":
        return None
    if unmeasured(config, model, variant, served=True) or not _is_generated(config["tasks"][task]["task"]):
        return None
    return {"gpus": config["models"][model]["gpus"]["score"], **engine(config)}


def check_served(config: dict[str, Any], model: str, place: str) -> None:
    """Refuse to serve a model whose GPUs, or whose memory on a processor, are not stated.

    Raises:
        UserError: naming the key.
    """
    gpus = config["models"][model]["gpus"]
    if "serve" not in gpus:
        raise UserError(f"config, at {place}: models.{model}.gpus has no serve, the GPUs it is served on")
    if gpus["serve"] == 0 and config["serving"]["engine"]["cpu_kv_cache_gib"] is None:
        raise UserError(
            f"config, at {place}: model {model!r} is served on the processor, which needs serving.engine.cpu_kv_cache_gib"
        )


def _defined(config: dict[str, Any], section: str, name: str, place: str) -> None:
    if name not in config[section]:
        raise UserError(f"config, at {place}: {undefined(name, section, config[section])}")


def without_quality(config: dict[str, Any], model: str) -> str | None:
    """Why the quality of a model cannot be measured, or None."""
    return config["models"][model].get("unavailable", {}).get("quality")


def unmeasured(config: dict[str, Any], model: str, variant: str, *, served: bool) -> str | None:
    """Why a variant of a model cannot be measured, or None: what an artifact then shows in its place.

    Args:
        served: whether it would be served, rather than scored.
    """
    if not served:
        return without_quality(config, model)
    if reason := config["models"][model].get("unavailable", {}).get("serving"):
        return reason
    if (config["variants"][variant].get("kv_heads") or 1) > 1:
        return "of key/value heads that differ between layers, vLLM serves a number that divides the other, as 1 always does"
    rewired = config["variants"][variant]["prefill_reduction"] is not None
    kind = family(config, model)
    return architecture(kind).not_served or None if rewired and kind else None
