"""A planned job, and what the formulas of its stage ask about it: model, recipe, text, machine."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from swiftkv.config import Config
from swiftkv.config.settings import Model, Variant
from swiftkv.cost import GIGA
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.predict.device import Device
from swiftkv.pricing.size import Size
from swiftkv.section import Section
from swiftkv.spec import SwiftKVSpec

DOWNLOADED = ("model", "checkpoint", "tokenizer", "data set", "questions")  # in the order in which plans list them


class Resources(dict):
    """Resources of a job, as items and, as Snakemake's SLURM plugin reads them, as attributes; whole numbers are numbers."""

    __getattr__ = dict.__getitem__


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run.

    Attributes:
        rule: its name.
        wildcards: by name.
        inputs, outputs, benchmark: paths.
        threads: on the processor.
        resources: as rule, profile and site state them.
        local: whether it runs beside Snakemake, also where others go to a cluster.
    """

    rule: str
    wildcards: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    benchmark: str | None = None
    threads: int = 1
    resources: Resources = field(default_factory=Resources)
    local: bool = False

    @property
    def gpus(self) -> int:
        """GPUs over all its nodes."""
        return self.resources.get("gpu", 0)


@dataclass(frozen=True)
class Download:
    """Something a job fetches.

    Attributes:
        what: one of `DOWNLOADED`.
        hub: org/name, or the address of a file elsewhere; of questions whose data set only lm-eval's files name, the name
            of lm-eval's task.
        revision: branch, tag or commit.
        files: patterns of the files that are loaded; None loads all.
        bytes: the size of its weights; None where nothing here says how large it is.
        gated: whether its license has to be accepted first.
        optional: whether a run goes on without it.
    """

    what: str
    hub: str
    revision: str = "main"
    files: tuple[str, ...] | None = None
    bytes: int | None = None
    gated: bool = False
    optional: bool = False

    @property
    def origin(self) -> str:
        """The kind of repository, as the hub calls it: "model" or "dataset"."""
        return "dataset" if self.what in ("data set", "questions") else "model"


def download(
    what: str, source: Section | None, files: Iterable[str] | None = None, size: int | None = None
) -> list[Download]:
    """What a source of the configuration fetches: nothing if it is local or packaged."""
    place = getattr(source, "hub", None) or getattr(source, "url", None)
    settings = {name: getattr(source, name) for name in ("revision", "gated", "optional") if hasattr(source, name)}
    return [Download(what, place, files=tuple(files) if files else None, bytes=size, **settings)] if place else []


def once(downloads: Iterable[Download]) -> list[Download]:
    """Each revision of a repository once, with the most that is loaded of it, models first."""
    merged: dict[tuple[str, str, str], Download] = {}
    for item in downloads:
        other = merged.setdefault((item.origin, item.hub, item.revision), item)
        larger = max(other, item, key=lambda one: (one.files is None, len(one.files or ()), one.bytes or 0))
        optional, gated = other.optional and item.optional, other.gated or item.gated
        merged[item.origin, item.hub, item.revision] = replace(larger, optional=optional, gated=gated)
    return sorted(merged.values(), key=lambda item: DOWNLOADED.index(item.what))


class Machine:
    """How fast a job's machine is assumed to be (`planning` of the configuration).

    Args:
        config: the configuration.
        gpus: the GPUs of the job; without any it computes on `threads` cores of a processor.
    """

    def __init__(self, config: Config, gpus: int, threads: int = 1) -> None:
        self.kind = "gpu" if gpus else "cpu"
        self.assumed = getattr(config.planning, self.kind)
        self.device = Device.load(self.assumed.device)
        # transformers spreads a model over GPUs of which one works at a time; cores work together.
        self.together, self.alone = (gpus, 1) if gpus else (threads, threads)

    def __getitem__(self, name: str) -> float:
        """The value of an assumption."""
        return getattr(self.assumed, name).value

    @property
    def training_memory(self) -> float:
        """Bytes of a GPU that a training's tensors may take."""
        share = self.assumed.training_memory
        return self.device.memory * (share.value if share else 1)

    def compute(self, flops: float, work: str, devices: int = 1) -> float:
        """Seconds of matrix products in 16 bits; `work` names the assumed share of the peak."""
        return flops / (devices * self.device.flops * self[work])

    def decode(self, steps: float, weights: float, layers: int) -> float:
        """Seconds of decoding steps of transformers, each of which reads the weights (bytes) and goes through the layers."""
        return steps * (weights / (self.device.bandwidth * self.device.memory_share) + layers * self["layer_ms"] / 1000)

    def load(self, weights: float) -> float:
        """Seconds from the disk into memory, or back; weights in bytes."""
        return weights / (self["load_gb"] * GIGA)


