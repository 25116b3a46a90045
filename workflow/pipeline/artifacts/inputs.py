"""Inputs of artifacts: the models that play their roles, their rows, and the files of each input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipeline.artifacts import claims
from pipeline.config import Config
from pipeline.stages import STAGES

FOLDERS = {"published": "resources/paper", "cards": "resources/published"}  # of the files an entry itself names
Entry = Mapping[str, Any]


def inputs(config: Config, entry: Entry, needs: Iterable[str]) -> dict[str, list[str]]:
    """The files of a resolved entry: measurements by input, and published numbers."""
    files = {name: _INPUTS[name](config, entry) for name in needs}
    named = {key: [f"{folder}/{stem}.csv" for stem in entry.get(key) or ()] for key, folder in FOLDERS.items()}
    files |= {key: paths for key, paths in named.items() if paths}
    return {name: list(dict.fromkeys(paths)) for name, paths in files.items()}


def players(config: Config, roles: Iterable[str]) -> list[dict[str, str]]:
    """The models that play `roles` at this scale, doubles dropped; a model's own name may stand for a role."""
    models: dict[str, dict[str, str]] = {}
    for role in roles:
        if (name := config.roles.get(role, role)) is not None:
            settings = config.models[name]
            described = {"name": name, "title": settings.title, "published": settings.published or name}
            models.setdefault(name, described | {"role": role})
    return list(models.values())


def rows(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Model, variant and KV-cache format of everything an entry shows, in its order."""
    whole = {"models": [model["name"] for model in entry["models"]], "cases": entry.get("cases", [])}
    for part in entry.get("parts", [whole]):
        for model in part["models"]:
            yield from ((model, variant, kv_cache) for variant, kv_cache in part["cases"])


def _rows(entry: Entry) -> list[dict[str, str]]:
    """The rows that can be measured, as wildcards."""
    able = [row for row in rows(entry) if row[1] not in entry["unmeasured"].get(row[0], {})]
    return [dict(zip(("model", "variant", "kv_cache"), row, strict=True)) for row in able]


def _scores(config: Config, entry: Entry) -> list[str]:
    return [STAGES["score"].file(config, **row, task=task) for row in _rows(entry) for task in entry.get("tasks", ())]


def _serving(config: Config, entry: Entry) -> list[str]:
    return [STAGES["measure"].file(config, **row, point=point) for point in entry["points"] for row in _rows(entry)]


def _training(config: Config, entry: Entry) -> list[str]:
    trained = [row for row in _rows(entry) if config.variants[row["variant"]].recipe]
    return [STAGES["distill"].file(config, **row) for row in trained]


def _similarity(config: Config, entry: Entry) -> list[str]:
    models = [model["name"] for model in entry["models"] if model["name"] not in entry["unmeasured"]]
    return [STAGES["similarity"].file(config, model=model) for model in models]


def _reading(config: Config, entry: Entry) -> list[str]:
    """Families, and the variants that are trained; a reading has no other cache than the model's own."""
    rows = _rows(entry)
    families = [row | {"variant": family} for row in rows[:1] for family in entry.get("families", ())]
    trained = [row for row in rows if config.variants[row["variant"]].rewired]
    return [STAGES["reading"].file(config, **row) for row in families + trained]


def dimensions_of(config: Config, model: str) -> str:
    """The file with a model's public dimensions, or else the resolved model."""
    return config.models[model].architecture or STAGES["resolve_model"].file(config, model=model)


def _of_rows(stage: str) -> Callable[[Config, Entry], list[str]]:
    return lambda config, entry: [STAGES[stage].file(config, **row) for row in _rows(entry)]


_INPUTS: Mapping[str, Callable[[Config, Entry], list[str]]] = {
    "scores": _scores,
    "fidelity": _of_rows("fidelity"),
    "early_exit": _of_rows("early_exit"),
    "serving": _serving,
    "training": _training,
    "similarity": _similarity,
    "reading": _reading,
    "dimensions": lambda config, entry: [dimensions_of(config, model["name"]) for model in entry["models"]],
    "tables": lambda config, entry: [
        STAGES[form].file(config, artifact=name) for name, form in entry["judged_on"].items()
    ],
    "architectures": lambda config, entry: [f"resources/architectures/{model}.json" for model in claims.ARCHITECTURES],
}
