"""Speed of serving with SwiftKV, on the processor, measured by the pipeline's own code.

Speed does not depend on what the weights are: SwiftKV's are those that training starts from. Nothing else may run meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.records import Record
from pipeline.measure.job import ServingSettings, measure_points
from pipeline.records import provenance
from pipeline.run.jobs import read_config, read_profile
from pipeline.sources import resolve_model
from pipeline.stages import command
from pipeline.statistics import ratio_of_turns
from swiftkv.errors import command_line
from swiftkv.io import write_json
from swiftkv.models import load_base, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).resolve().parents[1]


def bench(
    output: Path,
    profile: str = "local",
    points: Sequence[str] = ("batch-512", "batch-2k", "batch-6k", "decode"),
    layers: int = 14,
    pairs: int = 5,
    threads: int = 2,
) -> None:
    """Measure speed-ups of a profile's small model over the unchanged one, in turns (A B B A ...).

    A pair's speed-up is the mean over its turns, the result the median over pairs, with the lowest and the highest: engines
    of another start may differ by more than turns do.

    Args:
        output: JSON file.
        profile: whose small model and points are measured.
        points: of throughput and decoding, by name.
        layers: l.
        pairs: of engines.
        threads: processor threads.
    """
    begin, config = time.perf_counter(), read_config(ROOT, read_profile(profile, ROOT))
    model, rows = config.models[config.roles["small"]], {}
    spec = SwiftKVSpec(model.num_hidden_layers, layers)
    asked = {name: config.point(name) | {"in_turns": True} for name in points}
    settings = ServingSettings("trained", spec.fields, False, None, asked)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        resolve_model("bench", model.title, model.source.model_dump(exclude_unset=True), folder / "source.json")
        base = load_base(folder / "base", torch.bfloat16)
        save_swiftkv(rewire(base, spec), folder / "swiftkv", keep_teacher_qkv=False)
        for pair in range(pairs):
            files = [folder / f"{pair}/{name}/bench/swiftkv/auto.json" for name in points]
            measure_points(
                settings, "bench", model.title, "swiftkv", "auto", folder / "source.json", folder / "swiftkv", None, None,
                600, threads, 0, folder / "vllm.log", folder / "state", files,
            )  # fmt: skip
            for name, record in zip(points, map(Record.read, files), strict=True):
                batches = record.value("batch_sizes")
                for place, batch in enumerate(batches or [None]):
                    turns = record.turns("ms", place) if batches else record.turns()
                    limit = None if batches else record.cost["request_speedup_limit"]
                    row = rows.setdefault(
                        (name, batch), {"point": name, "batch": batch, "limit": limit, "speedups": []}
                    )
                    row["speedups"].append(ratio_of_turns(*turns).value)
    for row in rows.values():
        ratios = row["speedups"]
        row |= {"speedup": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        print(row)
    result: dict[str, Any] = {"rows": list(rows.values()), "engine": record.engine, "threads": threads}
    write_json(output, result | {"spec": spec.fields, "provenance": provenance(time.perf_counter() - begin)})


if __name__ == "__main__":
    command_line(command.call)(bench, sys.argv[1:], "bench.py")
