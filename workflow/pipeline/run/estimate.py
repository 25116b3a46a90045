"""How long a planned job takes, and what it leaves on the disk.

A job takes the time it took before, or what jobs of its rule and model took of their estimates, where there are such. All
others are estimated from their tokens and the speeds under `planning` in the configuration; the aim is a factor of two.
Nothing here imports torch but `processor_speed`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.config import Config
from pipeline.config.catalogue import asked, asks
from pipeline.config.sources import PackagedModel
from pipeline.run.jobs import PlannedJob, Profile
from pipeline.run.sizes import TOKENIZER_BYTES, Size
from pipeline.stages import stage_of
from swiftkv.cost import GIGA
from swiftkv.distill.recipe import Fitting, Recipe
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

TERA = 10**12
LONGEST = 2  # assumed: the longest of a batch of answers, in mean lengths
BUSY = 0.9  # load above which a server's requests wait for each other
STATES = 3  # training states that lie on the disk at once
TOKEN_BYTES, TEXT_BYTES = 10, 4  # of a packed token, and of one as text
OUTPUT_BYTES = 10**5  # of any other output


class Work:
    """A planned job, and how long it takes by the configuration's speeds; the arguments are those of `estimates`."""

    def __init__(self, job: PlannedJob, config: Config, root: Path, speed: float = 1.0) -> None:
        self.job, self.config, self.root = job, config, root
        self.kind = "gpu" if job.gpus else "cpu"
        self.speeds = getattr(config.planning, self.kind)
        self.product = speed
        self.devices = job.gpus or job.threads

    @cached_property
    def size(self) -> Size:
        """The model's size."""
        return Size.of(self.config, self.job.wildcards["model"], self.root)

    @property
    def packaged(self) -> bool:
        """Whether the model comes with an installed package."""
        return isinstance(self.config.models[self.job.wildcards["model"]].source, PackagedModel)

    @property
    def spec(self) -> SwiftKVSpec | None:
        """The variant's rewiring; None for the unchanged model."""
        return self.config.spec(self.job.wildcards["model"], self.job.wildcards["variant"])

    @property
    def recipe(self) -> Recipe:
        """The recipe that the job names, or its variant's."""
        named = self.job.wildcards.get("recipe") or self.config.variants[self.job.wildcards["variant"]].recipe
        return self.config.recipe(self.job.wildcards["model"], named)

    def seconds(self) -> float:
        """Return how long the job takes.

        Raises:
            UserError: the size of its model or of its text is not known yet.
        """
        rule, host = self.job.rule, self.config.planning.host
        if rule in ("resolve_model", "fetch_checkpoint"):
            speed = host.convert_gb if self.packaged else host.download_gb
            return host.start.value + self.size.bytes / GIGA / speed.value
        if rule in ("heldout", "corpus"):
            return host.start.value + self._text("tokens") / host.read_tokens.value
        if rule == "pack":
            return host.start.value + self._text("tokens") / host.pack_tokens.value
        functions = {
            "teacher_states": self._teacher,
            "moments": self._teacher,
            "reading_moments": self._teacher,
            "reading": self._reading,
            "distill": self._training,
            "fidelity": self._comparing,
            "similarity": self._comparing,
            "early_exit": self._early_exit,
            "measure": self._serving,
        }
        function = self._scoring if rule.startswith("score") else functions.get(rule)
        if function is None:
            return host.start.value
        weights = self.size.bytes / GIGA / self.speeds.load_gb.value
        return self.speeds.start.value + weights + function()

    def compute(self, flops: float, work: str, devices: int) -> float:
        """Return the seconds of so many FLOPs; `work` is training, forward or serving.

        On a processor only the time within matrix products follows this machine's; that between them is taken as it was
        measured.
        """
        seconds = 1 / (getattr(self.speeds, work).value * TERA)
        if self.kind == "cpu":
            seconds += (1 / self.product - 1) / (self.speeds.product.value * GIGA)
        return flops * seconds / devices

    def forward(self, tokens: float) -> float:
        """Return the seconds of forward passes of transformers, in which one GPU works at a time."""
        return self.compute(2 * tokens * self.size.passed, "forward", 1 if self.job.gpus else self.devices)

    def busy(self, tokens: float) -> float:
        """Return the seconds of so many tokens in a busy vLLM engine."""
        return self.compute(2 * tokens * self.size.passed, "serving", self.devices)

    def decode(self, steps: float) -> float:
        """Return the seconds of so many decoding steps, one after the other."""
        return steps * self.size.layers * self.speeds.layer_ms.value / 1000

    def _text(self, name: str) -> float:
        mix = self.job.wildcards.get("data", self.config.heldout.data)
        mix = self.recipe.data if "recipe" in self.job.wildcards or self.job.rule == "distill" else mix
        if self.job.rule in ("similarity", "reading"):
            mix = getattr(self.config, self.job.rule).data
        if mix not in self.config.planning.data:
            raise UserError(
                f"nothing says how long data mix {mix!r} is before it is built; state it under planning.data"
            )
        return getattr(self.config.planning.data[mix], name).value

    @property
    def packed_rows(self) -> int:
        """Rows that the recipe trains on: those of the packed file, or else estimated from the tokens of its mix."""
        file = next((Path(path) for path in self.job.inputs if "/packed/" in path), None)
        if file is not None and file.exists():
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                return json.loads(stream.read(length))["input_ids"]["shape"][0]
        whole, recipe = math.ceil(self._text("tokens") / self.recipe.max_length), self.recipe
        return whole if recipe.max_steps is None else min(whole, recipe.max_steps * recipe.batch_size)

    def _teacher(self) -> float:
        """The teacher over all rows; for a fitted start over some of them, whose sums take as long again."""
        tokens = self.packed_rows * self.recipe.max_length
        return self.forward(2 * min(tokens, self.recipe.start_tokens) if "moments" in self.job.rule else tokens)

    def _training(self) -> float:
        recipe = self.recipe
        tokens = recipe.total_steps(self.packed_rows) * recipe.batch_size * recipe.max_length
        training = self.compute(tokens * training_flops(self.size, self.spec, recipe), "training", self.devices)
        saved = 12 * self.size.trained(self.spec, recipe.train) + self.size.bytes
        return training + saved / GIGA / self.speeds.load_gb.value

    def _scoring(self) -> float:
        """Every prompt token once, where a processor shares what prompts have in common; then the steps of answers."""
        job, config = self.job, self.config
        # A shard's file is called by its number. Tasks that read other metrics off the same answers are asked once.
        names = [job.wildcards["task"]] if "task" in job.wildcards else [Path(path).stem for path in job.outputs]
        names = list({asked(config.tasks[name].model_dump()): name for name in names}.values())
        shards, total = int(job.wildcards.get("shards", 1)), 0.0
        for name in names:
            entry, amount = config.tasks[name], asks(config.tasks[name], name)
            prompt, choices = amount.shots + amount.prompt, max(1, amount.choices) * amount.choice
            if config.scoring_engine(job.wildcards["model"], job.wildcards["variant"], job.wildcards["kv_cache"], name):
                total += self.speeds.engine.value + self.busy(amount.questions * (prompt + amount.answer)) / shards
                continue
            if job.gpus:
                tokens = amount.questions * max(1, amount.choices) * (prompt + amount.choice)
            else:
                tokens = amount.questions * (amount.prompt + choices) + amount.shots
            steps = math.ceil(amount.questions / entry.batch_size) * LONGEST * amount.answer
            total += (self.forward(tokens + steps * entry.batch_size) + self.decode(steps)) / shards
        return total + len(names) * self.speeds.task.value

    def _comparing(self) -> float:
        """Four passes of a changed model: teacher, student and start; else two, as of similarity."""
        settings = self.config.similarity if self.job.rule == "similarity" else self.config.fidelity
        tokens = settings.documents * min(self._text("chat_tokens"), settings.max_length)
        changed = self.job.rule == "fidelity" and self.config.variants[self.job.wildcards["variant"]].changed
        return self.forward(tokens * (4 if changed else 2))

    def _reading(self) -> float:
        """The unchanged model over all prompts; the members of a family, or a trained variant, take about as long again."""
        asked = self.config.reading
        passages = (asked.items + 4 * asked.among) * self._text("chat_tokens")
        return self.forward(2 * (passages + asked.synthetic * sum([*asked.induction, *asked.retrieval])))

    def _early_exit(self) -> float:
        settings = self.config.early_exit
        tokens = settings.documents * min(self._text("chat_tokens"), settings.max_length)
        answers = 2 * (settings.prompts + len(settings.questions) + 1)
        return self.forward(3 * tokens) + self.decode(answers * settings.max_new_tokens)

    def _serving(self) -> float:
        """One start of the engine, and of the baseline's where a point is measured in turns with it; then all points."""
        changed = self.job.wildcards["variant"] != "baseline"
        sides = {name: 2 if changed and self.config.in_turns(name) else 1 for name in self.job.points}
        measuring = sum(sides[name] * self._point(name) for name in sides)
        return self.speeds.engine.value * max(sides.values()) + measuring

    def _point(self, name: str) -> float:
        """Tokens at the speed of a busy engine; at a request rate, the time in which requests come."""
        config, point = self.config, self.config.serving.points[name]
        prompt = getattr(point, "input_tokens", None) or sum(getattr(point, "batch_tokens", ()))
        output = getattr(point, "output_tokens", None) or config.serving.output_tokens
        repeats, answer = getattr(point, "repeats", 1), self.decode(output)

        if point.measure == "throughput":
            seconds = repeats * self.busy(point.total_tokens)
        elif point.measure == "latency":
            seconds, spent = 0.0, 0.0
            for rate in sorted(point.request_rates):
                count = max(point.min_requests, round(rate * point.seconds))
                spent = max(count / rate, self.busy(count * (prompt + output))) + answer
                seconds += spent if seconds else 2 * spent  # the first once more, to warm up
                if self.busy(rate * (prompt + output)) > BUSY:
                    seconds += point.refine_steps * spent
                    break
        elif point.measure == "forward_time":
            seconds = 2 * repeats * self.busy(prompt)
        elif point.measure == "decode":
            seconds = (1 + repeats) * sum(self.busy(batch * prompt) + answer for batch in point.batch_sizes)
        else:
            seconds = 2 * repeats * (self.busy(prompt) + answer) if point.measure == "answer" else 0.0
        return seconds

    def written(self) -> float:
        """Return the bytes that the job leaves on the disk, downloads apart; 0 if they are not known yet."""
        with contextlib.suppress(UserError):
            return self._written()
        return 0.0

    def _written(self) -> float:
        rule = self.job.rule
        if rule == "distill":
            states = STATES * 12 * self.size.trained(self.spec, self.recipe.train)
            return self.size.checkpoint_bytes(self.spec) + states
        if rule == "teacher_states":
            recipes = [name for name, recipe in self.config.recipes.items() if recipe.data == self.recipe.data]
            stored = 1 + len(self.config.stored_layers(self.job.wildcards["model"], recipes))
            return 2 * self.packed_rows * self.recipe.max_length * self.size.width * stored
        if "moments" in rule:  # a float32 fit of keys and values for each l and layer above, and three covariances an l
            recipes = self.config.alike(self.job.wildcards["recipe"], Fitting)
            model = self.job.wildcards["model"]
            trained = rule == "moments"
            below = self.config.fitted_layers(model, recipes) if trained else self.config.reading_layers(model)
            fits = sum(self.size.layers - layer for layer in below) * self.size.dimensions.cached()
            return 4 * self.size.width * (fits + 3 * len(below) * self.size.width)
        if rule in ("pack", "corpus"):
            rows = self.packed_rows * self.recipe.max_length if rule == "pack" else self._text("tokens")
            return rows * (TOKEN_BYTES if rule == "pack" else TEXT_BYTES)
        if rule == "resolve_model" and self.packaged:
            return self.size.bytes
        return TOKENIZER_BYTES if rule == "dummy_checkpoint" else OUTPUT_BYTES * len(self.job.outputs)


