"""The constants of a device that are fitted: so that the model of time is nearest to measured or published baselines.

`python -m swiftkv.predict.fit` prints those of resources/devices/h100-sxm.json from resources/paper.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swiftkv.dimensions import Dimensions
from swiftkv.predict.device import MICRO, Device
from swiftkv.predict.engine import Limits, all_at_once, decode_step
from swiftkv.predict.published import BLOG, DEVICE, MODELS, TABLES, Cell, cells
from swiftkv.predict.step import Served
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

FREE = ("compute_share", "row", "layer")
_ROUNDS, _STEP, _FARTHEST = 30, 1e-3, 0.5


@dataclass(frozen=True)
class Observation:
    """Something that was measured, and what the model says of it on a device.

    Attributes:
        source: observations of one source may all be off by one factor.
        measured: the number.
        predicted: the model's.
    """

    source: str
    measured: float
    predicted: Callable[[Device], float]


def fit(
    device: Device, observations: Sequence[Observation], reference: str, free: Sequence[str] = FREE
) -> tuple[Device, dict[str, float]]:
    """Least squares of logarithms over the constants `free`, and over one factor for each source but the reference.

    Args:
        device: where the search begins.
        reference: the source whose numbers the constants stand for.

    Returns:
        The device with the constants found, and source -> what its numbers are of the model's.
    """
    point = np.log([getattr(device, name) for name in free])

    def at(logarithms: np.ndarray) -> Device:
        return replace(device, **dict(zip(free, map(float, np.exp(logarithms)), strict=True)))

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        shifted = at(logarithms)
        found = np.array([np.log(one.predicted(shifted) / one.measured) for one in observations])
        for source in {one.source for one in observations} - {reference}:
            own = np.array([one.source == source for one in observations])
            found[own] -= found[own].mean()
        return found

    for _ in range(_ROUNDS):
        now = residuals(point)
        slopes = np.stack([(residuals(point + step) - now) / _STEP for step in _STEP * np.eye(len(free))], axis=1)
        change = np.clip(-np.linalg.lstsq(slopes, now, rcond=None)[0], -_FARTHEST, _FARTHEST)
        point = point + change
        if np.abs(change).max() < _STEP / 10:
            break
    found = at(point)
    return found, factors(found, observations)


def factors(device: Device, observations: Sequence[Observation]) -> dict[str, float]:
    """Source -> what its numbers are of the model's, in their geometric mean."""
    of: dict[str, list[float]] = {}
    for one in observations:
        of.setdefault(one.source, []).append(np.log(one.measured / one.predicted(device)))
    return {source: float(np.exp(np.mean(ratios))) for source, ratios in of.items()}


def published_baselines(published: Sequence[Cell], configs: Mapping[str, Mapping[str, Any]]) -> list[Observation]:
    """What the constants of an H100 are fitted on.

    Args:
        configs: model -> its config.json.
    """

    def observation(cell: Cell) -> Observation:
        return Observation(cell.source, cell.published or 0.0, lambda device: cell.predicted(device, configs) or 0.0)

    return [observation(cell) for cell in published if cell.fitted and cell.published]


def bench_observations(record: Mapping[str, Any], arch: Dimensions, side: str) -> list[Observation]:
    """One side of a record of `make bench`, eager: tokens a second, and steps a second that only decode.

    The constants of a processor are fitted on its side `baseline`; `swiftkv` is held out.

    Args:
        record: as performance/serving.py writes it.
        arch: of the model that it served.
    """
    settings, words = record["settings"], record["settings"]["engine"]
    spec = None if side == "baseline" else SwiftKVSpec(arch.num_hidden_layers, settings["layers"])
    limits = Limits(*(int(words[words.index(f"--max-num-{what}") + 1]) for what in ("batched-tokens", "seqs")))

    def served(device: Device) -> Served:
        return Served(arch, spec, device, settings["threads"])

    def rate(row: Mapping[str, Any]) -> Callable[[Device], float]:
        prompt, output, count = row["input"], row["output"], row["prompts"]
        return lambda device: (
            count * (prompt + output) / (all_at_once(served(device), limits, prompt, output, count) or 0)
        )

    def steps(row: Mapping[str, Any]) -> Callable[[Device], float]:
        return lambda device: 1 / decode_step(served(device), row["prompts"], row["input"] + row["output"] / 2)

    eager = {part: [row for row in record[part] if row["mode"] == "eager"] for part in ("throughput", "decode")}
    alike = [row for row in eager["throughput"] if row.get("chunk", limits.tokens) == limits.tokens]
    found = [Observation("bench", row[side], rate(row)) for row in alike]
    return found + [Observation("bench", 1000 / row[side], steps(row)) for row in eager["decode"]]


def main(root: Path = Path()) -> None:
    """Fit an H100 and print its constants, and every published cell beside its prediction."""
    tables = []
    for name in TABLES[:2]:
        with open(root / f"resources/paper/{name}.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    published = cells(*tables)
    configs = {name: read_json(root / f"resources/architectures/{name}.json")["config"] for name in MODELS}
    device, of = fit(Device.load(DEVICE), published_baselines(published, configs), BLOG)
    row, layer = device.row / MICRO, device.layer / MICRO
    print(f"compute_share {device.compute_share:.4g}, row_us {row:.4g}, layer_us {layer:.4g}")
    print("; ".join(f"{source}: {factor:.3f} of the model" for source, factor in of.items()))
    for one in published:
        found = one.predicted(device, configs)
        print(
            *one.place,
            one.column,
            one.published,
            found and round(of[one.source] * found),
            "fitted" if one.fitted else "",
        )


if __name__ == "__main__":
    main()
