"""Serving speed that was published, cell by cell, beside what the model of time predicts of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from swiftkv.cost import parameter_count
from swiftkv.dimensions import Dimensions
from swiftkv.predict.device import Device
from swiftkv.predict.engine import Limits, all_at_once, run
from swiftkv.predict.memory import cache_tokens
from swiftkv.predict.step import Served
from swiftkv.spec import SwiftKVSpec

# Appendix B.2, and the outputs of Section 4.3.
CHUNK, SEQUENCES, OUTPUT, TOTAL, ENGINE = 2048, 256, 256, 15_000_000, {"gpu_memory_utilization": 0.9}
# Of Table 5, which states no lengths; as its points in config.yaml.
TABLE5_PROMPT, TABLE5_TOTAL = 2000, 5_000_000
BASELINE, MERGED, SWIFTKV = "baseline", "merge_all_layers", "swiftkv_50"  # columns
# What was published, of which models, and the device it was published for: files of resources/.
TABLES, MODELS, DEVICE = ("blog_table1", "table5", "values"), ("llama-3.1-8b", "llama-3.1-70b"), "h100-sxm"
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
        served, limits = self.engine(device, configs)
        count = round((TOTAL if self.memory is None else TABLE5_TOTAL) / (self.prompt + OUTPUT))
        seconds = all_at_once(served, limits, self.prompt, OUTPUT, count)
        return seconds and count * (self.prompt + OUTPUT) / seconds

    def engine(self, device: Device, configs: Mapping[str, Mapping[str, Any]]) -> tuple[Served, Limits]:
        """What served it; arguments as `predicted`."""
        config = configs[self.model]
        arch = Dimensions.from_config(config)
        layers, group = arch.num_hidden_layers, 4 if "across4" in self.column else 1
        spec = SwiftKVSpec(layers, layers // 2, group) if self.column.startswith(SWIFTKV) else None
        fp8_cache, merged = self.column.endswith("_fp8"), self.column == MERGED
        served = Served(arch, spec, device, self.gpus, fp8_cache=fp8_cache, merged=merged)
        return served, Limits(
            CHUNK, SEQUENCES, cache_tokens(served, parameter_count(config, spec), ENGINE, self.memory)
        )


@dataclass(frozen=True)
class Statement:
    """One sentence about speed with a number: of the baseline and 50 % SingleInputKV (paper, Sec. 4.3).

    Attributes:
        model: name of its file in resources/architectures, on so many GPUs.
        quantity: a key of `Statement.QUANTITIES`.
        prompt: input tokens; None where the sentence names none.
        low, high: bounds; None where it is open.
        text: in words.
    """

    model: str
    gpus: int
    quantity: str
    prompt: int | None
    low: float | None
    high: float | None
    text: str

    # And the length that stands for a sentence without one: the middle one of rates, the longest for "long inputs".
    QUANTITIES: ClassVar[dict[str, int | None]] = {
        "speedup": None,
        "tokens_per_second": None,
        "tokens_per_second_per_gpu": None,
        "sustained_rate_speedup": 8000,
        "ttft_reduction_percent": 32000,
    }

    @property
    def absolute(self) -> bool:
        """Whether it is a speed, and so off by its source's factor."""
        return self.quantity.startswith("tokens_per_second")

    def predicted(self, device: Device, configs: Mapping[str, Mapping[str, Any]]) -> float:
        """What the model says; arguments as `Cell.predicted`."""
        prompt = self.prompt or self.QUANTITIES[self.quantity] or 0
        pair = [
            Cell(PAPER, "Sec. 4.3", self.model, name, self.gpus, prompt, None, None) for name in (BASELINE, SWIFTKV)
        ]
        if self.quantity == "ttft_reduction_percent":
            alone = [run(*one.engine(device, configs), prompt, OUTPUT, [0.0]) for one in pair]
            base, faster = (timing.first[0] for timing in alone if timing)
            return 100 * (1 - faster / base)
        base, faster = (one.predicted(device, configs) or 0.0 for one in pair)
        if self.absolute:
            return faster / (self.gpus if self.quantity.endswith("_per_gpu") else 1)
        return faster / base

    def error(self, value: float) -> float:
        """How far a value is outside of the bounds, relative to the nearer one; 0 within."""
        if self.low is not None and value < self.low:
            return value / self.low - 1
        return value / self.high - 1 if self.high is not None and value > self.high else 0.0


def cells(blog_table1: Iterable[Mapping[str, Any]], table5: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """All cells of both tables, row by row.

    Args:
        blog_table1, table5: rows of the files in resources/paper, by column; numbers may be strings.
    """
    found = []
    for row in blog_table1:
        for column in (BASELINE, MERGED, SWIFTKV):
            prompt = 1000 * int(str(row["input_length"]).removesuffix("K"))
            rate = float(row[column])
            found.append(Cell(BLOG, "Table 1", row["model"], column, int(float(row["gpus"])), prompt, None, rate))
    for row in table5:
        for column in (BASELINE, MERGED, SWIFTKV, "swiftkv_50_across4", "swiftkv_50_across4_fp8"):
            rate, memory = None if row[column] == "OOM" else float(row[column]), float(row["memory_gb"])
            found.append(Cell(PAPER, "Table 5", row["model"], column, 1, TABLE5_PROMPT, memory, rate))
    return found


def statements(values: Iterable[Mapping[str, Any]]) -> list[Statement]:
    """The sentences of Section 4.3 that the model says something about.

    Args:
        values: rows of resources/paper/values.csv, by column; empty cells are "" or None.
    """
    return [
        Statement(
            row["model"],
            int(float(row["gpus"])),
            row["quantity"],
            int(float(row["input_tokens"])) if row["input_tokens"] else None,
            *(float(row[name]) if row[name] else None for name in ("low", "high")),
            row["text"],
        )
        for row in values
        if row["item"] in ("figure3", "figure4") and row["quantity"] in Statement.QUANTITIES
    ]