def training_flops(size: Size, spec: SwiftKVSpec | None, recipe: Recipe) -> float:
    """Return the FLOPs of a trained token.

    They are 2 for each parameter that it passes forward, 2 where a gradient passes back, and 2 for each that is trained.

    Args:
        size: of the model.
        spec: the rewiring; None trains the model as it is.
        recipe: how it is trained.
    """
    if spec is None:
        return 6 * size.passed + (2 * size.body if recipe.checkpoint_activations else 0)
    upper = size.body * (1 - spec.num_key_value_layers / size.layers)
    taught = recipe.loss == "distillation"
    flops = 4 * upper + 2 * size.trained(spec, recipe.train) + 2 * (2 + taught) * size.head
    flops += 2 * upper if recipe.checkpoint_activations else 0
    if not (taught and recipe.teacher_states == "stored"):
        flops += 2 * (size.body - upper) + (2 * upper if taught else 0)
    return flops


def processor_speed(config: Config, seconds: float = 0.2) -> float:
    """Return how fast this processor is, relative to the one that `planning.cpu` was measured on.

    Times one matrix product on one thread, in the number format that models compute in here; the fastest of many counts.
    """
    import torch

    from swiftkv.device import compute_dtype

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        dtype = compute_dtype("cpu")
        layer, rows = torch.nn.Linear(576, 1536, dtype=dtype), torch.ones(512, 576, dtype=dtype)
        with torch.no_grad():
            fastest, end = math.inf, time.perf_counter() + seconds  # the others waited for other programs
            while (start := time.perf_counter()) < end:
                layer(rows)
                fastest = min(fastest, time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 2 * 512 * 576 * 1536 / fastest / GIGA / config.planning.cpu.product.value


def speed_of(profile: Profile, config: Config, jobs: Iterable[PlannedJob]) -> float:
    """Return `processor_speed` where jobs run models on this processor, else 1."""
    here = profile.cores is not None and any(stage_of(job.rule).gpus and not job.gpus for job in jobs)
    return processor_speed(config) if here else 1.0


@dataclass(frozen=True)
class Estimate:
    """The seconds that a job takes: measured, or estimated; `why` they are not known, where they count as nothing."""

    seconds: float
    measured: bool = False
    why: str = ""


def estimates(
    root: Path,
    config: Config,
    jobs: Sequence[PlannedJob],
    finished: Sequence[PlannedJob] = (),
    speed: float = 1.0,
) -> list[Estimate]:
    """Return the time of each job: what it took before, else its estimate, corrected by those of finished jobs.

    Args:
        root: folder of the project.
        config, jobs: of the run.
        finished: other jobs of the same configuration; those with a benchmark file count.
        speed: of this processor, as `processor_speed` measures it.
    """
    computed = []
    for job in [*jobs, *finished]:
        alone, why = 0.0, ""
        try:
            alone = Work(job, config, root, speed).seconds()
        except UserError as error:
            why = str(error)
        computed.append((job, alone, why, measured_seconds(job)))
    sums: dict[tuple[str, str | None], list[float]] = {}
    for job, alone, _, took in computed:
        if took is not None and alone:
            total = sums.setdefault((job.rule, job.wildcards.get("model")), [0.0, 0.0])
            total[0], total[1] = total[0] + took, total[1] + alone
    found = []
    for job, alone, why, took in computed[: len(jobs)]:
        like = sums.get((job.rule, job.wildcards.get("model")))
        if took is not None:
            found.append(Estimate(took, measured=True))
        elif like and alone:
            found.append(Estimate(alone * like[0] / like[1], measured=True))
        else:
            found.append(Estimate(alone, why=why))
    return found


def measured_seconds(job: PlannedJob) -> float | None:
    """Return the wall time of a job by Snakemake's benchmark file; None if it has not run to its end."""
    try:
        with open(job.benchmark or "", encoding="utf-8") as file:
            return float(list(csv.DictReader(file, delimiter="\t"))[-1]["s"])
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        return None  # Snakemake writes it at the job's end; a damaged one says nothing
