"""Speed of serving with SwiftKV, on the processor, measured by the pipeline's own code.

Points of a profile are measured on its small model with SwiftKV, in turns with the unchanged model (A B B A ...), in so many
pairs of engines. A pair's speed-up is the mean over its turns, the result the median over pairs, with the lowest and the
highest: engines of another start may differ by more than turns do.

Speed does not depend on what the weights are: SwiftKV's are those that training starts from. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.records import Record
from pipeline.config import Config
from pipeline.measure.job import ServingSettings, measure_points
from pipeline.records import provenance
from pipeline.run.jobs import read_config, read_profile
from pipeline.sources import read_source, resolve_model
from pipeline.statistics import ratio_of_turns
from swiftkv.errors import command_line
from swiftkv.io import write_json
from swiftkv.models import load_base, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).resolve().parents[1]


def serving(
    config: Config, source: Path, spec: SwiftKVSpec, pairs: int, names: list[str], threads: int
) -> dict[str, Any]:
    """Measure speed-ups over the unchanged model in so many pairs of engines, at points by name."""
    folder = source.parent
    base = load_base(Path(read_source(source)["path"]), torch.bfloat16)
    save_swiftkv(rewire(base, spec), folder / "swiftkv", keep_teacher_qkv=False)
    points = {name: config.point(name) | {"in_turns": True} for name in names}
    settings = ServingSettings("trained", spec.fields, False, None, None, points)
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for pair in range(pairs):
        files = [folder / f"{pair}/{name}/bench/swiftkv/auto.json" for name in names]
        measure_points(
            settings, "bench", "bench", "swiftkv", "auto", source, folder / "swiftkv", None, None, 600, threads, 0,
            folder / "vllm.log", folder / "state", files,
        )  # fmt: skip
        for name, record in zip(names, map(Record.read, files), strict=True):
            batches = record.value("batch_sizes")
            for place, batch in enumerate(batches or [None]):
                turns = record.turns("ms", place) if batches else record.turns()
                limit = None if batches else record.cost["request_speedup_limit"]
                row = rows.setdefault((name, batch), {"point": name, "batch": batch, "limit": limit, "speedups": []})
                row["speedups"].append(ratio_of_turns(*turns).value)
    return {"rows": list(rows.values()), "engine": record.engine, "threads": threads}


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="local", help="whose small model and points are measured")
    parser.add_argument("--points", nargs="+", default=["batch-512", "batch-2k", "batch-6k", "decode"])
    parser.add_argument("--layers", type=int, default=14, help="l")
    parser.add_argument("--pairs", type=int, default=5, help="of engines")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="processor threads")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    begin = time.perf_counter()
    config = read_config(ROOT, read_profile(options.profile, ROOT))
    model = config.roles["small"]
    spec = SwiftKVSpec(config.models[model].num_hidden_layers, options.layers)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.json")
        entry = config.models[model].source.model_dump(exclude_unset=True)
        write_json(source, resolve_model("bench", model, entry, Path(folder, "base")))
        result = serving(config, source, spec, options.pairs, options.points, options.threads)
    for row in result["rows"]:
        ratios = row["speedups"]
        row |= {"speedup": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        print(row)
    write_json(options.output, result | {"spec": spec.fields, "provenance": provenance(time.perf_counter() - begin)})


if __name__ == "__main__":
    main()
