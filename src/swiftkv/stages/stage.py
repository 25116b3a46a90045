"""What a stage of the pipeline says about itself, and how its job starts from a command line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
    """

    name: str
    output: str
    run: str
    more: tuple[str, ...] = ()
    gpus: str | None = None
    local: bool = False
    online: bool = False

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
