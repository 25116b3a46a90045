"""One engine for the points of a job: each finished one is kept, and what fails fails alone."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import refused
from tests.unit.measure_helpers import ENGINE, LLAMA, REPORT, SPEC

import pipeline.records
from pipeline.artifacts.records import Record
from pipeline.engines.log import EngineFailure, OutOfMemory
from pipeline.measure import job, latency, turns
from pipeline.measure.client import rate_result
from pipeline.measure.job import ServingSettings, measure_points
from pipeline.measure.point import InstalledGpu
from swiftkv.io import read_json, write_json

SHORT = {"measure": "throughput", "input_tokens": 100, "output_tokens": 16, "total_tokens": 500}
POINTS = {
    "short": SHORT,
    "long": SHORT | {"input_tokens": 3000, "total_tokens": 4000},
    "capacity": {"measure": "kv_capacity", "input_tokens": 100, "output_tokens": 16},
    "forward": {"measure": "forward_time", "batch_tokens": [16, 32], "repeats": 2},
    "steps": {"measure": "decode", "input_tokens": 32, "output_tokens": 8, "batch_sizes": [1, 2], "repeats": 2},
    "slow": {
        "measure": "latency",
        "input_tokens": 100,
        "output_tokens": 16,
        "request_rates": [1, 2],
        "seconds": 5,
        "min_requests": 7,
    },
    "slower": {"measure": "latency", "input_tokens": 200, "output_tokens": 16, "request_rates": [1], "seconds": 5},
}
START, MERGED, CHECKED = "start", "merge-all-layers", ("server", "checked")


class Scale:
    """Points of a tiny model in `folder`, as a job of Snakemake measures them."""

    weights, spec, in_turns = "original", None, False

    def __init__(self, folder):
        self.folder, self.points = folder, {name: dict(point) for name, point in POINTS.items()}
        (folder / "m").mkdir()
        write_json(folder / "m/config.json", LLAMA)
        source = {"kind": "local", "id": "tiny", "revision": None, "resolved": None, "path": str(folder / "m")}
        write_json(folder / "source.json", source)

    def run(self, *names, variant="baseline", gpus=0, **changes):
        """The job of some points, whose outputs Snakemake has deleted; their records by name."""
        shared = {"seed": 0, "engine": ENGINE, "in_turns": self.in_turns}
        settings = ServingSettings(self.weights, self.spec, variant == MERGED, None,
                                   {name: self.points[name] | shared for name in names})  # fmt: skip
        outputs = {name: self.folder / f"serving/{name}/tiny/{variant}/auto.json" for name in names}
        for output in outputs.values():
            output.unlink(missing_ok=True)
        measure_points(**{
            "settings": settings, "model": "tiny", "title": "Tiny", "variant": variant, "kv_cache": "auto",
            "source": self.folder / "source.json", "checkpoint": None, "chats": None,
            "start_timeout": 9, "threads": 1, "gpus": gpus, "log": self.folder / "vllm.log",
            "state": self.folder / "state", "outputs": list(outputs.values()),
        } | changes)  # fmt: skip
        return {name: read_json(output) for name, output in outputs.items()}


@pytest.fixture
def scale(tmp_path):
    return Scale(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Replaces vLLM: a list of starts, with their longest sequence, and jobs, in order; `asked.fail` may raise.

    `asked.busy` has the cores that other programs keep busy during each job.
    """
    done = SimpleNamespace(said=[], sides=[], fail=lambda what: None, busy=[], command=None)

    def hear(what):
        done.said.append(what)
        done.fail(what)

    @contextlib.contextmanager
    def engine(command, log, *rest):
        merged, done.command = "--hf-overrides" in command, command
        hear((START, int(command[command.index("--max-model-len") + 1])))
        log.write_text(f"Available KV cache memory: 1.5 GiB\nGPU KV cache size: {8192 if merged else 1024:,} tokens,\n")

        def answer(job):
            if job["do"] == "ready":
                return {}
            hear((job["do"], job["input"]))
            done.sides.append("merged" if merged else "baseline")
            load = {"cpu_seconds": 2.0, "other_cores": done.busy.pop(0)} if done.busy else {}
            return {"seconds": 0.5 if merged else 1.0, "decode_only_seconds": 0.25, "steps": 4} | load

        yield SimpleNamespace(ask=answer)

    @contextlib.contextmanager
    def server(command, name, log, *rest):
        with engine(command, log):
            yield SimpleNamespace(url="URL", warm=False, program=SimpleNamespace(check=lambda: hear(CHECKED)))

    def rate(url, name, folder, prompts, output, rate, seed, forced):
        hear((len(prompts[0]), rate))
        return rate_result(REPORT, rate, len(prompts))

    monkeypatch.setattr(turns, "worker", engine)
    monkeypatch.setattr(latency, "serving", server)
    monkeypatch.setattr(latency, "measure_rate", rate)
    done.starts = lambda: [length for what, length in done.said if what == START]
    return done


