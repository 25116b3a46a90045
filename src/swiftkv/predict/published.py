"""Serving speed that was published, cell by cell, beside what the model of time predicts of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.cost import GIBI, parameter_count
from swiftkv.dimensions import Dimensions
from swiftkv.predict.device import Device
from swiftkv.predict.engine import Limits, all_at_once
from swiftkv.predict.step import Served
from swiftkv.spec import SwiftKVSpec

# Appendix B.2, and the outputs of Section 4.3.
CHUNK, SEQUENCES, OUTPUT, TOTAL, UTILIZATION = 2048, 256, 256, 15_000_000, 0.9
# Of Table 5, which states no lengths; as its points in config.yaml.
TABLE5_PROMPT, TABLE5_TOTAL = 2000, 5_000_000
BASELINE = "baseline"
BLOG, PAPER = "blog", "paper"  # whose absolute numbers differ by a constant factor


@dataclass(frozen=True)
class Cell:
    """One published throughput.

    Attributes:
        source: `BLOG` or `PAPER`; item names the table there.
        model: name of its file in resources/architectures.
        column: of the table: the variant, with its KV-cache format.
        gpus: that serve it.
        prompt: input tokens.
        memory: limit of the table in GB; None is the whole GPU.
        published: input and output tokens a second; None where it is out of memory.
    """

    source: str
    item: str
    model: str
    column: str
    gpus: int
    prompt: int
    memory: float | None
    published: float | None

    @property
    def fitted(self) -> bool:
        """Whether the constants of an H100 are fitted on it: baselines of the smaller model, and nothing else."""
        return self.column == BASELINE and self.gpus == 1

    @property
    def place(self) -> tuple[Any, ...]:
        """What it shares with the baseline that it is compared with."""
        return self.source, self.item, self.model, self.prompt, self.memory

    def predicted(self, device: Device, configs: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Tokens a second by the model; None where one request does not fit.

        Args:
            configs: model -> its config.json.
        """
        config = configs[self.model]
        served = _served(config, self.column, device, self.gpus)
        total = TOTAL if self.memory is None else TABLE5_TOTAL
        count = round(total / (self.prompt + OUTPUT))
        limit = None if self.memory is None else self.memory * GIBI
        limits = Limits(
            CHUNK, SEQUENCES, cache_tokens(served, parameter_count(config, served.spec), UTILIZATION, limit)
        )
        seconds = all_at_once(served, limits, self.prompt, OUTPUT, count)
        return seconds and count * (self.prompt + OUTPUT) / seconds


def cache_tokens(served: Served, parameters: int, utilization: float, limit: float | None = None) -> float:
    """Tokens that fit into the KV cache of GPUs; negative where not even the weights do.

    Args:
        parameters: of the model; served in FP8, one byte each.
        utilization: share of each GPU's memory that the engine takes.
        limit: bytes that it takes at most of each.
    """
    memory = min(served.device.memory * utilization, limit or served.device.memory) - served.device.reserve
    return (served.devices * memory - parameters * (1 if served.fp8 else 2)) / served.cache_bytes


def cells(blog_table1: Iterable[Mapping[str, Any]], table5: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """All cells of both tables, row by row.

    Args:
        blog_table1, table5: rows of the files in resources/paper, by column; numbers may be strings.
    """
    found = []
    for row in blog_table1:
        for column in (BASELINE, "merge_all_layers", "swiftkv_50"):
            prompt = 1000 * int(str(row["input_length"]).removesuffix("K"))
            rate = float(row[column])
            found.append(Cell(BLOG, "Table 1", row["model"], column, int(float(row["gpus"])), prompt, None, rate))
    for row in table5:
        for column in (BASELINE, "merge_all_layers", "swiftkv_50", "swiftkv_50_across4", "swiftkv_50_across4_fp8"):
            rate, memory = None if row[column] == "OOM" else float(row[column]), float(row["memory_gb"])
            found.append(Cell(PAPER, "Table 5", row["model"], column, 1, TABLE5_PROMPT, memory, rate))
    return found


def _served(config: Mapping[str, Any], column: str, device: Device, gpus: int) -> Served:
    arch = Dimensions.from_config(config)
    layers, group = arch.num_hidden_layers, 4 if "across4" in column else 1
    spec = SwiftKVSpec(layers, layers // 2, group) if column.startswith("swiftkv_50") else None
    return Served(arch, spec, device, gpus, fp8_cache=column.endswith("_fp8"), merged=column == "merge_all_layers")
