"""The GPU script without a GPU: what it would run, how it goes on and fails, its tables, and how its environment travels."""

import importlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

import swiftkv.models  # noqa: F401
from swiftkv.errors import UserError
from swiftkv.measure.engine import EngineFailure, OutOfMemory
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
MACHINE = {"hardware": {"gpus": ["NVIDIA H200"]}}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu_serving")


@pytest.fixture
def fake(script, monkeypatch, tmp_path):
    """The script with made-up engines; `fake.asked` lists the jobs, `fake.fail(model config, job)` may raise."""

    class Fake:
        asked, started, running = [], [], 0
        versions = {"vllm": "0.26.0", "arctic-inference": "0.3.0"}

        def fail(self, config, job):
            pass

    state = Fake()

    class Engine:
        def __init__(self, arguments, environment, log):
            assert state.running == 0, "two engines on one GPU"
            state.running = 1
            self.config = json.loads((Path(arguments["model"]) / "config.json").read_text())
            self.ready, self.plugins = {}, environment["VLLM_PLUGINS"]
            state.started.append((self.config["architectures"][0], self.plugins))

        def wait(self, timeout=None):
            state.fail(self.config, None)
            self.ready = {"start_seconds": 1.0}

        def ask(self, job, timeout=None):
            state.fail(self.config, job)
            state.asked.append(job)
            swift = self.config["model_type"] == "llama_swiftkv"
            if job["kind"] == "throughput":
                return {"seconds": 1.0 if swift else 2.0, "tokens": job["prompts"] * (job["input"] + job["output"])}
            return {"seconds": 2.0 if self.plugins == "arctic_inference" else 1.0, "steps": 100}

        def text(self):
            return "some log"

        def stop(self):
            state.running = 0

    monkeypatch.setattr(script, "Engine", Engine)
    monkeypatch.setattr(script, "versions", lambda: state.versions)
    monkeypatch.setattr(script, "describe_machine", lambda: MACHINE)
    monkeypatch.setattr(script, "gpu_state", lambda: None)

    def run(*words):
        state.asked.clear(), state.started.clear()
        script.measure(script.parse(["--output", str(tmp_path), *words]))
        return sorted(file.stem for file in tmp_path.glob("*/*.json"))

    state.run = run
    return state


