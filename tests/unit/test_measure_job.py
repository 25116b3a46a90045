"""One engine for many points of a run: each record at its own place, made once, and what fails beside another fails alone."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from tests.unit.measure_helpers import ENGINE, LLAMA, REPORT, point, subject

from pipeline.artifacts.records import Record
from pipeline.measure import kind, latency
from pipeline.measure.client import rate_result
from pipeline.measure.engine import EngineFailure, OutOfMemory
from pipeline.measure.engines import Engines
from pipeline.measure.job import Wanted, ask, measure_point
from pipeline.measure.memory import Device
from swiftkv.io import read_json, write_json

SHORT = {"measure": "throughput", "input_tokens": 100, "output_tokens": 16, "total_tokens": 500}
POINTS = {
    "short": SHORT,
    "long": SHORT | {"input_tokens": 3000, "total_tokens": 4000},
    "forward": {"measure": "forward_time", "batch_tokens": [16, 32], "repeats": 2},
    "steps": {"measure": "decode", "input_tokens": 32, "output_tokens": 8, "batch_sizes": [1, 2], "repeats": 2},
    "little-memory": SHORT | {"memory_gib": 0.5},
    "compiled": SHORT | {"enforce_eager": False},
    "slow": {"measure": "latency", "input_tokens": 100, "output_tokens": 16, "request_rates": [1, 2], "seconds": 5},
    "slower": {"measure": "latency", "input_tokens": 200, "output_tokens": 16, "request_rates": [1], "seconds": 5},
}
START, MERGED = "start", "merge-all-layers"


class Scale:
    """Points of a tiny model in `folder`, as Snakemake's jobs measure them."""

    in_turns = False

    def __init__(self, folder):
        self.folder, self.points = folder, {name: dict(point) for name, point in POINTS.items()}
        (folder / "m").mkdir()
        (folder / "m/config.json").write_text(json.dumps(LLAMA))
        source = {"kind": "local", "id": "tiny", "revision": None, "resolved": None, "path": str(folder / "m")}
        write_json(folder / "source.json", source)

    def settings(self, name):
        return self.points[name] | {"seed": 0, "engine": ENGINE, "in_turns": self.in_turns}

    def work(self, name, variant="baseline"):
        return self.folder / "state" / name / "tiny" / variant / "auto"

    def ask(self, *names, variant="baseline"):
        """A run begins that is to measure these."""
        points = {
            self.work(name, variant): {"heldout": None, "point": name, "settings": self.settings(name)}
            for name in names
        }
        ask(self.folder / "state", points)

    def record(self, name):
        """Where the record of a point lies."""
        return self.folder / "serving" / name / "tiny/baseline/auto.json"

    def run(self, name, variant="baseline", **changes):
        """The job of a point; its record."""
        measure_point(
            model="tiny", title="Tiny", source=self.folder / "source.json", checkpoint=None, weights="original",
            variant=variant, spec=None, kv_cache="auto", point=name, settings=self.settings(name), start_timeout=9,
            threads=1, gpus=0, work_dir=self.work(name, variant), output=self.record(name),
            merge_all_layers=variant == MERGED, **changes,
        )  # fmt: skip
        return read_json(self.record(name))


