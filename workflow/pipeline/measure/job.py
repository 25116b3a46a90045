"""The job that measures all points of one engine; each record is kept as soon as it is there."""

from __future__ import annotations

import dataclasses
import json
import os
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipeline.measure.dummy import dummy_checkpoint
from pipeline.measure.point import installed_gpus
from pipeline.measure.run import engine_key, headline, measure, read_point
from pipeline.measure.subject import BASELINE, Subject
from pipeline.measure.turns import Engines
from pipeline.records import KeptAnswers, processor
from pipeline.sources import read_source, with_state
from swiftkv.errors import UserError
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec


@dataclass(frozen=True)
class ServingSettings:
    """Settings that change the records of a job, beside its GPUs.

    Attributes:
        weights: of the folder that is served.
        spec: fields of the variant's `SwiftKVSpec`; None serves the model as it is.
        merge_all_layers: whether one layer's KV cache is kept (Section 5.1).
        quantization: vLLM's --quantization.
        points: key under serving.points -> the point as `Config.point` gives it; all need the same engine.
    """

    weights: Literal["original", "trained", "dummy"]
    spec: dict[str, Any] | None
    merge_all_layers: bool
    quantization: str | None
    points: dict[str, dict[str, Any]]

    @property
    def text(self) -> str:
        """The settings as JSON; the same in whatever order the configuration has the keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def measure_points(
    settings: ServingSettings,
    model: str,
    title: str,
    variant: str,
    kv_cache: Literal["auto", "fp8"],
    source: Path,
    checkpoint: Path | None,
    chats: Path | None,
    start_timeout: float,
    threads: int,
    gpus: int,
    log: Path,
    state: Path,
    outputs: list[Path],
) -> None:
    """Measure serving points of one model, variant and KV cache on one engine, and write their records.

    The longest point comes first, and its engine is ready for the others. A point that fails is left out until all others
    have been measured and kept; then the job fails. It fails early if two points fail for the same reason and none has
    succeeded.

    Args:
        settings: what is served, and the points.
        model: key of the model in the configuration.
        title: published name of the model.
        variant: name of the variant.
        kv_cache: format of the KV cache.
        source: the model's source.json, or the file of its dimensions.
        checkpoint: folder to serve; without it, the model of `source`, with the weights that it has or, by `settings`, none.
        chats: what points with `dataset` send.
        start_timeout: seconds a server may take until it answers.
        threads: processor threads.
        gpus: GPUs the model is spread over; 0 is the processor.
        log: file for what vLLM prints; one beside it gets what the baseline's engine prints.
        state: folder for finished records, from which a job that was killed goes on, and for folders without weights; gone at
            the end.
        outputs: a JSON file for each point, <point>/<model>/<variant>/<KV cache>.json.

    Raises:
        UserError: the points need several engines, or failed; it names them.
    """
    served = read_source(source)
    if "kind" not in served:  # the dimensions of a model, whose weights nobody has
        served = {"kind": "architecture", "id": source.name}
    served |= {"name": model, "title": title}
    # Folders are absolute, so that vLLM never takes one for the name of a hub repository.
    other, unchanged, spec = None, served.get("path"), settings.spec and SwiftKVSpec(**settings.spec)
    if dummy := settings.weights == "dummy":
        checkpoint, unchanged = state / "served", state / "baseline"
        dummy_checkpoint(source, spec, checkpoint)
        dummy_checkpoint(source, None, unchanged)
    if variant != BASELINE and unchanged:
        weights, place = "dummy" if dummy else "original", Path(unchanged).resolve()
        other = Subject(served, BASELINE, "auto", place, weights, quantization=settings.quantization)
    subject = Subject(
        served,
        variant,
        kv_cache,
        Path(checkpoint or served["path"]).resolve(),
        settings.weights,
        spec=spec,
        merge_all_layers=settings.merge_all_layers,
        quantization=settings.quantization,
        baseline=other,
    )
    machine = {"gpus": gpus, "threads": threads}
    points = [
        read_point(name, point, **machine, start_timeout=start_timeout) for name, point in settings.points.items()
    ]
    if len(set(map(engine_key, points))) > 1:
        raise UserError(f"{', '.join(settings.points)} are not measured on one engine; ask for them apart")
    conditions = {
        **dataclasses.asdict(dataclasses.replace(settings, points={})),
        **machine,
        "devices": [device.name for device in installed_gpus()[:gpus]] if gpus else [],
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
    }
    files = [source] if dummy else [each.folder for each in (subject, subject.baseline) if each]
    kept = KeptAnswers(state, conditions, files)
    records: dict[str, dict[str, Any]] = {}
    failed: dict[str, list[str]] = {}  # by reason
    with Engines(log) as engines:
        for point in sorted(points, key=lambda point: -sum(point.lengths)):
            asked: dict[str, Any] = {"point": settings.points[point.name], "dtype": point.dtype}
            if getattr(point.settings, "dataset", None):
                asked["chats"] = with_state({"local": str(chats)})["files"]
            try:
                record = kept.answer([point.name, asked], partial(measure, subject, point, engines, chats))
            except Exception as error:  # the others are measured all the same
                engines.close()
                if not isinstance(error, UserError):
                    traceback.print_exc()
                print(f"{point.name} failed: {error}", flush=True)
                failed.setdefault(str(error), []).append(point.name)
                if not records and len(failed[str(error)]) > 1:  # the engine does not start
                    break
                continue
            records[point.name] = record
            print(f"{point.name}: {headline(record)}", flush=True)
            if record["status"] == "ok":
                engines.longest = engines.longest or point.max_model_len(subject.config)
    if failed:
        reasons = [f"{', '.join(names)} failed: {error}" for error, names in failed.items()]
        untried = [name for name in settings.points if name not in {*records, *sum(failed.values(), [])}]
        for kind, names in {"kept": list(records), "not tried": untried}.items():
            reasons += [f"{kind}: {', '.join(names)}"] if names else []
        raise UserError("; ".join(reasons))
    for output in outputs:
        write_json(output, records[output.parts[-4]])
    kept.delete()
    print("; ".join(f"{name} {headline(record)}" for name, record in records.items()))