def test_dry_run_needs_no_gpu_and_no_vllm(tmp_path):
    # A vllm and a torch that cannot be imported stand in for a machine without them.
    for name in ("vllm", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    command = [sys.executable, "performance/gpu_serving.py", "--dry-run"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    points = [line for line in run.stdout.splitlines() if " requests, " in line]
    assert len(points) == 6 * 4 + 4 * 3
    assert "throughput-baseline-2000: 512 requests, 1,155,072 tokens" in run.stdout
    commands = [line for line in run.stdout.splitlines() if line.startswith("env ")]
    assert len(commands) == 10 and str(ROOT) not in run.stdout
    assert (
        sum("ARCTIC_INFERENCE_ENABLED=1" in line and "VLLM_PLUGINS=arctic_inference" in line for line in commands) == 2
    )


def test_series_of_a_kind_differ_in_model_and_kv_dtype_alone(script):
    for kind, eager in (("throughput", True), ("decode", False)):
        shared = [series.arguments("MODEL") for series in script.SERIES if series.kind == kind]
        for arguments in shared:
            assert arguments | {"kv_cache_dtype": ""} == shared[0] | {"kv_cache_dtype": ""}
            assert arguments["enforce_eager"] is eager and arguments["enable_prefix_caching"] is False
            assert arguments["max_num_batched_tokens"] == 2048
    assert script.SERIES[0].arguments("M")["max_model_len"] >= 128_256


def test_model_configurations_are_what_both_plugins_read(script, tmp_path):
    for series in script.SERIES:
        (tmp_path / "config.json").write_text(json.dumps(series.config()))
        config = AutoConfig.from_pretrained(tmp_path)
        if series.spec is None:
            assert config.model_type == "llama"
        else:
            assert SwiftKVSpec.from_config(config) == series.spec and config.swiftkv
            assert config.architectures == ["LlamaSwiftKVForCausalLM"]
        assert config.rope_parameters["rope_type"] == "llama3"


def test_every_point_is_a_file_and_is_not_measured_twice(fake, tmp_path):
    assert len(fake.run()) == 36
    assert fake.started[:2] == [("LlamaForCausalLM", ""), ("LlamaSwiftKVForCausalLM", "swiftkv")]
    record = json.loads((tmp_path / "0.26.0/throughput-swiftkv-50-across4-fp8-2000.json").read_text())
    assert record["settings"]["total_tokens"] == 512 * 2256 == record["result"]["tokens"]
    assert record["cost"]["request_speedup_limit"] == pytest.approx(1.78, abs=0.1)
    assert record["hardware"]["gpus"] == ["NVIDIA H200"] and record["status"] == "ok"
    (tmp_path / "0.26.0/decode-baseline-8.json").unlink()
    fake.run()
    assert {job["batch"] for job in fake.asked} == {8} and len(fake.started) == 1


def test_the_reference_needs_the_vllm_it_was_made_for(fake, capsys):
    fake.versions = {"vllm": "0.32.0", "arctic-inference": "0.3.0"}
    assert len(fake.run()) == 36 - 4 - 3
    assert "reference plugin is left out" in capsys.readouterr().out


def test_nothing_begins_that_would_not_end_in_time(fake, capsys):
    assert fake.run("--limit-seconds", "100") == [] and fake.started == []
    assert "36 points left" in capsys.readouterr().out
    assert len(fake.run("--limit-seconds", "220", "--only", "throughput")) == 24


def test_no_memory_and_a_failed_start_are_results(fake, tmp_path, script):
    def fail(config, job):
        if job and job["kind"] == "throughput" and job["input"] == 128_000 and config["model_type"] == "llama":
            raise OutOfMemory("vLLM has not enough memory")
        if "Merge" in config["architectures"][0]:
            raise EngineFailure("the engine ended with status 1")

    fake.fail = fail
    names = fake.run("--only", "throughput-(baseline|merge)")
    assert len(names) == 8
    assert len(fake.started) == 2  # the last baseline point failed; a failed start is not tried again for each point

    def status(point):
        return json.loads((tmp_path / f"0.26.0/{point}.json").read_text())["status"]

    assert status("throughput-baseline-2000") == "ok" and status("throughput-baseline-128000") == "oom"
    assert status("throughput-merge-all-layers-2000") == "failed"
    fake.fail = lambda config, job: None
    fake.run("--only", "throughput", "--retry")
    assert status("throughput-merge-all-layers-2000") == "ok" and status("throughput-baseline-128000") == "oom"
    assert "| OOM |" in script.summary(tmp_path)


def test_points_behind_a_failed_one_are_measured(fake):
    def fail(config, job):
        if job and job.get("input") == 32_000:
            raise EngineFailure("the engine ended with status 1")

    fake.fail = fail
    assert len(fake.run("--only", "throughput-baseline")) == 4
    assert len(fake.started) == 2


def test_summary_makes_ratios_within_one_version_only(fake, script, tmp_path):
    fake.run()
    file = tmp_path / "0.26.0/throughput-baseline-2000.json"
    other = json.loads(file.read_text()) | {"versions": {"vllm": "0.32.0"}}
    (tmp_path / "0.32.0").mkdir()
    (tmp_path / "0.32.0" / file.name).write_text(json.dumps(other))
    old, new = script.summary(tmp_path).split("## vLLM 0.32.0")
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in old.splitlines() if line.startswith("|")}
    assert "NVIDIA H200" in old and "Llama-3.1-8B-Instruct, dummy weights" in old
    throughput, decode = old.split("Milliseconds")
    assert "| baseline | 577,536 (1.000) |" in throughput
    assert "| SwiftKV 50 % | 1,155,072 (2.000; 11" in throughput  # 2 / 1.78: more than FLOPs allow, as it is made up
    assert "| reference plugin, SwiftKV 50 % | 20.000 (2.000) |" in decode
    assert "| SwiftKV 50 % ahead of the reference plugin | 2.000 |" in decode
    assert rows["Merge-all-Layers"].endswith("(1.000)")
    assert new.count("baseline |") == 1 and "SwiftKV 50 %" not in new


def test_summary_compares_no_different_requests(fake, script, tmp_path):
    fake.run("--only", "throughput-baseline")
    fake.run("--only", "throughput-swiftkv-50$", "--scale", "0.5")
    assert "other requests than the baseline's" in script.summary(tmp_path)


@pytest.mark.parametrize("words", [["--scale", "0"], ["--only", "("]])
def test_bad_arguments_are_one_sentence(script, words):
    with pytest.raises(UserError, match="--"):
        script.parse(words)


def test_summary_of_nothing_is_one_sentence(script, tmp_path):
    with pytest.raises(UserError, match="measure with"):
        script.summary(tmp_path)
    (tmp_path / "0.26.0").mkdir()
    (tmp_path / "0.26.0/a.json").write_text("{}")
    with pytest.raises(UserError, match="no record"):
        script.summary(tmp_path)


FAKE_PIP = """#!/usr/bin/env {python}
import json, os, pathlib, runpy, sys
words = sys.argv[1:]
if words[:2] != ["-m", "pip"]:
    os.execv({python!r}, [{python!r}, *words])
if "--report" in words:
    entries = [("vllm", "0.26.0"), ("torch", "2.11.0"), ("Some_Thing", "1.0"), ("numpy", "2.3.5"), ("tilelang", "0.1")]
    report = {{"install": [{{"metadata": {{"name": n, "version": v}}}} for n, v in entries]}}
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
elif "download" in words:
    folder = pathlib.Path(words[words.index("--dest") + 1])
    names = ["arctic_inference-0.3.0.tar.gz"]
    if "--requirement" in words:
        names = pathlib.Path(words[words.index("--requirement") + 1]).read_text().split()
    for name in names:
        (folder / name.replace("==", "-")).write_bytes(os.urandom(3000))
else:
    print("pip", *words)
"""


def test_packages_travel_in_parts_and_damage_is_noticed(tmp_path):
    python = tmp_path / "python"
    python.write_text(FAKE_PIP.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "present").write_text("torch==2.11.0+cu130\nnumpy==2.5.2\ntransformers==5.17.0\n")
    environment = os.environ | {"PYTHON": str(python), "PART": "4096"}

    def prepare(*words):
        command = ["bash", "performance/gpu_prepare.sh", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    packed = prepare("pack", tmp_path / "travel", tmp_path / "present", "0.26.0")
    assert packed.returncode == 0, packed.stderr
    # torch is there, another numpy is not what vLLM needs, tilelang is for other models.
    assert (tmp_path / "travel/carry").read_text().split() == ["vllm==0.26.0", "some-thing==1.0", "numpy==2.3.5"]
    parts = sorted((tmp_path / "travel").glob("part-*"))
    assert len(parts) > 2
    for part in parts:
        assert prepare("collect", part, tmp_path / "place").returncode == 0
    joined = prepare("install", tmp_path / "place", tmp_path / "site")
    assert (tmp_path / "place/wheels/vllm-0.26.0").stat().st_size == 3000, joined.stderr
    piece = next((tmp_path / "place").glob("piece-*"))
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    damaged = prepare("install", tmp_path / "place", tmp_path / "site")
    assert damaged.returncode == 1 and "missing or damaged" in damaged.stderr
    assert prepare("pack", tmp_path / "travel").returncode == 1
