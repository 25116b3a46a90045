"""The job that makes a serving record, and on its engine those of other jobs of the run, which then have nothing left to do.

A start of vLLM takes longer than most points. So a run that begins writes down every point that it is to measure (`ask`).
The first job that needs an engine measures its own point and then the others that need the same one, each in a fresh state.
Their records lie in their work folders until their own jobs come. Those make them outputs; Snakemake knows each record by its
place, and runs the jobs that it would run anyway. What fails beside another point is left to its own job.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.measure.engine import EngineFailure
from pipeline.measure.engines import Engines
from pipeline.measure.kind import BASELINE
from pipeline.measure.latency import identity, state_of
from pipeline.measure.point import Point, Subject, max_model_len
from pipeline.measure.run import KINDS, asked, engine_key, headline, measure
from pipeline.sources import read_source
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json
from swiftkv.spec import SwiftKVSpec

# In a point's work folder: that it is to be measured; that a job has begun to; what came of it.
ASKED, BEGUN, RECORD = "asked.json", "begun.json", "record.json"


@dataclass(frozen=True)
class Wanted:
    """A point that is to be measured, where its unfinished work lies, and what it sends."""

    point: Point
    work: Path
    heldout: Path | None = None

    def made_with(self, subject: Subject) -> dict[str, Any]:
        """What two records of it must have in common to be the same."""
        served = {name: value for name, value in vars(subject).items() if name not in ("folder", "spec", "baseline")}
        sent = self.heldout and state_of(self.heldout)
        same = identity(subject, self.point) | served | asked(self.point) | {"sent": sent}
        if self.point.in_turns and subject.baseline:
            same["baseline"] = state_of(subject.baseline.folder)
        return json.loads(json.dumps(same | {"spec": subject.spec and subject.spec.fields}))

    def measure(self, subject: Subject, engines: Engines, longest: int = 0) -> dict[str, Any]:
        """Its record, made now; raises as `run.measure`."""
        return measure(subject, self.point, self.work, self.heldout, engines=engines, longest=longest)

    def keep(self, subject: Subject, record: dict[str, Any]) -> None:
        """Keep its record for its own job."""
        write_json(self.work / RECORD, {"made_with": self.made_with(subject), "record": record})

    def kept(self, subject: Subject) -> dict[str, Any] | None:
        """A record that was kept, if it would come out the same now."""
        file = self.work / RECORD
        found = read_json(file) if file.exists() else None
        return found["record"] if found and found["made_with"] == self.made_with(subject) else None

    def length(self, subject: Subject) -> int:
        """Tokens of the longest sequence that its engine is to be ready for; raises as `max_model_len`."""
        return max_model_len(subject.config, *KINDS[self.point.settings.measure].lengths(self.point))


def ask(state: Path, points: Mapping[Path, Mapping[str, Any]]) -> None:
    """Write down the points of a run that begins, in place of those that an earlier one did not come to.

    Args:
        state: folder of all work folders: <point>/<model>/<variant>/<KV cache> below it.
        points: work folder -> point (its name), settings and heldout, as `measure_point` takes them.
    """
    for name in (ASKED, BEGUN):
        for file in state.glob(f"*/*/*/*/{name}"):
            file.unlink()
    for folder, point in points.items():
        write_json(folder / ASKED, point)


def measure_point(
    model: str,
    title: str,
    source: Path,
    checkpoint: Path | None,
    weights: Literal["original", "trained", "dummy"],
    variant: str,
    spec: SwiftKVSpec | None,
    kv_cache: Literal["auto", "fp8"],
    point: str,
    settings: dict[str, Any],
    start_timeout: float,
    threads: int,
    gpus: int,
    work_dir: Path,
    output: Path,
    merge_all_layers: bool = False,
    quantization: str | None = None,
    plugin: str | None = None,
    heldout: Path | None = None,
    minutes: float | None = None,
    baseline: Path | None = None,
) -> None:
    """Measure one serving point of one model and variant, and write the measurement; `run.measure` says what it holds.

    Other points that the run is to measure on the same engine come next, and their records are kept for their own jobs.

    Args:
        model: key of the model in the configuration.
        title: published name of the model.
        source: the model's source.json, or the file of its dimensions.
        checkpoint: folder to serve; without it, the model of `source`.
        weights: what the folder holds.
        variant: name of the variant.
        spec: its rewiring; null where there is none.
        kv_cache: format of the KV cache.
        point: key of the point under serving.points.
        settings: the point, and what all points share.
        start_timeout: seconds a server may take until it answers.
        threads: processor threads.
        gpus: GPUs the model is spread over; 0 is the processor.
        work_dir: folder for logs and unfinished measurements; gone when all is measured. That of another point of the same
            model, variant and KV cache has the same last three names.
        output: JSON file.
        merge_all_layers: whether one layer's KV cache is kept (Section 5.1).
        quantization: vLLM's --quantization.
        plugin: arctic-inference serves with the authors' vLLM plugin.
        heldout: chats to send, for points with `dataset`.
        minutes: the job's time limit; no other point begins after half of it.
        baseline: folder of the baseline, for points that are measured in turns with it; without it, the model of `source`.

    Raises:
        UserError: as `run.measure`, or there is nothing to serve.
        EngineFailure: as `run.measure`.
    """
    began = time.monotonic()
    model_identity = read_source(source)
    if "kind" not in model_identity:  # the dimensions of a model, whose weights nobody has
        model_identity = {"kind": "architecture", "id": source.name}
    folder = checkpoint or model_identity.get("path")
    if folder is None:
        raise UserError(f"{source} is no model that can be served; give --checkpoint")
    model_identity |= {"name": model, "title": title}
    # Absolute, so that vLLM never takes it for the name of a hub repository.
    place = Path(folder).resolve()
    beside, unchanged = None, baseline or model_identity.get("path")
    if variant != BASELINE and unchanged is not None:
        served = "dummy" if weights == "dummy" else "original"
        unchanged = Path(unchanged).resolve()
        beside = Subject(model_identity, BASELINE, "auto", unchanged, served, quantization=quantization)
    subject = Subject(
        model_identity, variant, kv_cache, place, weights, spec, merge_all_layers, quantization, plugin, beside
    )
    own = Wanted(
        Point.read(point, settings, gpus=gpus, threads=threads, start_timeout=start_timeout),
        work_dir,
        heldout,
    )
    for name in (ASKED, BEGUN):  # from now on it is this job's
        (work_dir / name).unlink(missing_ok=True)
    record = own.kept(subject)
    if record is not None:
        print(f"{point} has been measured beside another point, or before the job was ended", flush=True)
    else:
        others = list(_others(subject, own))
        sides = 2 if any(wanted.point.in_turns for wanted in (own, *others)) else 1
        with Engines(work_dir / "vllm.log", room=sides) as engines:
            record = _measure(subject, own, others, engines)
            own.keep(subject, record)
            deadline = None if minutes is None else began + 60 * minutes / 2
            _measure_beside(subject, own, others, engines, deadline)
    write_json(output, record)
    shutil.rmtree(work_dir, ignore_errors=True)
    print(f"{point}, {variant}, {kv_cache}: {headline(record)}")


def _others(subject: Subject, own: Wanted) -> Iterable[Wanted]:
    """The points of the run that nobody has begun and that need the engine that `own` needs."""
    work, point = own.work.absolute(), own.point
    state, place = work.parents[min(3, len(work.parents) - 1)], "/".join(work.parts[-3:])
    for file in sorted(state.glob(f"*/{place}/{ASKED}")):
        with contextlib.suppress(UserError):  # its own job says what is wrong
            found = read_json(file)
            other = Wanted(
                Point.read(
                    found["point"],
                    found["settings"],
                    gpus=point.gpus,
                    threads=point.threads,
                    start_timeout=point.start_timeout,
                ),
                file.parent,
                found["heldout"] and Path(found["heldout"]),
            )
            there = other.heldout is None or other.heldout.exists()
            if there and engine_key(other.point) == engine_key(point) and other.length(subject):
                yield other


def _longest(subject: Subject, points: Iterable[Wanted]) -> int:
    """Tokens of the longest sequence that one engine for all of them is to be ready for."""
    return max(wanted.length(subject) for wanted in points)


def _measure(subject: Subject, own: Wanted, others: list[Wanted], engines: Engines) -> dict[str, Any]:
    """The record of the job's own point; where an engine for the others' lengths too fails, of an engine for it alone."""
    longest = _longest(subject, [own, *others])
    if longest > own.length(subject):
        try:
            record = own.measure(subject, engines, longest)
            if record["status"] == "ok":
                return record
            why = record["reason"]
        except EngineFailure as error:
            why = str(error)
        print(
            f"an engine for sequences of {longest} tokens failed, so {own.point.name} gets its own: {why}", flush=True
        )
        engines.close()
        others.clear()
    return own.measure(subject, engines)


def _measure_beside(
    subject: Subject, own: Wanted, others: Sequence[Wanted], engines: Engines, deadline: float | None
) -> None:
    """Measure the others on the engine of `own` and keep their records, until one fails or the deadline is over."""
    longest = _longest(subject, [own, *others])
    for other in others:
        if deadline is not None and time.monotonic() > deadline:
            return
        begun, name = other.work / BEGUN, other.point.name
        try:
            (other.work / ASKED).rename(begun)
        except FileNotFoundError:  # its own job, or another, was faster
            continue
        try:
            record = other.measure(subject, engines, longest)
        except (UserError, OSError) as error:  # its own job may have removed its folder
            print(f"beside it, {name} failed, which is left to its own job: {error}", flush=True)
            return
        if record["status"] != "ok":  # alone it may find enough memory
            return
        print(f"beside it, {name}: {headline(record)}", flush=True)
        if begun.exists():  # else its own job has started meanwhile
            other.keep(subject, record)
            begun.unlink(missing_ok=True)
