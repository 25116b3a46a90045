"""Check that a configuration is well-formed, and that what it refers to exists and fits."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

from pipeline.config import Config
from pipeline.config.catalogue import KNOWN_TASKS
from swiftkv.errors import UserError
from swiftkv.section import read, undefined


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
    """Put the key of the configuration at fault in front of a refusal."""
    try:
        yield
    except (UserError, ValueError) as error:
        raise UserError(f"config, at {place}: {error}") from None


def check_config(content: dict[str, Any]) -> Config:
    """Return the typed form of a merged configuration; `contents.check_artifacts` checks artifacts further, by their kinds.

    Raises:
        UserError: a key or value cannot be, refers to something undefined, or does not fit another; one sentence that names
            the place.
    """
    config = read(Config, content)
    written = {f"recipes.{name}": recipe.model_fields_set for name, recipe in config.recipes.items()}
    written |= {f"models.{name}.recipe": model.recipe for name, model in config.models.items()}
    for place, keys in written.items():
        with at(place):
            if "zero_stage" in keys:
                raise UserError("zero_stage stands at the models, not at a recipe")
    for name, recipe in config.recipes.items():
        with at(f"recipes.{name}"):
            _require(recipe.data, "data", config.data)
    for model in config.in_use:
        for name in config.possible_recipes(model):
            own = config.recipe(model, name)
            with at(f"recipes.{name}, for model {model!r}"):
                _require(own.data, "data", config.data)
                own.accumulation(max(1, config.models[model].gpus.distill))
    for name, model in config.models.items():
        for variant in model.checkpoints:
            with at(f"models.{name}.checkpoints"):
                _check_checkpoint(config, name, variant)
    mixes = {
        "heldout": [config.heldout.data],
        "similarity": [config.similarity.data],
        "reading": [config.reading.data],
        "planning.data": config.planning.data,
    }
    for place, names in mixes.items():
        for name in names:
            with at(place):
                _require(name, "data", config.data)
    with at("reading.fit"):
        _require(config.reading.fit, "recipes", config.recipes)
    with at("reading"):
        if (among := config.reading.among) > (items := config.reading.items):
            raise UserError(f"among is {among}, but they are drawn from the {items} items")
    for section, what in (("fidelity", "documents"), ("early_exit", "documents"), ("early_exit", "prompts")):
        number, chats = getattr(getattr(config, section), what), config.heldout.chats
        with at(section):
            if number > chats:
                raise UserError(f"{number} {what} cannot be drawn from the {chats} chats of heldout")
    for name in config.variants:
        with at(f"variants.{name}"):
            _check_variant(config, name)
    for name, point in config.serving.points.items():
        with at(f"serving.points.{name}"):
            point.fit(config.serving.engine, config.serving.output_tokens)
    for model in config.in_use if config.serving.in_turns else ():
        with at("serving.in_turns"):
            if config.models[model].gpus.serve:
                raise UserError(
                    f"model {model!r} is served on GPUs, whose memory one engine takes; on a processor alone two stand "
                    "side by side"
                )
    for section, kind in (("scoring", "tasks"), ("serving", "points")):
        with at(f"{section}.together"):
            defined = config.tasks if kind == "tasks" else config.serving.points
            _check_together(getattr(config, section).together, kind, getattr(config.sets, kind), defined)
    for name in config.tasks:
        _check_task(config, name)
    return config


def _check_checkpoint(config: Config, model: str, variant: str) -> None:
    _require(variant, "variants", config.variants)
    if config.variants[variant].recipe is not None:
        raise UserError(f"variant {variant!r} has a recipe, so it is trained; name one without")
    if config.variants[variant].prefill_reduction is None:
        raise UserError(f"variant {variant!r} has no prefill_reduction, so it needs no checkpoint")
    config.spec(model, variant)


def _check_variant(config: Config, name: str) -> None:
    """The variant alone, that it fits at least one model, and that its recipe can train it."""
    variant, specs = config.variants[name], [None]
    if variant.recipe is not None:
        _require(variant.recipe, "recipes", config.recipes)
    if (reduction := variant.prefill_reduction) is not None:
        if variant.recipe is None and not any(name in model.checkpoints for model in config.models.values()):
            raise UserError("it needs a recipe, or a model that names a checkpoint for it under its checkpoints")
        specs, refusal = [], f"none has {reduction} under its num_key_value_layers"
        for model in (model for model, entry in config.models.items() if reduction in entry.num_key_value_layers):
            try:
                specs.append(config.spec(model, name))
            except UserError as error:
                refusal = str(error)
        if not specs:
            raise UserError(f"it fits no model; {refusal}")
    if variant.recipe is not None:
        try:
            config.recipes[variant.recipe].check_spec(specs[0])
        except UserError as error:
            raise UserError(f"recipe {variant.recipe!r} cannot train it: {error}") from None


def _check_together(together: list[str], kind: str, sets: dict[str, list[str]], defined: Container[str]) -> None:
    """Each task or point is measured in one way, so the sets must exist and have nothing in common."""
    owners: dict[str, str] = {}
    for name in together:
        _require(name, f"sets.{kind}", sets)
        if name in defined:  # whose files its job would write
            raise UserError(f"set {name!r} has the name of one of the {kind}; give it another")
        for member in sets[name]:
            if owners.setdefault(member, name) != name:
                raise UserError(
                    f"{kind[:-1]} {member!r} is in {owners[member]!r} and in {name!r}; list one of these sets alone"
                )


def _check_task(config: Config, name: str) -> None:
    """Its backend can score it; its files have the split that is scored."""
    task = config.tasks[name]
    with at(f"tasks.{name}"):
        if task.backend == "vllm" and not task.generated:
            raise UserError(
                f"{task.task} is scored by log-likelihoods of prompts, which vLLM with fast prefill does not compute; "
                "its backend can only be transformers"
            )
        for model in config.in_use if config.serving.engine.cpu_kv_cache_gib is None else ():
            if config.models[model].gpus.score == 0 and config.backend(model, name) == "vllm":
                raise UserError(
                    f"model {model!r} is scored with vLLM on the processor, which needs serving.engine.cpu_kv_cache_gib"
                )
        splits, known = getattr(task.source, "splits", None), KNOWN_TASKS.get(task.task)
        if splits and known and known.split not in splits:
            raise UserError(
                f"source.splits: {task.task} scores split {known.split!r}, which is not among {', '.join(splits)}"
            )


def _require(name: str, section: str, known: Iterable[str]) -> None:
    if name not in known:
        raise UserError(undefined(name, section, known))