def fail_at(asked, error, *begins):
    """Let what begins so fail: the start of an engine, or a job."""

    def fail(what):
        if what[: len(begins)] == begins:
            raise error

    asked.fail = fail


@pytest.mark.parametrize("error", [EngineFailure, FileNotFoundError])
def test_a_failed_point_fails_alone_and_is_named(scale, asked, error):
    fail_at(asked, error("no steps with the whole batch"), "decode", 32)
    with refused("steps failed: no steps with the whole batch; kept: long, short"):
        scale.run("short", "steps", "long")
    assert not (scale.folder / "serving").exists()
    asked.fail = lambda what: None
    before = len(asked.said)
    assert len(scale.run("short", "steps", "long")) == 3
    assert {what for what, _ in asked.said[before:]} == {START, "decode"}


def test_a_point_that_the_model_is_too_short_for_is_a_record_beside_the_others(scale, asked):
    """Of a set of points, as `serving.together` states them for models of every length."""
    scale.points["long"] |= {"input_tokens": 9000, "total_tokens": 9016}
    records = scale.run("short", "long")
    assert (records["long"]["status"], records["short"]["status"]) == ("unavailable", "ok")
    assert "9016 positions, but the model has 8192" in records["long"]["reason"]


def test_an_engine_that_never_starts_is_not_tried_for_every_point(scale, asked):
    fail_at(asked, EngineFailure("no module named x"), START)
    with refused("long, short failed: no module named x; not tried: steps"):
        scale.run("short", "long", "steps")
    assert len(asked.starts()) == 2


def test_an_engine_that_the_longest_point_breaks_is_started_again_without_it(scale, asked):
    fail_at(asked, OutOfMemory("vLLM has not enough memory"), START, 3200)
    records = scale.run("short", "long")
    assert {name: record["status"] for name, record in records.items()} == {"short": "ok", "long": "oom"}
    assert asked.starts() == [3200, 256]


def ended(scale, asked, at, *names, **changes):
    """A job that is killed when it begins something."""
    fail_at(asked, KeyboardInterrupt, *at)
    with pytest.raises(KeyboardInterrupt):
        scale.run(*names, **changes)
    asked.fail = lambda what: None
    asked.said.clear()


def test_a_killed_job_loses_nothing_that_is_finished_and_a_finished_one_measures_anew(scale, asked):
    ended(scale, asked, ("throughput", 100), "long", "short")
    records = scale.run("long", "short")
    # The engine is that of an undisturbed job.
    assert asked.said == [(START, 3200), ("throughput", 100), ("throughput", 100)]
    assert records["long"]["status"] == records["short"]["status"] == "ok"
    scale.run("long", "short")  # its records were deleted, or it is forced
    assert asked.starts() == [3200, 3200]


def test_made_up_weights_need_a_model_s_dimensions_alone(scale, asked):
    write_json(scale.folder / "source.json", {"name": "shape", "config": LLAMA})
    scale.weights, scale.spec, scale.in_turns, served = "dummy", SPEC.fields, True, []

    def look(what):
        if what[0] == START:
            folder = Path(asked.command[asked.command.index("--model") + 1])
            assert (folder / "tokenizer.json").exists()
            served.extend(read_json(folder / "config.json")["architectures"])

    ended(scale, asked, ("throughput", 100), "long", "short", variant="swiftkv")
    asked.fail = look
    records = scale.run("long", "short", variant="swiftkv")
    assert ("throughput", 3000) not in asked.said
    assert sorted(served) == ["LlamaForCausalLM", "LlamaSwiftKVForCausalLM"]
    assert {record["weights"] for record in records.values()} == {"dummy"} and not (scale.folder / "state").exists()


CHANGES = {
    "code": (pipeline.records, "project_code", "another"),
    "libraries": (pipeline.records, "libraries", {"vllm": "0.33.0"}),
    "processor": (job, "processor", "Another CPU"),
    "GPU": (job, "installed_gpus", [InstalledGpu("NVIDIA H200", 1)]),
}