class Work:
    """A planned job of a configuration. What cannot be said yet is a `UserError` with the reason.

    Args:
        job: as Snakemake plans it.
        config: the configuration.
        root: folder of the project, in which `architecture` files lie.
    """

    def __init__(self, job: PlannedJob, config: Config, root: Path) -> None:
        self.job, self.config, self.root = job, config, root
        self.machine = Machine(config, job.gpus, job.threads)

    def __getitem__(self, wildcard: str) -> str:
        return self.job.wildcards[wildcard]

    @cached_property
    def model(self) -> Model:
        """The model's entry."""
        return self.config.models[self["model"]]

    @cached_property
    def variant(self) -> Variant:
        """The variant's entry."""
        return self.config.variants[self["variant"]]

    @cached_property
    def size(self) -> Size:
        """How big the model is."""
        return Size.of(self.config, self["model"], self.root)

    @cached_property
    def spec(self) -> SwiftKVSpec | None:
        """The rewiring of the variant on the model; None for the unchanged model."""
        return self.config.spec(self["model"], self["variant"])

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that the job names, or its variant's, as the trainer takes it."""
        return self.config.recipe(self["model"], self.job.wildcards.get("recipe") or self.variant.recipe)

    def host(self, assumption: str) -> float:
        """What is assumed of jobs that run no model, and of the network."""
        return getattr(self.config.planning.host, assumption).value

    def start(self, amount: float = 0.0, speed: str = "") -> float:
        """Seconds of a job that runs no model: its start, and an amount at an assumed speed of the host."""
        return self.host("start") + (amount / self.host(speed) if speed else 0.0)

    def fetch(self, size: float, speed: str = "download_gb") -> float:
        """Seconds of a job that downloads or converts so many bytes."""
        return self.start(size / GIGA, speed)

    def run(self, seconds: float) -> float:
        """Seconds of a job that loads the model and computes for so long."""
        return self.machine["start"] + self.machine.load(self.size.bytes) + seconds

    def mix_tokens(self, mix: str) -> float:
        """Tokens of a data mix."""
        return self._assumed(mix, "tokens")

    def chat_tokens(self, mix: str, longest: int) -> float:
        """Mean tokens of a chat of a data mix, cut at `longest`."""
        return min(self._assumed(mix, "chat_tokens"), longest)

    def heldout_tokens(self, longest: int) -> float:
        """The same of the held-out chats."""
        return self.chat_tokens(self.config.heldout.data, longest)

    @cached_property
    def packed_rows(self) -> int:
        """Rows that the recipe trains on: of the packed file if there is one, else from the tokens of its mix."""
        file = next((Path(path) for path in self.job.inputs if "/packed/" in path), None)
        if file is not None and file.exists():
            return _rows(file)
        whole, recipe = math.ceil(self.mix_tokens(self.recipe.data) / self.recipe.max_length), self.recipe
        # Packing stops when there is enough for all steps.
        return whole if recipe.max_steps is None else min(whole, recipe.max_steps * recipe.batch_size)

    @property
    def packed_tokens(self) -> int:
        """Tokens of these rows, padding included."""
        return self.packed_rows * self.recipe.max_length

    def _assumed(self, mix: str, name: str) -> float:
        mixes = self.config.planning.data
        if mix not in mixes:
            raise UserError(
                f"nothing says how long data mix {mix!r} is before it is built; state it under planning.data"
            )
        return getattr(mixes[mix], name).value


def if_known(function: Callable[[], Any], otherwise: Any = None) -> Any:
    """What a function returns, or something else where nothing can be said yet."""
    try:
        return function()
    except UserError:
        return otherwise


def _rows(file: Path) -> int:
    """Rows of a packed file, from its header alone."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        return json.loads(stream.read(length))["input_ids"]["shape"][0]
