"""Refuses to score a variant on what it was trained on, from the configuration alone."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import product
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pipeline.config.catalogue import KNOWN
from pipeline.config.settings import Task
from pipeline.config.sources import ChatSource, HubChats, Questions
from swiftkv.errors import UserError

if TYPE_CHECKING:
    from pipeline.config import Config


def check_untrained(config: Config, tasks: Iterable[str], variants: Iterable[str], place: str) -> None:
    """Refuse tasks whose questions lie where a variant's training data comes from.

    The places are compared, not the texts: the files of a package or folder by their patterns, data sets of the hub by
    id and split. The same questions under another name are not recognized.

    Args:
        config: the configuration.
        tasks: names of what is scored.
        variants: names of what it is scored on.
        place: the key of the configuration that asks for it, for the message.

    Raises:
        UserError: naming task, variant and data set.
    """
    for task, variant in product(tasks, variants):
        if (recipe := config.variants[variant].recipe) is None:
            continue
        mix = config.recipes[recipe].data
        for source in config.data[mix].sources:
            if _overlap(config.tasks[task], source):
                raise UserError(
                    f"config, at {place}: task {task!r} asks what variant {variant!r} is trained on, source "
                    f"{source.name or source.hub!r} of data set {mix!r}; score another task, or leave the variant out"
                )


def _overlap(task: Task, trained: ChatSource) -> bool:
    asked, known = task.source, KNOWN.get(task.task)
    if isinstance(asked, Questions):
        alike = getattr(asked, "package", None) == getattr(trained, "package", None)
        pairs = product(_files(asked), _files(trained)) if alike and not isinstance(trained, HubChats) else ()
        return any(_same(one, other) for one, other in pairs)
    hub = asked.hub if asked else known.hub if known else None
    if hub is None or getattr(trained, "hub", None) != hub:
        return False
    # Of a task that is not in the catalogue the scored split is not known, so any will do.
    return known is None or trained.split.partition("[")[0] == known.split


def _files(source: Questions | ChatSource) -> list[tuple[str, ...]]:
    """The components of each file pattern of a package or folder, the last one first."""
    patterns = source.splits.values() if isinstance(source, Questions) else [getattr(source, "file", "")]
    paths = (
        PurePosixPath(getattr(source, "local", ""), pattern.replace("{dataset_name}", "*")) for pattern in patterns
    )
    return [path.parts[::-1] for path in paths]


def _same(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a file can match both; a pattern names the end of a path, so the longer one decides."""
    return all(fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in zip(one, other, strict=False))