@pytest.fixture
def scale(tmp_path):
    return Scale(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Replaces vLLM: a list of starts, with their longest sequence, and jobs, in order; `asked.fail` may raise."""
    done = SimpleNamespace(said=[], sides=[], fail=lambda what: None)

    def hear(what):
        done.said.append(what)
        done.fail(what)

    @contextlib.contextmanager
    def engine(command, log, environment, what):
        merged = "--hf-overrides" in command
        hear((START, int(command[command.index("--max-model-len") + 1])))
        log.write_text(f"CPU KV cache size: {8192 if merged else 1024:,} tokens,\n")

        def answer(job):
            hear((job["do"], job.get("input")))
            done.sides.append("merged" if merged else "baseline")
            seconds = 0.5 if merged else 1.0
            return {"seconds": [seconds] if job["do"] == "forward" else seconds, "steps": 4}

        yield SimpleNamespace(ask=answer)

    @contextlib.contextmanager
    def server(command, name, log, environment, timeout):
        with engine(command, log, environment, name):
            yield SimpleNamespace(name=name)

    def rate(run, server, client, rate, **job):
        hear((run.point.name, rate))
        return {key: value for key, value in rate_result(REPORT, rate, 20).items() if key != "error"}

    monkeypatch.setattr(kind, "worker", engine)
    monkeypatch.setattr(latency, "serving", server)
    monkeypatch.setattr(latency, "worker", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr(latency, "ask", rate)
    done.starts = lambda: [length for what, length in done.said if what == START]
    return done


def test_one_engine_measures_what_the_run_asks_for_and_needs_the_same(scale, asked):
    scale.ask("short", "long", "steps", "little-memory", "compiled")
    first = scale.run("short")
    # Ready for 3,000 and 16 tokens; what is left of one point is not found by the next.
    assert asked.starts() == [3200] and asked.said.count(("forget", None)) == 2
    assert scale.record("short").exists() and not scale.record("long").exists()
    said = len(asked.said)
    records = [first, scale.run("long"), scale.run("steps")]
    assert len(asked.said) == said
    assert [record["settings"]["point"] for record in records] == ["short", "long", "steps"]
    assert records[1]["result"]["tokens_per_second"] == 3016 and records[2]["result"]["tpot_ms"]["median"] == [250, 250]
    assert all(record["engine"]["kv_cache_tokens"] == 1024 for record in records)
    # Other memory and other modes need engines of their own.
    scale.run("little-memory")
    scale.run("compiled")
    assert len(asked.starts()) == 3
    assert not any(scale.work(name).exists() for name in POINTS)


def test_only_what_is_asked_for_is_measured(scale, asked):
    scale.ask("long")  # by a run that was ended
    scale.ask("steps", variant="swiftkv-50")
    scale.run("short")
    assert asked.starts() == [256] and ("throughput", 3000) not in asked.said and ("decode", 32) not in asked.said
    # A record that was deleted is made again.
    scale.ask("short")
    scale.run("short")
    assert asked.starts() == [256, 256]


@pytest.mark.parametrize("error", [EngineFailure, FileNotFoundError])
def test_a_failed_point_fails_alone(scale, asked, error):
    def fail(what):
        if what == ("decode", 32):
            raise error("no steps with the whole batch")

    asked.fail = fail
    scale.ask("long", "steps", "short")
    assert scale.run("long")["status"] == "ok"
    assert scale.run("short")["status"] == "ok" and len(asked.starts()) == 1
    with pytest.raises(error, match="whole batch"):
        scale.run("steps")
    assert not scale.record("steps").exists()


@pytest.mark.parametrize("error", [EngineFailure, OutOfMemory])
def test_an_engine_that_the_longest_point_breaks_is_started_again_without_it(scale, asked, error):
    def fail(what):
        if what == (START, 3200):
            raise error("vLLM has not enough memory")

    asked.fail = fail
    scale.ask("short", "long")
    assert scale.run("short")["status"] == "ok" and asked.starts() == [3200, 256]
    if error is OutOfMemory:
        assert scale.run("long")["status"] == "oom"
    else:
        with pytest.raises(EngineFailure):
            scale.run("long")


def test_a_killed_job_loses_nothing_that_is_finished(scale, asked):
    def kill(what):
        if what == ("decode", 32):
            raise KeyboardInterrupt

    asked.fail = kill
    scale.ask("long", "short", "steps")
    with pytest.raises(KeyboardInterrupt):
        scale.run("long")
    assert not scale.record("long").exists()
    asked.fail = lambda what: None
    scale.ask("long", "short", "steps")  # the next run
    scale.run("long")
    scale.run("short")
    assert len(asked.starts()) == 1
    scale.run("steps")
    assert len(asked.starts()) == 2


@pytest.mark.parametrize("change", ["point", "weights", None])
def test_a_kept_record_of_something_else_is_made_again(scale, asked, change):
    scale.ask("short", "long")
    scale.run("short")
    if change == "point":
        scale.points["long"]["total_tokens"] = 7000
    elif change == "weights":
        (scale.folder / "m/model.safetensors").write_bytes(b"others")
    scale.run("long")
    assert len(asked.starts()) == (2 if change else 1)


def test_a_record_of_fewer_gpus_is_one_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(latency, "devices", lambda: [Device("NVIDIA H200", 1, 1)] * 4)
    model = subject(tmp_path / "m")
    points = [point("throughput", gpus=gpus, total_tokens=500) for gpus in (2, 4, 4)]
    two, four, again = (Wanted(one, tmp_path).made_with(model) for one in points)
    assert two != four == again


def test_no_point_begins_late_in_a_job_with_a_time_limit(scale, asked):
    scale.ask("short", "steps")
    scale.run("short", minutes=0)
    assert ("decode", 32) not in asked.said
    scale.run("steps", minutes=60)
    assert len(asked.starts()) == 2


def test_a_server_is_warmed_up_once_for_all_its_points(scale, asked):
    scale.ask("slow", "slower")
    scale.run("slow")
    scale.run("slower")
    assert asked.said == [(START, 384), ("slow", 1), ("slow", 1), ("slow", 2), ("slower", 1)]


def test_a_variant_takes_turns_with_the_baseline(scale, asked):
    scale.in_turns = True
    scale.points["short"]["repeats"] = 3
    scale.ask("steps", "forward", variant=MERGED)
    records = [scale.run(name, MERGED) for name in ("short", "steps", "forward")]
    assert len(asked.starts()) == 2  # one each
    # Every measurement after one to warm up; first of all both engines are asked whether they are there.
    assert asked.sides[:14] == ["baseline", "merged"] + [
        "baseline",
        "baseline",
        *["merged"] * 4,
        *["baseline"] * 4,
        *["merged"] * 2,
    ]
    short, steps, forward = (Record.of(record) for record in records)
    assert short.speedups() == [2, 2, 2] and short.throughput == pytest.approx(4 * 116 / 0.5)
    assert steps.speedups("ms", 1) == [2, 2] and forward.speedups(place=0) == [2, 2]
    # What the engine said is the variant's own.
    assert all(record["engine"]["kv_cache_tokens"] == 8192 for record in records)
    # Its own record needs fewer repeats.
    assert len(scale.run("short")["result"]["samples_seconds"]) == 2
    scale.in_turns = False
    assert Record.of(scale.run("short", MERGED)).speedups() == []
    assert len(scale.run("short")["result"]["samples_seconds"]) == 3


def test_where_memory_is_for_one_engine_the_variant_is_measured_alone(scale, asked):
    def fail(what):
        if what[0] == "throughput" and len(asked.starts()) == 2:
            raise OutOfMemory("vLLM has not enough memory")

    asked.fail = fail
    scale.in_turns = True
    record = scale.run("short", MERGED)
    assert record["status"] == "ok" and record["result"]["baseline_samples_seconds"] is None
    assert record["result"]["samples_seconds"] == [0.5]


def test_an_engine_ends_where_something_fails_and_at_the_end(tmp_path):
    ended = []

    @contextlib.contextmanager
    def start():
        yield "engine"
        ended.append(1)

    with Engines(tmp_path / "work/vllm.log") as engines:
        for key in ("a", "a", "b"):
            with engines.get(key, start) as running:
                assert running == "engine"
        assert len(ended) == 1 and not engines.used
        with pytest.raises(ValueError, match="why"), engines.get("b", start):
            raise ValueError("why")
        assert len(ended) == 2
        with engines.get("b", start):
            assert not engines.used
    assert len(ended) == 3
