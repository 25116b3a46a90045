"""The stages of the pipeline, by the names of their rules; importing them imports no torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
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
    """

    output: str
    run: str
    more: tuple[str, ...] = ()
    gpus: str | None = None
    local: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Patterns of all that the rule writes."""
        return (self.output, *self.more)

    def file(self, config: Config, **wildcards: str) -> str:
        """The path of the output for some wildcards, where the configuration has the results."""
        return f"{config.pathvars.results}/{self.output.format(**wildcards)}"

    @property
    def function(self) -> Callable[..., Any]:
        """Import and return the function that `run` names."""
        module, _, name = self.run.partition(":")
        return getattr(importlib.import_module(module), name)


STAGES = {
    # Sources
    "resolve_model": Stage("models/{model}/source.json", "pipeline.sources:resolve_model"),
    "fetch_checkpoint": Stage(
        "checkpoints/{model}/{variant}/config.json", "pipeline.sources.published:fetch_checkpoint"
    ),
    "heldout": Stage("data/heldout.jsonl", "pipeline.sources.chats:draw_heldout", more=("data/heldout.json",)),
    "corpus": Stage(
        "data/{data}/train.jsonl", "pipeline.sources.chats:build_corpus", more=("data/{data}/source.json",)
    ),
    "fetch_questions": Stage("questions/{task}", "pipeline.quality.fetch:fetch_questions"),
    # Training
    "pack": Stage("packed/{model}/{recipe}.safetensors", "pipeline.training:pack"),
    "teacher_states": Stage("teacher/{model}/{recipe}.safetensors", "pipeline.training:teacher_states", gpus="score"),
    "moments": Stage("moments/{model}/{recipe}.safetensors", "pipeline.training:moments", gpus="score"),
    "distill": Stage(
        "training/{model}/{variant}.json",
        "pipeline.training:distill",
        more=("training/{model}/{variant}.csv", "checkpoints/{model}/{variant}/config.json"),
        gpus="distill",
    ),
    "model_card": Stage("checkpoints/{model}/{variant}/README.md", "pipeline.card:write_card", local=True),
    # Quality
    "score": Stage(
        "scores/{model}/{variant}/{kv_cache}/{task}.json", "pipeline.quality.scores:measure_scores", gpus="score"
    ),
    "fidelity": Stage(
        "fidelity/{model}/{variant}/{kv_cache}.json", "pipeline.quality.fidelity:measure_fidelity", gpus="score"
    ),
    "evaluate_reading": Stage(
        "reading/{model}/{variant}.json", "pipeline.quality.reading:measure_reading", gpus="score"
    ),
    "reading_moments": Stage("reading/{model}/{recipe}.safetensors", "pipeline.training:moments", gpus="score"),
    "similarity": Stage("similarity/{model}.json", "pipeline.quality.similarity:measure_similarity", gpus="score"),
    "evaluate_early_exit": Stage(
        "early_exit/{model}/{variant}.json", "pipeline.quality.early_exit:measure_early_exit", gpus="score"
    ),
    # Serving
    "measure": Stage(
        "serving/{point}/{model}/{variant}/{kv_cache}.json", "pipeline.measure.job:measure_points", gpus="serve"
    ),
    # Tables and figures
    "table": Stage(
        "tables/{artifact}.csv",
        "pipeline.artifacts.make:make_artifact",
        more=("tables/{artifact}.tex", "tables/{artifact}.md", "tables/{artifact}.html", "tables/{artifact}.json"),
        local=True,
    ),
    "figure": Stage(
        "figures/{artifact}.csv",
        "pipeline.artifacts.make:make_artifact",
        more=("figures/{artifact}.pdf", "figures/{artifact}.png", "figures/{artifact}.svg", "figures/{artifact}.json"),
        local=True,
    ),
    "report_page": Stage("report.html", "pipeline.artifacts.report:write_report", more=("gallery.md",), local=True),
}


def stage_of(rule: str) -> Stage:
    """The stage of a rule; those of several tasks or points, `score_<set>` and `measure_<set>`, are `score` and `measure`.

    Raises:
        KeyError: no stage is called so.
    """
    return STAGES[rule if rule in STAGES else re.sub("^(score|measure)_.*", r"\1", rule)]


def rule_of(name: str) -> str:
    """The rule by which profiles and plans know a rule: `measure` of all `measure_<set>`."""
    return "measure" if name.startswith("measure_") else name
