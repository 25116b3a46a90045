"""Refuses to score a variant on what it was trained on, from the configuration alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from swiftkv.errors import UserError
from swiftkv.score.catalogue import KNOWN
from swiftkv.sources import source_name


def check_untrained(config: Mapping[str, Any], tasks: Iterable[str], variants: Iterable[str], place: str) -> None:
    """Refuse tasks whose questions lie where a variant's training data comes from.

    The places are compared, not the texts: the files of a package or folder by their patterns, data sets of the hub by
    id and split. The same questions under another name are not recognized.

    Args:
        config: the merged configuration.
        tasks: names of what is scored.
        variants: names of what it is scored on.
        place: where the configuration asks for it, for the message.

    Raises:
        UserError: naming task, variant and data set.
    """
    variants = list(variants)
    for task in tasks:
        for variant in variants:
            if (recipe := config["variants"][variant].get("recipe")) is None:
                continue
            mix = config["recipes"][recipe]["data"]
            for source in config["data"][mix]["sources"]:
                if _overlap(config["tasks"][task], source):
                    raise UserError(
                        f"config, at {place}: task {task!r} asks what variant {variant!r} is trained on, source "
                        f"{source_name(source)!r} of data set {mix!r}; score another task, or leave the variant out"
                    )


def _overlap(task: Mapping[str, Any], trained: Mapping[str, Any]) -> bool:
    asked = task.get("source") or {}
    if "splits" in asked:
        kind = "package" if "package" in asked else "local"
        return kind in trained and any(_same(one, other) for one in _files(asked) for other in _files(trained))
    known = KNOWN.get(task["task"])
    hub = asked.get("hub") or (known.hub if known else None)
    if hub is None or trained.get("hub") != hub:
        return False
    # Of a task that is not in the catalogue the scored split is not known, so any will do.
    return known is None or trained["split"].partition("[")[0] == known.split


def _files(source: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The place of each file pattern and its components, the last one first."""
    if "package" in source:
        for pattern in source.get("splits", {"": source.get("file")}).values():
            yield source["package"], *_backwards(pattern)
    else:
        for pattern in source.get("splits", {"": ""}).values():
            yield "", *_backwards(str(PurePosixPath(source["local"], pattern)))


def _backwards(pattern: str) -> Iterator[str]:
    return reversed(PurePosixPath(pattern.replace("{dataset_name}", "*")).parts)


def _same(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a file can match both; a pattern names the end of a path, so the longer one decides."""
    (place, *mine), (other_place, *theirs) = one, other
    pairs = zip(mine, theirs, strict=False)
    return place == other_place and all(fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in pairs)
