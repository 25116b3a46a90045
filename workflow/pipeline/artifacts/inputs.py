"""Resolve the inputs of artifacts: models by role, rows, and the files of each input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pipeline.artifacts import Entry, claims
from pipeline.config import Config
from pipeline.stages import STAGES

PAPER = "resources/paper"  # the folder of published numbers
# The stage that measures an input, and the key of an entry that lists its tasks or points.
MEASURED = {
    "scores": ("score", "task"), "serving": ("measure", "point"), "fidelity": ("fidelity", ""),
    "early_exit": ("evaluate_early_exit", ""), "training": ("distill", ""), "similarity": ("similarity", ""),
    "reading": ("evaluate_reading", ""),
}  # fmt: skip


def models_of(config: Config, roles: Iterable[str]) -> list[dict[str, str]]:
    """Return the models of some roles at this scale, each once; a role may also be a model's own name."""
    names = dict.fromkeys(config.roles.get(role, role) for role in roles)
    models = {name: config.models[name] for name in names if name is not None}
    return [{"name": name, "title": one.title, "published": one.published or name} for name, one in models.items()]


def rows(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yield model, variant and KV-cache format of each row of a resolved entry, in its order."""
    for part in entry["parts"]:
        yield from ((model, *case) for model in part["models"] for case in part["cases"])


def files_of(config: Config, entry: Entry, name: str) -> Iterator[str]:
    """Yield the files of an input of a resolved entry; some may come twice."""
    models = [model["name"] for model in entry["models"]]
    if name == "dimensions":  # the published configuration if there is one
        for model in models:
            yield config.models[model].architecture or STAGES["resolve_model"].file(config, model=model)
    elif name == "tables":
        for artifact, form in entry["judged_on"].items():
            yield STAGES[form].file(config, artifact=artifact)
    elif name == "architectures":
        yield from (f"resources/architectures/{model}.json" for model in claims.ARCHITECTURES)
    elif name == "reading":  # families, and the variants that are trained
        families = [(model, family) for model in models for family in entry.get("families", ())]
        cases = [case for *case, kv_cache in rows(entry) if kv_cache == "auto" and config.variants[case[1]].rewired]
        for model, variant in [*families, *cases]:
            if not entry["unmeasured"].get(model, {}).keys() & {variant, "baseline"}:
                yield STAGES["evaluate_reading"].file(config, model=model, variant=variant)
    else:
        stage, key = MEASURED[name]
        members = entry[f"{key}s"] if key else [""]
        for member, (model, variant, kv_cache) in itertools.product(members, rows(entry)):
            shown = variant in entry.get("served", [variant]) if name == "serving" else True
            trained = name != "training" or variant in entry["recipes"]
            if shown and trained and variant not in entry["unmeasured"].get(model, {}):
                case = {"model": model, "variant": variant, "kv_cache": kv_cache, key or "_": member}
                yield STAGES[stage].file(config, **case)
