"""Where the measurement files of an artifact lie: what a kind's `needs` is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from swiftkv.artifacts.kind import Config, Entry

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
    return [f"{_results(config)}/scores/{'/'.join(row)}/{task}.json" for row in rows(entry) for task in entry["tasks"]]


def fidelity(config: Config, entry: Entry) -> list[str]:
    """The fidelity of every row."""
    return [f"{_results(config)}/fidelity/{'/'.join(row)}.json" for row in rows(entry)]


def serving(config: Config, entry: Entry, points: Iterable[str] | None = None) -> list[str]:
    """The serving measurement of every row at every point (default: the entry's)."""
    return [
        f"{_results(config)}/serving/{point}/{'/'.join(row)}.json"
        for point in (entry["points"] if points is None else points)
        for row in rows(entry)
    ]


def similarity(config: Config, models: Iterable[str]) -> list[str]:
    """The similarity of each model's layer inputs."""
    return [f"{_results(config)}/similarity/{model}.json" for model in models]


def starts(config: Config, models: Iterable[str]) -> list[str]:
    """The quality of each model rewired at every l, before training."""
    return [f"{_results(config)}/starts/{model}.json" for model in models]


def early_exit(config: Config, entry: Entry) -> list[str]:
    """The early exit of every row."""
    return [f"{_results(config)}/early_exit/{model}/{variant}.json" for model, variant, _ in rows(entry)]


def training(config: Config, entry: Entry) -> list[str]:
    """The training record of every row that was trained."""
    trained = [(model, variant) for model, variant, _ in rows(entry) if config["variants"][variant].get("recipe")]
    return [f"{_results(config)}/training/{model}/{variant}.json" for model, variant in trained]


def dimensions(config: Config, entry: Entry) -> list[str]:
    """For each model the file with its dimensions: its public ones, or else the resolved model."""
    return [
        config["models"][model["name"]].get("architecture", f"{_results(config)}/models/{model['name']}/source.json")
        for model in entry["models"]
    ]


def artifact(config: Config, name: str, form: str) -> str:
    """The CSV of another artifact."""
    return f"{_results(config)}/{form}s/{name}.csv"


def _results(config: Config) -> str:
    return config["pathvars"]["results"]
