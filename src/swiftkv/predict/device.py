"""What a kind of device is capable of: the constants of the model of time, each with its source (resources/devices/)."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from swiftkv.cost import GIGA
from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.section import Quantity, Section, Share, Text, Whole, key, plain, read

FOLDER = Path("resources/devices")
_PROJECT = Path(__file__).parents[3]
TERA, MICRO = 10**12, 1e-6


class Assumption(Section, called="an assumption"):
    """A number that plans and predictions rest on."""

    value: Quantity = key("The number.")
    sure: Literal["measured", "data sheet", "published", "fitted", "assumed"] = key("Where it is from.")
    why: Text = key("What it is, and measured where or assumed why.")


class Proportion(Assumption, called="an assumption"):
    """A share that a plan rests on."""

    value: Share = key("The number, at most 1.")


class _Constants(Section, called="a device's constants"):
    """Of one GPU, or of one core of a processor."""

    tflops: Assumption = key("Peak of matrix products in 16 bits, TFLOP/s.")
    fp8_tflops: Assumption | None = key("The same in FP8; null where it has none.", None)
    memory_gb_per_second: Assumption = key("Peak of its memory, GB/s.")
    memory_gb: Assumption | None = key("Its memory, GB of 10^9 bytes; null for a processor's core.", None)
    reserve_gb: Assumption | None = key("What an engine needs of it besides weights and cache; null for a core.", None)
    link_gb_per_second: Assumption | None = key(
        "Bus bandwidth of an all-reduce, GB/s; null for a processor's core.", None
    )
    reduce_us: Assumption | None = key("What an all-reduce takes however small, microseconds.", None)
    compute_share: Proportion = key("Share of the peak that products and attention reach.")
    memory_share: Proportion = key("Share of the memory's peak that is reached.")
    row_us: Assumption = key("What each token of a step takes besides, microseconds.")
    layer_us: Assumption = key("What each layer takes in every step besides, microseconds.")


class _File(Section, called="a device"):
    """A file of resources/devices."""

    name: Text = key("What it is.")
    reported: Text = key("How CUDA, or the processor, names it; a regular expression.")
    cores: Whole | None = key("Of the processor that was measured, where it is one.", None)
    flag: Text | None = key("What its line of flags in /proc/cpuinfo has to list.", None)
    constants: _Constants


@dataclass(frozen=True)
class Device:
    """One GPU, or one core of a processor.

    Attributes:
        name: what it is.
        flops: peak of 16-bit products a second; fp8_flops of FP8 ones.
        bandwidth: peak bytes a second of its memory.
        memory: bytes of its memory, reserve of them what an engine needs besides weights and cache; 0 for a core.
        link: bytes a second of an all-reduce on the bus; 0 for a core, whose neighbors share its memory.
        reduce: seconds of an all-reduce however small.
        compute_share, memory_share: what of both peaks is reached.
        row: seconds that each token of a step takes besides.
        layer: seconds that each layer takes in every step besides.
        cores: of the processor that was measured; 0 for a GPU.
        kernels: whether what lies between products reads and writes the memory.
    """

    name: str
    flops: float
    fp8_flops: float
    bandwidth: float
    memory: float
    reserve: float
    link: float
    reduce: float
    compute_share: float
    memory_share: float
    row: float
    layer: float
    cores: int = 0
    kernels: bool = True

    @classmethod
    def load(cls, name: str) -> Device:
        """The device called `name` in resources/devices.

        Raises:
            UserError: there is none, or a constant is missing or impossible.
        """
        return cls.read(_file(name))

    @classmethod
    def read(cls, path: Path) -> Device:
        """The device of a file; raises as `load`."""
        file = read(_File, read_json(path), str(path))
        of = {name: constant.value if constant else 0.0 for name, constant in file.constants}
        return cls(
            file.name,
            of["tflops"] * TERA,
            of["fp8_tflops"] * TERA,
            of["memory_gb_per_second"] * GIGA,
            of["memory_gb"] * GIGA,
            of["reserve_gb"] * GIGA,
            of["link_gb_per_second"] * GIGA,
            of["reduce_us"] * MICRO,
            of["compute_share"],
            of["memory_share"],
            of["row_us"] * MICRO,
            of["layer_us"] * MICRO,
            file.cores or 0,
        )

    @classmethod
    def found(cls, gpus: Sequence[str], processor: str, flags: Container[str] = ()) -> Device | None:
        """What a machine computes on, by the names it reports; None where nothing is known of it.

        Args:
            gpus: names of its GPUs; none computes on the processor.
            processor: its processor's name, and flags what that can do.
        """
        reported = gpus[0] if gpus else processor
        for path in devices().values():
            file = read(_File, read_json(path), str(path))
            if re.fullmatch(file.reported, reported) and (file.flag is None or file.flag in flags):
                return cls.read(path)
        return None

    @property
    def peak(self) -> Device:
        """The same at its peaks, with nothing besides: what a roofline knows of it."""
        return replace(self, compute_share=1.0, memory_share=1.0, row=0.0, layer=0.0, reduce=0.0, kernels=False)


def devices() -> dict[str, Path]:
    """The files of devices by name: those of the folder that this runs in before those of the project."""
    return {path.stem: path for root in (_PROJECT, Path()) for path in sorted((root / FOLDER).glob("*.json"))}


def constants(name: str) -> dict[str, dict[str, Any]]:
    """The constants of a device as its file has them, with their sources: name -> value, sure, why; raises as `Device.load`."""
    path = _file(name)
    found = plain(read(_File, read_json(path), str(path)).constants)
    return {each: constant for each, constant in found.items() if constant}


def _file(name: str) -> Path:
    files = devices()
    if name not in files:
        raise UserError(f"there is no device {name!r} in {FOLDER}; there are {', '.join(files)}")
    return files[name]
