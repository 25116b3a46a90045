"""How long each planned job takes, and how sure that is: measured where it or its like has run, else from its FLOPs."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.planning import scoring, serving, training
from swiftkv.planning.jobs import PlannedJob
from swiftkv.planning.machine import GIGA, Machine
from swiftkv.planning.scoring import TASKS
from swiftkv.planning.size import Size, spec_of
from swiftkv.planning.text import mix_tokens, recipe_of
from swiftkv.spec import SwiftKVSpec

# How sure a number is, the surest first.
MEASURED, SCALED, ESTIMATED, GUESSED, UNKNOWN = "measured", "scaled", "estimated", "guessed", "unknown"
SURE = {
    MEASURED: "this very job has run here before",
    SCALED: "estimated, times what finished jobs of the same rule and model took of their estimates",
    ESTIMATED: "FLOPs and bytes on a machine as assumed below",
    GUESSED: "little more than a start-up time or a text of assumed length",
    UNKNOWN: "cannot be said yet; counted as nothing",
}


@dataclass(frozen=True)
class Estimate:
    """What a job takes.

    Attributes:
        seconds: wall time of the job itself.
        sure: a key of `SURE`.
        why: for unknown ones.
    """

    seconds: float
    sure: str
    why: str = ""


class Estimator:
    """Estimates for the jobs of one configuration."""

    def __init__(self, config: dict[str, Any], root: Path) -> None:
        self.config, self.root = config, root
        self.size = cache(lambda model: Size.of(config, model, root))
        self.host = config["planning"]["host"]

    def estimate(self, job: PlannedJob) -> Estimate:
        """The estimate of a job that has no like."""
        work = getattr(self, f"_{job.rule}", None)
        if job.rule.startswith("score_"):
            work = self._score
        if job.rule == "all":
            return Estimate(0.0, ESTIMATED)
        try:
            if work is None:
                return Estimate(self._host("start"), GUESSED)
            seconds, sure = work(job)
        except UserError as error:
            return Estimate(0.0, UNKNOWN, str(error))
        return Estimate(seconds, sure)

    def estimates(self, jobs: list[PlannedJob], finished: Iterable[PlannedJob] = ()) -> list[Estimate]:
        """The estimates of jobs, those that have run or resemble finished ones by their measured times.

        Args:
            jobs: still to do.
            finished: others of the same configuration; those with a benchmark file count.
        """
        ratios: dict[tuple[str, str | None], list[float]] = {}
        both = [(job, self.estimate(job), measured_seconds(job)) for job in [*jobs, *finished]]
        for job, computed, seconds in both:
            if seconds is not None and computed.seconds:
                ratios.setdefault(_likes(job), []).append(seconds / computed.seconds)
        found = []
        for job, computed, seconds in both[: len(jobs)]:
            if seconds is not None:
                computed = Estimate(seconds, MEASURED)
            elif (like := ratios.get(_likes(job))) and computed.sure != UNKNOWN:
                computed = Estimate(computed.seconds * statistics.median(like), SCALED)
            found.append(computed)
        return found

    def machine(self, job: PlannedJob) -> Machine:
        """What a job computes on."""
        return Machine(self.config, job.gpus, job.threads)

    def packed(self, job: PlannedJob) -> str | None:
        """The packed rows that a job reads."""
        return next((path for path in job.inputs if "/packed/" in path), None)

    def spec(self, job: PlannedJob) -> SwiftKVSpec | None:
        """The rewiring of a job's variant."""
        return spec_of(self.config, job.wildcards["model"], job.wildcards["variant"])

    def _host(self, name: str) -> float:
        return self.host[name]["value"]

    def _table(self, job: PlannedJob) -> tuple[float, str]:
        return self._host("artifact"), GUESSED

    _figure = _merge_scores = _table

    def _resolve_model(self, job: PlannedJob) -> tuple[float, str]:
        source = self.config["models"][job.wildcards["model"]]["source"]
        size = self.size(job.wildcards["model"])
        speed = {"hub": "download_gb", "package": "convert_gb"}.get(next(iter(source)))
        return self._host("start") + (size.bytes / GIGA / self._host(speed) if speed else 0), GUESSED

    def _fetch_checkpoint(self, job: PlannedJob) -> tuple[float, str]:
        size = self.size(job.wildcards["model"]).checkpoint_bytes(self.spec(job))
        return self._host("start") + size / GIGA / self._host("download_gb"), GUESSED

    def _dummy_checkpoint(self, job: PlannedJob) -> tuple[float, str]:
        return self._host("start"), GUESSED

    def _text(self, mix: str, speed: str) -> tuple[float, str]:
        return self._host("start") + mix_tokens(self.config, mix) / self._host(speed), GUESSED

    def _heldout(self, job: PlannedJob) -> tuple[float, str]:
        return self._text(self.config["heldout"]["data"], "read_tokens")

    def _corpus(self, job: PlannedJob) -> tuple[float, str]:
        return self._text(job.wildcards["data"], "read_tokens")

    def _workload(self, job: PlannedJob) -> tuple[float, str]:
        return self._host("start"), GUESSED

    def _pack(self, job: PlannedJob) -> tuple[float, str]:
        return self._text(self.config["recipes"][job.wildcards["recipe"]]["data"], "pack_tokens")

    def _distill(self, job: PlannedJob) -> tuple[float, str]:
        model, name = job.wildcards["model"], self.config["variants"][job.wildcards["variant"]]["recipe"]
        recipe = recipe_of(self.config, model, name)
        arguments = (self.size(model), self.spec(job), recipe, self.packed(job), self.machine(job))
        return training.distill(self.config, *arguments), ESTIMATED

    def _teacher_states(self, job: PlannedJob, stored: bool = True) -> tuple[float, str]:
        model = job.wildcards["model"]
        recipe = recipe_of(self.config, model, job.wildcards["recipe"])
        arguments = (model, self.size(model), recipe, self.packed(job), self.machine(job))
        return training.teacher(self.config, *arguments, stored=stored), ESTIMATED

    def _moments(self, job: PlannedJob) -> tuple[float, str]:
        return self._teacher_states(job, stored=False)

    def _score(self, job: PlannedJob) -> tuple[float, str]:
        case = tuple(job.wildcards[name] for name in ("model", "variant", "kv_cache"))
        # A shard's file is called by its number.
        tasks = [job.wildcards["task"]] if "task" in job.wildcards else [Path(path).stem for path in job.outputs]
        shards = int(job.wildcards.get("shards", 1))
        seconds = scoring.score(self.config, self.size(case[0]), case, self.spec(job), tasks, shards, self.machine(job))
        return seconds, ESTIMATED if all(task in TASKS for task in tasks) else GUESSED

    def _fidelity(self, job: PlannedJob) -> tuple[float, str]:
        variant = self.config["variants"][job.wildcards["variant"]]
        changed = "recipe" in variant or variant["prefill_reduction"] is not None
        arguments = (self.size(job.wildcards["model"]), self.spec(job), changed, job.wildcards["kv_cache"])
        return scoring.fidelity(self.config, *arguments, self.machine(job)), ESTIMATED

    def _similarity(self, job: PlannedJob) -> tuple[float, str]:
        return scoring.similarity(self.config, self.size(job.wildcards["model"]), self.machine(job)), ESTIMATED

    def _starts(self, job: PlannedJob) -> tuple[float, str]:
        model = job.wildcards["model"]
        return scoring.starts(self.config, model, self.size(model), self.machine(job)), ESTIMATED

    def _early_exit(self, job: PlannedJob) -> tuple[float, str]:
        return scoring.early_exit(self.config, self.size(job.wildcards["model"]), self.machine(job)), ESTIMATED

    def _measure(self, job: PlannedJob) -> tuple[float, str]:
        model, point = job.wildcards["model"], job.wildcards["point"]
        size = self.size(model)
        fp8 = size.fp8 or self.config["models"][model].get("quantization") == "fp8"
        seconds = serving.measure(self.config, point, size, self.spec(job), fp8, self.machine(job))
        return seconds, ESTIMATED


def measured_seconds(job: PlannedJob) -> float | None:
    """Wall time of a job as Snakemake's benchmark file has it; None where it has not run to its end."""
    if job.benchmark is None or not Path(job.benchmark).is_file():
        return None
    with open(job.benchmark, encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    try:
        return float(rows[-1]["s"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None  # Snakemake writes it at the job's end; a damaged one says nothing


def _likes(job: PlannedJob) -> tuple[str, str | None]:
    return job.rule, job.wildcards.get("model")
