"""What a stage of the pipeline says about itself, and how its job starts from a command line."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import Config


@dataclass(frozen=True)
class Stage:
    """One rule of the workflow.

    Attributes:
        output: pattern of the file or folder that the stage is for, below `<results>`; wildcards in braces.
        run: "module:function" that a job calls; the function's signature and docstring are the job's command line.
        more: patterns of what the rule writes besides.
        gpus: which of a model's `gpus` its jobs ask for: "distill", "score" or "serve"; None runs no model.
        local: whether its jobs run beside Snakemake, also where others go to a cluster.
        online: whether its jobs may ask the network; all others are offline.
    """

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

    def file(self, config: Config, **wildcards: str) -> str:
        """The path of the output for some wildcards, where the configuration has the results."""
        return f"{config.pathvars.results}/{self.output.format(**wildcards)}"

    @property
    def function(self) -> Callable[..., Any]:
        """What `run` names; imported only here."""
        module, _, name = self.run.partition(":")
        return getattr(importlib.import_module(module), name)

    def start(self, name: str, words: Sequence[str]) -> None:
        """Run a job of the stage.

        Args:
            name: what help and errors call the stage.
            words: its command line. Where the stage runs a model, `--threads` and `--gpus` belong to it, and count before
                anything is imported that may look for a GPU; the function gets them if it has such parameters.

        Raises:
            UserError: the function refuses its work, or there are fewer GPUs than `--gpus`.
            SystemExit: the command line is wrong.
        """
        from pipeline import gpus
        from pipeline.stages import command

        threads, number, rest = command.take_machine(words)
        if self.gpus:
            gpus.compute_with(threads, number)
        takes_machine = not self.gpus or "gpus" in inspect.signature(self.function).parameters
        command.call(self.function, words if takes_machine else rest, f"python -m pipeline.stages {name}")
