"""How long planned jobs take, and what they leave on the disk.

A job takes the time it took before, or what jobs of its rule and model took of their estimates, where there are such. All
others are estimated from their tokens and the speeds under `planning` in the configuration; the aim is a factor of two.
Nothing here imports torch but `processor_speed`.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config import Config
from pipeline.config.catalogue import benchmark_size
from pipeline.config.planning import Mix
from pipeline.config.points import LatencySettings
from pipeline.config.settings import FAMILIES
from pipeline.config.sources import PackagedModel
from pipeline.run.jobs import EXCLUSIVE, PlannedJob, Profile
from pipeline.run.sizes import Size
from pipeline.stages import STAGES, stage_of
from swiftkv.cost import GIGA
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

TERA = 10**12
HOUR = 3600
LONGEST = 2  # assumed: the longest of a batch of answers, in mean lengths
STATES = 3  # training states that lie on the disk at once


class Work:
    """A planned job, its time by the configuration's speeds, and its bytes.

    Args:
        job: the job.
        config: the configuration.
        speed: of this processor, as `processor_speed` measures it.

    Attributes:
        model, variant: of the job; empty where it has none.
    """

    def __init__(self, job: PlannedJob, config: Config, speed: float = 1.0) -> None:
        self.job, self.config, self.product = job, config, speed
        self.speeds = config.planning.gpu if job.gpus else config.planning.cpu
        self.devices = job.gpus or job.threads
        self.model, self.variant = job.wildcards.get("model", ""), job.wildcards.get("variant", "")

    @cached_property
    def size(self) -> Size:
        """The model's size."""
        return Size.of(self.config, self.model)

    @property
    def spec(self) -> SwiftKVSpec | None:
        """The variant's rewiring; None for the unchanged model."""
        return self.config.spec(self.model, self.variant)

    @property
    def recipe(self) -> Recipe:
        """The recipe that the job names, or its variant's."""
        name = self.job.wildcards.get("recipe") or self.config.variants[self.variant].recipe
        return self.config.recipe(self.model, name)

    @property
    def settings(self) -> Any:
        """The section of the configuration that the job's rule measures by; None where none is called like the rule."""
        return getattr(self.config, self.job.rule.removeprefix("evaluate_"), None)

    @property
    def text(self) -> Mix:
        """The length of the data mix that the job reads.

        Raises:
            UserError: the configuration does not state it.
        """
        trains = self.job.rule == "distill" or "recipe" in self.job.wildcards
        mix = self.recipe.data if trains else self.job.wildcards.get("data")
        mix = mix or getattr(self.settings, "data", self.config.heldout.data)
        if mix not in self.config.planning.data:
            raise UserError(
                f"nothing says how long data mix {mix!r} is before it is built; state it under planning.data"
            )
        return self.config.planning.data[mix]

    @property
    def packed_rows(self) -> int:
        """Rows that the recipe trains on, from the tokens of its mix."""
        recipe, whole = self.recipe, math.ceil(self.text.tokens / self.recipe.max_length)
        return whole if recipe.max_steps is None else min(whole, recipe.max_steps * recipe.batch_size)

    @property
    def gpus(self) -> int:
        """GPUs that the job keeps from others: those that it asks for, or all of its nodes if they are exclusive."""
        if self.job.gpus and EXCLUSIVE in str(self.job.resources.get("slurm_extra") or "").split():
            return max(self.job.gpus, self.config.planning.gpu.node * (self.job.resources.get("nodes") or 1))
        return self.job.gpus

    def seconds(self) -> float:
        """Return how long the job takes.

        Raises:
            UserError: the size of its model or of its text is not known yet.
        """
        rule, host = self.job.rule, self.config.planning.host
        if rule in ("resolve_model", "fetch_checkpoint"):
            packaged = isinstance(self.config.models[self.model].source, PackagedModel)
            return host.start + self.size.bytes / GIGA / (host.convert_gb if packaged else host.download_gb)
        if rule in ("heldout", "corpus", "pack"):
            return host.start + self.text.tokens / (host.pack_tokens if rule == "pack" else host.read_tokens)
        if stage_of(rule).gpus is None:
            return host.start
        weights = self.size.bytes / GIGA / self.speeds.load_gb
        if rule == "distill":
            work = self._training()
        elif rule == "measure":
            work = self._serving()
        elif stage_of(rule) is STAGES["score"]:
            work = self._scoring()
        else:
            work = self.passing(self._tokens())
        if rule == "evaluate_early_exit":
            early = self.settings  # answers with and without early exit
            work += self.decode(2 * (early.prompts + len(early.questions)) * early.max_new_tokens)
        return self.speeds.start + weights + work

    def compute(self, flops: float, work: str, devices: int) -> float:
        """Return the seconds of so many FLOPs; `work` is training, forward or serving.

        On a processor only the time within matrix products follows this machine's; that between them is taken as it was
        measured.
        """
        seconds = 1 / (getattr(self.speeds, work) * TERA)
        if not self.job.gpus:
            seconds += (1 / self.product - 1) / (self.config.planning.cpu.product * GIGA)
        return flops * seconds / devices

    def passing(self, tokens: float, work: str = "forward") -> float:
        """Return the seconds of so many tokens: in forward passes of transformers, where one GPU works at a time, or serving."""
        devices = 1 if self.job.gpus and work == "forward" else self.devices
        return self.compute(2 * tokens * self.size.passed, work, devices)

    def decode(self, steps: float) -> float:
        """Return the seconds of so many decoding steps, one after the other."""
        return steps * self.size.layers * self.speeds.layer_ms / 1000

    def _tokens(self) -> float:
        """Tokens of forward passes over prompts of reading, chats, or the rows that a recipe trains on."""
        rule, settings = self.job.rule, self.settings
        if rule == "evaluate_reading":
            passages = (settings.items + 4 * settings.among) * self.text.chat_tokens
            return passages * (2 if self.variant in FAMILIES else 1)  # a family after the unchanged model
        if settings:  # the model alone, or also the student and its start
            passes = 1 if rule == "similarity" else 4 if self.spec else 2
            return passes * settings.documents * min(self.text.chat_tokens, settings.max_length)
        if "recipe" not in self.job.wildcards:  # a stage that is not known here
            return 0.0
        rows = self.packed_rows * self.recipe.max_length
        # Sums of a fitted start take as long as the passes.
        return 2 * min(rows, self.recipe.start_tokens) if "moments" in rule else rows

    def _training(self) -> float:
        """2 FLOPs for each parameter that a token passes forward, 2 where a gradient passes back, 2 for each trained.

        A gradient passes the upper layers and the heads alone; stored states save the teacher's pass and the lower layers'.
        """
        recipe, size, spec = self.recipe, self.size, self.spec
        upper = size.body * (1 - spec.num_key_value_layers / size.layers if spec else 1)
        taught = recipe.loss == "distillation"
        stored = taught and recipe.teacher_states == "stored"
        passes = 2 + recipe.checkpoint_activations + (taught and not stored)
        passed = passes * upper + (0 if stored else size.body - upper) + (2 + taught) * size.head
        tokens = recipe.total_steps(self.packed_rows) * recipe.batch_size * recipe.max_length
        passed += size.trained(spec, recipe.train, passed=True)
        return self.compute(2 * tokens * passed, "training", self.devices)

    def _scoring(self) -> float:
        """Prompts, of log-likelihoods their common start once; then the steps of answers that are generated."""
        config, total = self.config, 0.0
        for path in self.job.outputs:
            name = Path(path).stem
            amount, batch = benchmark_size(config.tasks[name], name), config.tasks[name].batch_size
            starts = amount.questions if amount.answer else 1
            tokens = amount.questions * amount.prompt + starts * amount.shots
            if config.scoring_engine(self.model, self.variant, self.job.wildcards["kv_cache"], name):
                total += self.speeds.engine + self.passing(tokens + amount.questions * amount.answer, "serving")
            else:
                steps = math.ceil(amount.questions / batch) * LONGEST * amount.answer
                total += self.passing(tokens + steps * batch) + self.decode(steps)
            total += self.speeds.task
        return total

    def _serving(self) -> float:
        """One start of the engine and all points; twice where some are measured in turns with the baseline."""
        sides = 2 if self.variant != "baseline" and any(map(self.config.in_turns, self.job.points)) else 1
        return sides * (self.speeds.engine + sum(map(self._point, self.job.points)))

    def _point(self, name: str) -> float:
        """Tokens at the speed of a busy engine, and steps of answers that do not share it."""
        point, tokens, answers = self.config.serving.points[name], 0.0, 0
        output = getattr(point, "output_tokens", None) or self.config.serving.output_tokens
        answer = self.decode(output)
        match point.measure:
            case "throughput":
                tokens = point.repeats * point.total_tokens
            case "forward_time":
                tokens = 2 * point.repeats * sum(point.batch_tokens)
            case "decode":
                answers = (1 + point.repeats) * len(point.batch_sizes)
                tokens = (1 + point.repeats) * sum(point.batch_sizes) * point.input_tokens
            case "answer":
                answers, tokens = point.repeats, point.questions * self.text.chat_tokens
            case "latency":
                return self._latency(point, output)
        return self.passing(tokens, "serving") + answers * answer

    def _latency(self, point: LatencySettings, output: int) -> float:
        """Time in which the requests of each rate arrive, or where they queue are answered, as `latency.search` runs them.

        A bisection takes as long as the slower of the rates that it lies between.
        """
        prompt = min(point.input_tokens, self.text.chat_tokens) if point.dataset else point.input_tokens
        times, queued = [], 0
        for rate in sorted(point.request_rates):
            requests = point.requests(rate)
            arrivals, busy = requests / rate, self.passing(requests * (prompt + output), "serving")
            times.append(max(arrivals, busy) + self.decode(output))
            queued = queued + 1 if busy > arrivals else 0
            if queued == 2:
                break
        between = times[max(0, len(times) - 1 - queued) :][:2]
        return times[0] + point.repeats * (sum(times) + point.refine_steps * max(between))

    def written(self) -> float:
        """Return the bytes of what is large among that which the job leaves on the disk, downloads apart; raises as `seconds`."""
        if self.job.rule == "distill":
            train, size = self.recipe.train, self.size
            added = size.trained(self.spec, train)
            return (2 * added if train == "qkv" else size.checkpoint_bytes(self.spec)) + STATES * 12 * added
        if self.job.rule == "teacher_states":
            stored = 1 + len(self.config.stored_layers(self.model, self.job.wildcards["recipe"]))
            return 2 * self.packed_rows * self.recipe.max_length * self.size.width * stored
        return 0.0


