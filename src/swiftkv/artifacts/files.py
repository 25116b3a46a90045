"""Where the measurement files of an artifact lie: what a kind's `needs` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from swiftkv.artifacts.kind import Config, Entry
from swiftkv.stages import STAGES

Row = tuple[str, str, str]


def rows(entry: Entry) -> Iterator[Row]:
    """(model, variant, KV-cache format) of everything a resolved entry shows and that can be measured, in its order."""
    if "parts" in entry:
        every = [(m, *case) for part in entry["parts"] for m in part["models"] for case in part["cases"]]
    else:
        every = [(model["name"], *case) for model in entry["models"] for case in entry.get("cases", [])]
    for model, variant, kv_cache in every:
        if variant not in entry["unmeasured"].get(model, {}):
            yield model, variant, kv_cache


def scores(config: Config, entry: Entry) -> list[str]:
    """The score of every row on every task."""
    return [_file(config, "score", *row, task=task) for row in rows(entry) for task in entry["tasks"]]


def fidelity(config: Config, entry: Entry) -> list[str]:
    """The fidelity of every row."""
    return [_file(config, "fidelity", *row) for row in rows(entry)]


def serving(config: Config, entry: Entry, points: Iterable[str] | None = None) -> list[str]:
    """The serving measurement of every row at every point (default: the entry's)."""
    shown = entry["points"] if points is None else points
    return [_file(config, "measure", *row, point=point) for point in shown for row in rows(entry)]


def similarity(config: Config, models: Iterable[str]) -> list[str]:
    """The similarity of each model's layer inputs."""
    return [_file(config, "similarity", model) for model in models]


def starts(config: Config, models: Iterable[str]) -> list[str]:
    """The quality of each model rewired at every l, before training."""
    return [_file(config, "starts", model) for model in models]


def early_exit(config: Config, entry: Entry) -> list[str]:
    """The early exit of every row."""
    return [_file(config, "early_exit", *row) for row in rows(entry)]


def training(config: Config, entry: Entry) -> list[str]:
    """The training record of every row that was trained."""
    trained = [row for row in rows(entry) if config["variants"][row[1]].get("recipe")]
    return [_file(config, "distill", *row) for row in trained]


def dimensions(config: Config, entry: Entry) -> list[str]:
    """For each model the file with its dimensions: its public ones, or else the resolved model."""
    names = [model["name"] for model in entry["models"]]
    return [config["models"][name].get("architecture", _file(config, "resolve_model", name)) for name in names]


def artifact(config: Config, name: str, form: str) -> str:
    """The CSV of another artifact."""
    return STAGES[form].file(config, artifact=name)


def _file(config: Config, stage: str, model: str, variant: str = "", kv_cache: str = "", **wildcards: str) -> str:
    return STAGES[stage].file(config, model=model, variant=variant, kv_cache=kv_cache, **wildcards)
