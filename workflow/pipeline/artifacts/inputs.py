"""Inputs of artifacts: the models that play their roles, their rows, and the files of each input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.artifacts import claims
from pipeline.config import Config
from pipeline.stages import STAGES

PAPER = "resources/paper"  # the folder of published numbers
# The stage that measures an input, and the key of an entry with what it is measured on.
MEASURED = {
    "scores": ("score", "task"), "serving": ("measure", "point"), "fidelity": ("fidelity", ""),
    "early_exit": ("evaluate_early_exit", ""), "training": ("distill", ""), "similarity": ("similarity", ""),
    "reading": ("evaluate_reading", ""),
}  # fmt: skip
Entry = Mapping[str, Any]


def inputs(config: Config, entry: Entry, needs: Iterable[str]) -> dict[str, list[str]]:
    """The files of a resolved entry: measurements by input, and published numbers."""
    files = {name: list(dict.fromkeys(_files(config, entry, name))) for name in needs}
    published = [f"{PAPER}/{stem}.csv" for stem in entry.get("published", [])]
    return files | ({"published": published} if published else {})


def players(config: Config, roles: Iterable[str]) -> list[dict[str, str]]:
    """The models that play `roles` at this scale, doubles dropped; a model's own name may stand for a role."""
    names = dict.fromkeys(config.roles.get(role, role) for role in roles)
    models = {name: config.models[name] for name in names if name is not None}
    return [{"name": name, "title": one.title, "published": one.published or name} for name, one in models.items()]


def rows(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Model, variant and KV-cache format of everything an entry shows, in its order."""
    for part in entry["parts"]:
        yield from ((model, *case) for model in part["models"] for case in part["cases"])


def _files(config: Config, entry: Entry, name: str) -> Iterator[str]:
    models = [model["name"] for model in entry["models"]]
    if name == "dimensions":  # the public ones, or else the resolved model
        for model in models:
            yield config.models[model].architecture or STAGES["resolve_model"].file(config, model=model)
    elif name == "tables":
        for artifact, form in entry["judged_on"].items():
            yield STAGES[form].file(config, artifact=artifact)
    elif name == "architectures":
        yield from (f"resources/architectures/{model}.json" for model in claims.ARCHITECTURES)
    elif name == "reading":  # families, and the variants that are trained
        families = [(model, family) for model in models for family in entry.get("families", ())]
        trained = [
            (model, name) for model, name, cache in rows(entry) if cache == "auto" and config.variants[name].rewired
        ]
        for model, variant in [*families, *trained]:
            if not entry["unmeasured"].get(model, {}).keys() & {variant, "baseline"}:
                yield STAGES["evaluate_reading"].file(config, model=model, variant=variant)
    else:
        stage, what = MEASURED[name]
        for member, (model, variant, kv_cache) in itertools.product(
            entry.get(f"{what}s", ()) if what else [""], rows(entry)
        ):
            measured = variant not in entry["unmeasured"].get(model, {}) and (
                name != "training" or variant in entry["recipes"]
            )
            if measured:
                case = {"model": model, "variant": variant, "kv_cache": kv_cache, what or "_": member}
                yield STAGES[stage].file(config, **case)