def time_limit(work: Work) -> int:
    """Return the minutes after which a cluster may end a job: twice its estimate, at least two hours, in whole hours.

    Measured times have no part in it, because a running job has to come to the limit that it was submitted with.
    """
    try:
        seconds = work.seconds()
    except UserError:  # nothing says how long it takes; further attempts get more
        seconds = 4 * HOUR
    return 60 * max(2, math.ceil(2 * seconds / HOUR))


def processor_speed(config: Config) -> float:
    """Return how fast this processor is, relative to the one that `planning.cpu` was measured on.

    Times one matrix product on one thread, in the number format that models compute in here; the fastest of many counts.
    """
    import torch

    from swiftkv.device import compute_dtype

    threads, dtype = torch.get_num_threads(), compute_dtype("cpu")
    torch.set_num_threads(1)
    layer, rows = torch.nn.Linear(576, 1536, dtype=dtype), torch.ones(512, 576, dtype=dtype)
    with torch.inference_mode():
        fastest = min(timeit.repeat(lambda: layer(rows), number=1, repeat=30))  # the others waited for other programs
    torch.set_num_threads(threads)
    return 2 * 512 * 576 * 1536 / fastest / GIGA / config.planning.cpu.product


def estimates(
    profile: Profile, config: Config, jobs: Sequence[PlannedJob], finished: Sequence[PlannedJob] = ()
) -> pd.DataFrame:
    """Return what each job takes: the time it took before, else its estimate, corrected by those of finished jobs.

    Where jobs run models on this processor, it is timed.

    Args:
        profile, config, jobs: of the run.
        finished: other jobs of the same configuration; those with a benchmark file count.

    Returns:
        A row for each job: rule, model, GPUs, seconds, GPU-hours, bytes written, whether the time is measured, and why it
        is not known, where it counts as nothing.
    """
    here = profile.cores is not None and any(stage_of(job.rule).gpus and not job.gpus for job in jobs)
    speed = processor_speed(config) if here else 1.0
    rows = []
    for job in [*jobs, *finished]:
        work = Work(job, config, speed)
        row = {
            "rule": job.rule,
            "model": work.model,
            "gpus": work.gpus if profile.cores is None else job.gpus,
            "took": measured_seconds(job),
        }
        try:
            row |= {"seconds": work.seconds(), "written": work.written(), "why": ""}
        except UserError as error:
            row |= {"seconds": 0.0, "written": 0.0, "why": "" if row["took"] else str(error)}
        rows.append(row)
    found = pd.DataFrame(rows, columns=["rule", "model", "gpus", "took", "seconds", "written", "why"])
    found["took"] = found.took.astype(float)
    timed = found.took.notna() & (found.seconds > 0)
    alike = found[["took", "seconds"]].where(timed).groupby([found.rule, found.model]).transform("sum")
    ratio = alike.took / alike.seconds
    found["measured"] = found.took.notna() | (found.seconds * ratio > 0)
    found["seconds"] = found.took.fillna(found.seconds * ratio.fillna(1))
    found["gpu_hours"] = found.gpus * found.seconds / HOUR
    return found.head(len(jobs))


def measured_seconds(job: PlannedJob) -> float | None:
    """Return the wall time of a job by Snakemake's benchmark file; None if it has not run to its end."""
    try:
        return float(pd.read_csv(job.benchmark or "", sep="\t")["s"].iloc[-1])
    except (OSError, IndexError, KeyError, ValueError):
        return None  # Snakemake writes it at the job's end; a damaged one says nothing
