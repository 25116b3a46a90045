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
from pipeline.config.catalogue import asked, asks
from pipeline.config.planning import Mix
from pipeline.config.settings import FAMILIES
from pipeline.config.sources import PackagedModel
from pipeline.run.jobs import EXCLUSIVE, PlannedJob, Profile
from pipeline.run.sizes import Size
from pipeline.stages import stage_of
from swiftkv.cost import GIGA
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

TERA = 10**12
HOUR = 3600
LONGEST = 2  # assumed: the longest of a batch of answers, in mean lengths
BUSY = 0.9  # load above which a server's requests wait for each other
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
    def packaged(self) -> bool:
        """Whether the model comes with an installed package."""
        return isinstance(self.config.models[self.model].source, PackagedModel)

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
        """The section of the configuration that the job's rule measures by."""
        return getattr(self.config, self.job.rule.removeprefix("evaluate_"))

    @property
    def text(self) -> Mix:
        """The length of the data mix that the job reads.

        Raises:
            UserError: the configuration does not state it.
        """
        mix = self.job.wildcards.get("data", self.config.heldout.data)
        if "recipe" in self.job.wildcards or self.job.rule == "distill":
            mix = self.recipe.data
        elif self.job.rule in ("similarity", "evaluate_reading"):
            mix = self.settings.data
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
            return host.start + self.size.bytes / GIGA / (host.convert_gb if self.packaged else host.download_gb)
        if rule in ("heldout", "corpus", "pack"):
            return host.start + self.text.tokens / (host.pack_tokens if rule == "pack" else host.read_tokens)
        if stage_of(rule).gpus is None:
            return host.start
        functions = {
            "teacher_states": self._teacher, "moments": self._teacher, "distill": self._training, "measure": self._serving,
            "fidelity": self._chats, "similarity": self._chats, "evaluate_early_exit": self._chats,
            "evaluate_reading": self._reading, "reading_moments": self._teacher,
        }  # fmt: skip
        weights = self.size.bytes / GIGA / self.speeds.load_gb
        return self.speeds.start + weights + functions.get(rule, self._scoring)()

    def compute(self, flops: float, work: str, devices: int) -> float:
        """Return the seconds of so many FLOPs; `work` is training, forward or serving.

        On a processor only the time within matrix products follows this machine's; that between them is taken as it was
        measured.
        """
        seconds = 1 / (getattr(self.speeds, work) * TERA)
        if not self.job.gpus:
            seconds += (1 / self.product - 1) / (self.config.planning.cpu.product * GIGA)
        return flops * seconds / devices

    def forward(self, tokens: float) -> float:
        """Return the seconds of forward passes of transformers, in which one GPU works at a time."""
        return self.compute(2 * tokens * self.size.passed, "forward", 1 if self.job.gpus else self.devices)

    def busy(self, tokens: float) -> float:
        """Return the seconds of so many tokens in a busy vLLM engine."""
        return self.compute(2 * tokens * self.size.passed, "serving", self.devices)

    def decode(self, steps: float) -> float:
        """Return the seconds of so many decoding steps, one after the other."""
        return steps * self.size.layers * self.speeds.layer_ms / 1000

    def _teacher(self) -> float:
        """The teacher over all rows; for a fitted start over some of them, whose sums take as long again."""
        tokens = self.packed_rows * self.recipe.max_length
        return self.forward(2 * min(tokens, self.recipe.start_tokens) if "moments" in self.job.rule else tokens)

    def _training(self) -> float:
        """2 FLOPs for each parameter that a token passes forward, 2 where a gradient passes back, 2 for each trained."""
        recipe, size, spec = self.recipe, self.size, self.spec
        upper = size.body * (1 - spec.num_key_value_layers / size.layers if spec else 1)
        taught, trained = recipe.loss == "distillation", size.trained(spec, recipe.train)
        flops = 4 * upper + 2 * trained + 2 * (2 + taught) * size.head
        if recipe.checkpoint_activations:
            flops += 2 * upper
        if not taught or recipe.teacher_states == "online":
            flops += 2 * (size.body - upper) + 2 * upper * taught
        tokens = recipe.total_steps(self.packed_rows) * recipe.batch_size * recipe.max_length
        saved = (12 * trained + size.bytes) / GIGA / self.speeds.load_gb
        return self.compute(tokens * flops, "training", self.devices) + saved

    def _scoring(self) -> float:
        """Prompts, of log-likelihoods their common start once; then the steps of answers that are generated."""
        job, config, total = self.job, self.config, 0.0
        # Tasks that read other metrics off the same answers are asked once.
        names = [Path(path).stem for path in job.outputs]
        names = list({asked(config.tasks[name].model_dump()): name for name in names}.values())
        for name in names:
            amount, batch = asks(config.tasks[name], name), config.tasks[name].batch_size
            starts = amount.questions if amount.answer else 1
            tokens = amount.questions * amount.prompt + starts * amount.shots
            if config.scoring_engine(self.model, self.variant, job.wildcards["kv_cache"], name):
                total += self.speeds.engine + self.busy(tokens + amount.questions * amount.answer)
            else:
                steps = math.ceil(amount.questions / batch) * LONGEST * amount.answer
                total += self.forward(tokens + steps * batch) + self.decode(steps)
        return total + len(names) * self.speeds.task

    def _chats(self) -> float:
        """Forward passes: four of fidelity of a changed model (teacher, student, start), three and answers of early exit."""
        rule, settings = self.job.rule, self.settings
        tokens = settings.documents * min(self.text.chat_tokens, settings.max_length)
        if rule == "evaluate_early_exit":
            answers = 2 * (settings.prompts + len(settings.questions) + 1)
            return self.forward(3 * tokens) + self.decode(answers * settings.max_new_tokens)
        changed = rule == "fidelity" and self.config.variants[self.variant].changed
        return self.forward(tokens * (4 if changed else 2))

    def _reading(self) -> float:
        """The unchanged model over all prompts, from which a trained variant goes on; a family takes about as long again."""
        asked = self.config.reading
        passages = (asked.items + 4 * asked.among) * self.text.chat_tokens
        passes = 2 if self.variant in FAMILIES else 1
        return self.forward(passes * (passages + asked.synthetic * sum([*asked.induction, *asked.retrieval])))

    def _serving(self) -> float:
        """One start of the engine, and of the baseline's where a point is measured in turns with it; then all points."""
        changed = self.variant != "baseline"
        sides = {name: 2 if changed and self.config.in_turns(name) else 1 for name in self.job.points}
        measuring = sum(sides[name] * self._point(name) for name in sides)
        return self.speeds.engine * max(sides.values()) + measuring

    def _point(self, name: str) -> float:
        """Tokens at the speed of a busy engine; at a request rate, the time in which requests come."""
        point = self.config.serving.points[name]
        prompt = getattr(point, "input_tokens", None) or sum(getattr(point, "batch_tokens", ()))
        output = getattr(point, "output_tokens", None) or self.config.serving.output_tokens
        repeats, answer = getattr(point, "repeats", 1), self.decode(output)
        if point.measure == "throughput":
            return repeats * self.busy(point.total_tokens)
        if point.measure == "forward_time":
            return 2 * repeats * self.busy(prompt)
        if point.measure == "decode":
            return (1 + repeats) * sum(self.busy(batch * prompt) + answer for batch in point.batch_sizes)
        if point.measure == "answer":
            return repeats * (self.busy(point.batch * self.text.chat_tokens) + answer)
        seconds = 0.0
        for rate in sorted(getattr(point, "request_rates", ())):
            busy = self.busy(rate * (prompt + output))  # of each second
            run = max(point.min_requests / rate, point.seconds) * max(1, busy) + answer
            spent = repeats * run
            seconds += spent if seconds else spent + run  # the first once more, to warm up
            if busy > BUSY:
                return seconds + point.refine_steps * spent
        return seconds

    def written(self) -> float:
        """Return the bytes of what is large among that which the job leaves on the disk, downloads apart; raises as `seconds`."""
        rule, config = self.job.rule, self.config
        if rule == "distill":
            return self.size.checkpoint_bytes(self.spec) + STATES * 12 * self.size.trained(self.spec, self.recipe.train)
        if rule == "teacher_states":
            recipes = [name for name, recipe in config.recipes.items() if recipe.data == self.recipe.data]
            stored = 1 + len(config.stored_layers(self.model, recipes))
            return 2 * self.packed_rows * self.recipe.max_length * self.size.width * stored
        return self.size.bytes if rule == "resolve_model" and self.packaged else 0.0


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
    found["measured"] = found.took.notna() | (alike.seconds > 0) & (found.seconds > 0)
    found["seconds"] = found.took.fillna(found.seconds * (alike.took / alike.seconds).fillna(1))
    found["gpu_hours"] = found.gpus * found.seconds / HOUR
    return found.head(len(jobs))


def measured_seconds(job: PlannedJob) -> float | None:
    """Return the wall time of a job by Snakemake's benchmark file; None if it has not run to its end."""
    try:
        return float(pd.read_csv(job.benchmark or "", sep="\t")["s"].iloc[-1])
    except (OSError, IndexError, KeyError, ValueError):
        return None  # Snakemake writes it at the job's end; a damaged one says nothing
