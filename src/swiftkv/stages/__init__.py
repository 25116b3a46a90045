"""The stages of the pipeline: every module of this folder is one, by the name of its rule; importing them imports no torch."""

import importlib
import pkgutil
from collections.abc import Iterator

from swiftkv.stages.stage import Stage


def _stages() -> Iterator[Stage]:
    for module in pkgutil.iter_modules(__path__):
        if stage := getattr(importlib.import_module(f"{__name__}.{module.name}"), "STAGE", None):
            yield stage


STAGES: dict[str, Stage] = {stage.name: stage for stage in _stages()}


def stage_of(rule: str) -> Stage:
    """The stage of a rule; those that score a set of tasks, `score_<set>`, are `score`.

    Raises:
        KeyError: no stage is called so.
    """
    return STAGES[rule] if rule in STAGES or not rule.startswith("score_") else STAGES["score"]
