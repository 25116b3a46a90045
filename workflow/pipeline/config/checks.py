"""What of a configuration refers to what, and must fit it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.config.catalogue import KNOWN
from swiftkv.errors import UserError
from swiftkv.section import undefined
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from pipeline.config import Config


def check_references(config: Config) -> None:
    """Raise a `UserError` that names the place of the first name that is not defined, or of what cannot fit together."""
    for name, recipe in config.recipes.items():
        if "zero_stage" in recipe.model_fields_set:
            raise UserError(f"config, at recipes.{name}: zero_stage stands at the models, not at a recipe")
        _defined("data", recipe.data, config.data, f"recipes.{name}")
    for name, model in config.models.items():
        for variant in model.checkpoints:
            _check_checkpoint(config, name, variant)
    for section in ("heldout", "similarity"):
        _defined("data", getattr(config, section).data, config.data, section)
    for name in config.planning.data:
        _defined("data", name, config.data, "planning.data")
    for section in ("fidelity", "early_exit"):
        documents, chats = getattr(config, section).documents, config.heldout.chats
        if documents > chats:
            raise UserError(
                f"config, at {section}: {documents} documents cannot be drawn from the {chats} chats of heldout"
            )
    for name in config.recipes:
        for model in config.in_use:
            try:
                config.recipe(model, name).accumulation(max(1, config.models[model].gpus.distill))
            except UserError as error:
                raise UserError(f"config, at recipes.{name}, for model {model!r}: {_bare(error)}") from None
    for name in config.variants:
        _check_variant(config, name)
    _check_points(config)
    _check_together(config)
    for name in config.tasks:
        _check_shards(config, name)
        _check_task(config, name)


def _check_checkpoint(config: Config, model: str, variant: str) -> None:
    place = f"models.{model}.checkpoints"
    _defined("variants", variant, config.variants, place)
    if config.variants[variant].recipe is not None:
        raise UserError(f"config, at {place}: variant {variant!r} has a recipe, so it is trained; name one without")
    if config.variants[variant].prefill_reduction is None:
        raise UserError(f"config, at {place}: variant {variant!r} has no prefill_reduction, so it needs no checkpoint")
    try:
        config.spec(model, variant)
    except UserError as error:
        raise UserError(f"config, at {place}: {error}") from None


def _check_variant(config: Config, name: str) -> None:
    """The variant alone, and that it fits at least one model."""
    variant, place = config.variants[name], f"config, at variants.{name}"
    if variant.recipe is not None:
        _defined("recipes", variant.recipe, config.recipes, f"variants.{name}")
    if (reduction := variant.prefill_reduction) is None:
        _check_trained(config, name, None)
        return
    if variant.recipe is None and not any(name in model.checkpoints for model in config.models.values()):
        raise UserError(f"{place}: it needs a recipe, or a model that names a checkpoint for it under its checkpoints")
    having = [model for model, entry in config.models.items() if reduction in entry.num_key_value_layers]
    if not having:
        raise UserError(f"{place}: no model has {reduction} under its num_key_value_layers")
    refusals = []
    for model in having:
        try:
            spec = config.spec(model, name)
        except UserError as error:
            refusals.append(str(error))
        else:
            _check_trained(config, name, spec)
            return
    raise UserError(f"{place}: it fits no model; {refusals[-1]}")


def _check_trained(config: Config, name: str, spec: SwiftKVSpec | None) -> None:
    """Whether a variant's recipe, if it has one, can train it; `spec` is None for a variant that is not rewired."""
    recipe = config.variants[name].recipe
    try:
        if recipe is not None:
            config.recipes[recipe].check_spec(spec)
    except UserError as error:
        raise UserError(f"config, at variants.{name}: recipe {recipe!r} cannot train it: {_bare(error)}") from None


def _bare(error: UserError) -> str:
    """What is said of a recipe without how it begins."""
    return re.sub("^recipe(, at )?:? ?", "", str(error))


def _check_points(config: Config) -> None:
    """Each point can be run by the engine."""
    for name, point in config.serving.points.items():
        try:
            point.fit(config.serving.engine, config.serving.output_tokens)
        except ValueError as error:
            raise UserError(f"config, at serving.points.{name}: {error}") from None
    for model in config.in_use if config.serving.in_turns else ():
        if config.models[model].gpus.serve:
            raise UserError(
                f"config, at serving.in_turns: model {model!r} is served on GPUs, whose memory one engine takes; on a "
                "processor alone two stand side by side"
            )


def _check_together(config: Config) -> None:
    """Each task is scored in one way, so the sets must exist and have nothing in common."""
    owners: dict[str, str] = {}
    for name in config.scoring.together:
        _defined("sets.tasks", name, config.sets.tasks, "scoring.together")
        for task in config.sets.tasks[name]:
            if owners.setdefault(task, name) != name:
                raise UserError(f"config, at scoring.together: task {task!r} is in {owners[task]!r} and in {name!r}")


def _check_shards(config: Config, task: str) -> None:
    """Shards are of models that there are, and of a task that shares its job with no other."""
    place, shards = f"tasks.{task}.shards", config.tasks[task].shards
    for model in shards if isinstance(shards, dict) else ():
        _defined("models", model, config.models, place)
    divided = any(config.shards(model, task) > 1 for model in config.in_use)
    for group in config.scoring.together:
        if divided and task in config.sets.tasks[group]:
            raise UserError(
                f"config, at {place}: one job scores all tasks of {group!r} (scoring.together), so it has no shards"
            )


def _check_task(config: Config, name: str) -> None:
    """Its backend can score it, and its files have the split that is scored, where that is known without lm-eval."""
    task, place = config.tasks[name], f"config, at tasks.{name}"
    if config.backend(name) == "vllm":
        if task.backend and not task.generated:
            raise UserError(
                f"{place}: {task.task} is scored by log-likelihoods of prompts, which vLLM with fast prefill does not "
                "compute; its backend can only be transformers"
            )
        for model in config.in_use if config.serving.engine.cpu_kv_cache_gib is None else ():
            if config.models[model].gpus.score == 0:
                raise UserError(
                    f"{place}: model {model!r} is scored with vLLM on the processor, which needs "
                    "serving.engine.cpu_kv_cache_gib"
                )
    splits, known = getattr(task.source, "splits", None), KNOWN.get(task.task)
    if splits and known and known.split not in splits:
        raise UserError(
            f"{place}.source.splits: {task.task} scores split {known.split!r}, which is not among {', '.join(splits)}"
        )


def _defined(section: str, name: str, known: Iterable[str], place: str) -> None:
    if name not in known:
        raise UserError(f"config, at {place}: {undefined(name, section, known)}")