@pytest.mark.parametrize("change", [*CHANGES, "threads", "weights", "chats", "point", "nothing"])
def test_what_was_measured_under_other_conditions_is_not_taken_up(scale, asked, change, monkeypatch):
    monkeypatch.setattr(job, "installed_gpus", lambda: [InstalledGpu("NVIDIA H100", 1)])
    monkeypatch.setattr(latency, "chat_prompts", lambda *_: [[5] * 7])
    chats = scale.folder / "chats.jsonl"
    scale.points["slow"] |= {"dataset": "heldout", "input_tokens": 300}
    chats.touch()
    given = {"chats": chats, "gpus": int(change == "GPU")}
    ended(scale, asked, (200, 1), "slow", "slower", **given)
    if change in CHANGES:
        module, name, value = CHANGES[change]
        monkeypatch.setattr(module, name, lambda: value)
    elif change == "weights":
        (scale.folder / "m/model.safetensors").write_bytes(b"others")
    elif change == "chats":
        chats.write_text("others")
    elif change == "point":
        scale.points["slow"]["min_requests"] = 9
    scale.run("slow", "slower", **given, threads=2 if change == "threads" else 1)
    assert ((7, 2) in asked.said) == (change != "nothing")


def test_a_server_is_warmed_up_once_for_all_its_points_and_checked_after_each_rate(scale, asked):
    records = scale.run("slow", "slower")
    rates = [(200, 1), (200, 1), (100, 1), (100, 2)]
    assert asked.said == [(START, 384), *(said for rate in rates for said in (rate, CHECKED))]
    rates = records["slow"]["result"]["rates"]
    assert [(rate["request_rate"], rate["requests"]) for rate in rates] == [(1, 7), (2, 10)]


def test_a_server_that_died_is_the_reason_that_is_said(scale, asked):
    def fail(what):
        raise {(100, 1): EngineFailure("no request succeeded"), CHECKED: EngineFailure("the server died")}.get(
            what, KeyError
        )

    asked.fail = lambda what: fail(what) if what[0] != START else None
    with refused("slow failed: the server died"):
        scale.run("slow")


def speedups(turns):
    return [baseline / own for baseline, own in zip(*turns, strict=True)]


def test_a_variant_takes_turns_with_the_baseline(scale, asked):
    scale.in_turns = True
    scale.points["short"]["repeats"] = 3
    records = scale.run("short", "steps", "forward", variant=MERGED)
    assert len(asked.starts()) == 2  # one each; every measurement after one to warm up
    pairs = [["baseline"] * 2, ["merged"] * 4, ["baseline"] * 4, ["merged"] * 2]
    assert asked.sides[:12] == sum(pairs, [])
    short, steps, forward = map(Record.of, records.values())
    assert speedups(short.turns()) == [2, 2, 2] and short.value("tokens_per_second") == pytest.approx(4 * 116 / 0.5)
    assert speedups(steps.turns("ms", 1)) == [2, 2] and speedups(forward.turns(place=0)) == [2, 2]
    assert steps.result["tpot_ms"]["median"] == [125, 125]
    # What the engine said is the variant's own.
    assert all(record["engine"]["kv_cache_tokens"] == 8192 for record in records.values())
    # Its own record needs fewer repeats.
    assert len(scale.run("short")["short"]["result"]["samples_seconds"]) == 2


def test_a_turn_beside_another_program_is_taken_again_twice_at_most(scale, asked):
    scale.in_turns = True
    scale.points["short"] |= {"repeats": 3, "warmups": 0}
    asked.busy = [0, 0] + [0.5, 0, 0, 0.05] + [0, 0.2, 0.3, 0]
    result = scale.run("short", variant=MERGED)["short"]["result"]
    assert len(asked.sides) == 10 and result["samples_taken"] == result["baseline_samples_taken"] == [1, 2, 2]
    assert result["samples_other_cores"] == [0, 0, 0] and result["baseline_samples_other_cores"] == [0, 0.05, 0.3]
    assert result["samples_cpu_seconds"] == [2, 2, 2]


def test_where_memory_is_for_one_engine_the_variant_is_measured_alone(scale, asked):
    def fail(what):
        if what[0] == "throughput" and len(asked.starts()) == 2:
            raise OutOfMemory("vLLM has not enough memory")

    asked.fail = fail
    scale.in_turns = True
    record = scale.run("short", variant=MERGED)["short"]
    assert record["status"] == "ok" and record["result"]["baseline_samples_seconds"] is None
    assert record["result"]["samples_seconds"] == [0.5] and record["result"]["decode_only_percent"] == 50


def test_a_gpu_has_the_cache_that_vllm_leaves_it(scale, asked, monkeypatch):
    monkeypatch.setattr(job, "installed_gpus", lambda: [InstalledGpu("NVIDIA H100", 1)])
    record = scale.run("capacity", gpus=1)["capacity"]
    assert record["result"] == {"kv_cache_tokens": 1024, "kv_cache_bytes": 1.5 * 2**30}
