"""What a stage of the pipeline says about itself, and how its job starts from a command line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.pricing.work import Download, Work

SMALL = 10**5  # bytes of any output whose stage says nothing else


def small(work: Work) -> dict[str, float]:
    """What a job writes that writes little."""
    return {"other": SMALL * len(work.job.outputs)}


@dataclass(frozen=True)
class Stage:
    """One rule of the workflow.

    Attributes:
        name: the rule's name.
        output: pattern of the file or folder that the stage is for, below `<results>`; wildcards in braces.
        run: "module:function" that a job calls; the function's signature and docstring are the job's command line.
        more: patterns of what the rule writes besides.
        gpus: which of a model's `gpus` its jobs ask for: "distill", "score" or "serve"; None runs no model.
        local: whether its jobs run beside Snakemake, also where others go to a cluster.
        online: whether its jobs may ask the network; all others are offline.
        seconds: estimate of a job's wall time, from `planning` in the configuration.
        downloads: what a job fetches.
        written: bytes that a job leaves, by a name of `swiftkv.planning.plan.WRITTEN`.
    """

    name: str
    output: str
    run: str
    more: tuple[str, ...] = ()
    gpus: str | None = None
    local: bool = False
    online: bool = False
    seconds: Callable[[Work], float] = Work.start
    downloads: Callable[[Work], list[Download]] = lambda work: []
    written: Callable[[Work], Mapping[str, float]] = small

    @property
    def outputs(self) -> tuple[str, ...]:
        """Patterns of all that the rule writes."""
        return (self.output, *self.more)

    def file(self, config: Mapping[str, Any], **wildcards: str) -> str:
        """The path of the output for some wildcards, where the configuration has the results."""
        return f"{config['pathvars']['results']}/{self.output.format(**wildcards)}"

    def function(self) -> Callable[..., Any]:
        """The function that a job calls; imported here, so that importing the stages imports no torch."""
        module, _, name = self.run.partition(":")
        return getattr(importlib.import_module(module), name)
