"""Plans: sizes that are published, times near published ones, what makes a job longer, and what is not known."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import refused
from tests.programs import ROOT
from tests.unit.artifact_helpers import SMOL, scale, typed

from pipeline.run.estimate import Work, estimates, time_limit
from pipeline.run.jobs import (
    PlannedJob,
    Profile,
    Resources,
    memory_mb,
    parents,
    read_profile,
    refuse_replaced_configuration,
)
from pipeline.run.plan import estimate_plan, report, wall_seconds
from pipeline.run.sizes import Size
from pipeline.stages import STAGES, Stage
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

CLUSTER = Profile(Path("slurm"), jobs=2)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The paper's configuration, in a folder where nothing has run."""
    monkeypatch.chdir(tmp_path)
    return scale()


def job(rule, gpus=0, inputs=(), outputs=(), benchmark=None, threads=1, extra=None, **wildcards):
    resources = Resources({"gpu": gpus, "nodes": 1, "slurm_extra": extra} if gpus else {})
    return PlannedJob(rule, wildcards, tuple(inputs), tuple(outputs), benchmark, threads, resources)


def distilling(model="llama-3.1-8b", variant="swiftkv-50", gpus=8, **more):
    return job("distill", gpus, model=model, variant=variant, **more)


def seconds(config, planned, speed=1.0):
    return Work(planned, typed(config), speed).seconds()


# Profiles and machines


def test_profiles_are_read_as_snakemake_reads_them(monkeypatch):
    monkeypatch.setattr("pipeline.run.jobs.memory_mb", lambda: 16000)
    slurm, local = (read_profile(name) for name in ("slurm", "local"))
    assert (slurm.jobs, slurm.cores, slurm.attempts) == (32, None, 4) and slurm.configfiles
    assert slurm.slurm.requeue and slurm.slurm.qos is None and not local.slurm
    assert local.jobs is None and local.cores >= 1
    assert [file.name for file in local.configfiles] == ["override.yaml"]
    assert read_profile(ROOT / "profiles/gpu").resources == {"mem_mb": 16000, "gpu_turn": 1, "gpu": 1}
    assert not slurm.resources


@pytest.mark.parametrize("own", ["own.yaml", "../own.yaml", "/nowhere/own.yaml"])
def test_a_configfile_that_replaces_the_profiles_is_refused(own, tmp_path):
    (tmp_path / "profile.yaml").write_text(f"configfile: {own}\n")
    for profile in (["--profile", str(tmp_path)], [f"--profile={tmp_path}"]):
        words = ["snakemake", *profile, "--configfile", "mine.yaml"]
        with refused("replaces .*own.yaml of the profile"):
            refuse_replaced_configuration(words, ["mine.yaml"])
        refuse_replaced_configuration(words, [tmp_path / own, "mine.yaml"])


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("0::/\n", {}, 20000),
        # Of version 2: a limit of a group above the own one, most of whose pages can be dropped.
        (
            "0::/pod/job\n",
            {"pod/memory.max": "8000000000", "pod/memory.current": "5000000000", "pod/job/memory.max": "max",
             "pod/memory.stat": "anon 1\ninactive_file 3000000000\n"},
            6000,
        ),
        # Of version 1: the group's own limit.
        (
            "4:memory:/pod\n3:cpuset:/\n0::/\n",
            {"memory/pod/memory.limit_in_bytes": "3000000000", "memory/pod/memory.usage_in_bytes": "1000000000",
             "memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "7000000000"},
            2000,
        ),
    ],
)  # fmt: skip
def test_memory_is_what_the_control_groups_leave(tmp_path, groups, files, free):
    contents = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   19531250 kB\n", "proc/self/cgroup": groups}
    for name, text in (contents | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_mb(tmp_path) == free
    assert memory_mb() > 0


def test_a_slower_processor_takes_longer_and_changes_nothing_on_a_gpu(config):
    on_processor, on_gpu = (job("similarity", gpus, model="llama-3.1-8b") for gpus in (0, 1))
    assert 1 < seconds(config, on_processor, 0.5) / seconds(config, on_processor) < 2
    assert seconds(config, on_gpu, 0.5) == seconds(config, on_gpu)


# How big a model is


def test_sizes_are_the_published_ones(config):
    assert Size.of(typed(scale("local")), SMOL).parameters == 134515008  # read from its package
    assert Size.of(typed(config), "llama-3.1-405b").bytes == pytest.approx(401.7e9 + 2 * 4.2e9, rel=0.001)
    moe = Size(read_json(ROOT / "resources/architectures/deepseek-v2-lite.json")["config"])
    assert moe.passed == pytest.approx(2.4e9, rel=0.1)  # of 15.7e9
    dense = Size(read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"])
    assert dense.trained(SwiftKVSpec(32, 16), "qkv") == 16 * 4096 * (4096 + 2 * 1024)


def test_the_size_of_a_model_does_not_depend_on_which_was_asked_before():
    config = typed(scale("smoke"))
    packaged = [name for name, model in config.models.items() if hasattr(model.source, "gguf")]
    assert len(packaged) > 1
    forward, backward = (
        {name: Size.of(config, name).parameters for name in order} for order in (packaged, packaged[::-1])
    )
    assert forward == backward


# How long it takes


@pytest.mark.parametrize(("model", "gpus", "published"), [("llama-3.1-8b", 8, 3), ("llama-3.1-70b", 32, 5)])
def test_training_takes_about_as_long_as_published(config, model, gpus, published):
    hours = seconds(config, distilling(model, gpus=gpus)) / 3600
    assert published / 2 < hours < published * 2  # claims train-8b-hours


@pytest.mark.parametrize(
    "variant",
    [
        {"recipe": "full-model", "prefill_reduction": "50", "acrosskv": 1},
        {"recipe": "fine-tuning", "prefill_reduction": None},
    ],
)
def test_a_training_of_all_parameters_counts_the_experts_that_a_token_passes(config, variant):
    projections = seconds(config, distilling("qwen3-30b-a3b"))
    config["variants"]["swiftkv-50"] = variant
    assert projections < seconds(config, distilling("qwen3-30b-a3b")) < 2 * projections


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        ({"teacher_states": "stored"}, {}),
        ({}, {"gradient_checkpointing": True}),
        ({"loss": "lm"}, {}),
        ({}, {"train": "upper_layers"}),
    ],
)
def test_what_makes_a_training_longer(config, cheaper, dearer):
    recipe = config["recipes"]["distillation"] | {"gradient_checkpointing": False}
    config["recipes"] |= {"cheaper": recipe | cheaper, "dearer": recipe | dearer}
    times = []
    for name in ("cheaper", "dearer"):
        config["variants"]["swiftkv-50"]["recipe"] = name
        times.append(seconds(config, distilling()))
    assert 0 < times[0] < times[1]


def test_a_benchmark_is_priced_by_one_entry(config):
    config["tasks"]["new"] = config["tasks"]["arc-easy"] | {"task": "new_one", "source": {"hub": "org/new"}}
    scoring = job("score", 1, outputs=["new.json"], model="llama-3.1-8b", variant="baseline", kv_cache="auto")
    plan = estimate_plan(CLUSTER, typed(config), [scoring, job("fetch_questions", task="new")])
    assert plan.downloads[0].hub == "org/new"
    text = report(plan)
    assert "state it under tasks.new.asks" in text and "GPU-hours   ?," in text and "0.0 + ?" not in text
    config["tasks"]["new"]["asks"] = {"questions": 1000, "prompt": 70}
    few = seconds(config, scoring)
    config["tasks"]["new"]["asks"]["questions"] = 10**6
    many = seconds(config, scoring)
    config["tasks"]["new"]["limit"] = 1000
    assert 0 < few == seconds(config, scoring) < many
    config["tasks"]["new"]["asks"]["shot"] = 20
    one, five = (seconds(config, scoring) for config["tasks"]["new"]["shots"] in (1, 5))
    assert few < one < five  # once, as log-likelihoods share their start
    config["tasks"]["new"]["asks"]["answer"] = 1
    assert seconds(config, scoring) > five


def test_measured_times_take_the_place_of_estimates(config, tmp_path):
    def record(variant, took):
        file = tmp_path / f"results/benchmarks/{variant}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\th:m:s\n{took}\t0:00:01\n")
        return distilling(variant=variant, benchmark=str(file.relative_to(tmp_path)))

    def taken(planned, finished=()):
        return estimates(CLUSTER, typed(config), planned, finished)

    same, like = record("swiftkv-50", 1234.5), distilling(variant="swiftkv-62.5")
    other = distilling(model="qwen2.5-7b")
    finished = record("swiftkv-25", 2 * seconds(config, distilling(variant="swiftkv-25")))
    found = taken([same, like, other], [finished])
    assert list(found.measured) == [True, True, False]
    assert found.seconds[0] == 1234.5 and found.seconds[2] == seconds(config, other)
    assert 1234.5 / seconds(config, same) < found.seconds[1] / seconds(config, like) < 2
    (tmp_path / same.benchmark).write_text("s\th:m:s\n")
    assert not taken([same]).measured[0]


def test_what_cannot_be_estimated_has_a_time_limit_too(config):
    config["planning"]["data"] = {}
    planned = distilling()
    with pytest.raises(UserError):
        seconds(config, planned)
    assert time_limit(Work(planned, typed(config))) >= 120


def point(*names, variant="baseline", **more):
    outputs = [f"results/serving/{point}/llama-3.1-8b/{variant}/auto.json" for point in names]
    return job("measure", 1, outputs=outputs, model="llama-3.1-8b", variant=variant, kv_cache="auto", **more)


def test_points_of_one_engine_start_it_once(config):
    apart = seconds(config, point("batch-2k")) + seconds(config, point("batch-8k"))
    weights = 2 * 8.03e9 / 1e9 / config["planning"]["gpu"]["load_gb"]
    start = sum(config["planning"]["gpu"][name] for name in ("start", "engine"))
    assert apart - seconds(config, point("batch-2k", "batch-8k")) == pytest.approx(start + weights, rel=0.01)


def test_a_rate_is_estimated_by_the_time_in_which_its_requests_come(config):
    asked = config["serving"]["points"]["p"] = {"measure": "latency", "input_tokens": 1000, "seconds": 60}
    times = []
    for asked["request_rates"] in ([1], [1, 2]):
        times.append(seconds(config, point("p")))
    assert 60 < times[1] - times[0] < 80


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-405b"])
def test_the_arrivals_of_every_latency_point_are_within_the_time_limit(config, model):
    """By arithmetic, with a warm-up and with bisections between the two lowest rates, where arrivals take longest."""
    points = {name: asked for name, asked in config["serving"]["points"].items() if asked["measure"] == "latency"}
    assert len(points) > 10
    for name, asked in points.items():
        rates = sorted(asked["request_rates"])
        least, repeats = asked.get("min_requests", 1), asked.get("repeats", 1)
        runs = [rates[0], *rates * repeats, *[sum(rates[:2]) / 2] * repeats * asked.get("refine_steps", 0)]
        arrivals = sum(max(least, rate * asked["seconds"]) / rate for rate in runs)
        outputs = [f"results/serving/{name}/{model}/baseline/auto.json"]
        planned = job("measure", 1, outputs=outputs, model=model, variant="baseline", kv_cache="auto")
        assert arrivals < 60 * time_limit(Work(planned, typed(config))), name


def test_rates_that_are_too_high_take_the_time_of_their_queue_and_two_end_the_search(config):
    asked = config["serving"]["points"]["p"] = {"measure": "latency", "input_tokens": 32000, "seconds": 150}
    times = []
    for asked["request_rates"] in ([0.01], [0.01, 64], [0.01, 64, 128], [0.01, 64, 128, 256]):
        times.append(seconds(config, point("p")))
    served = 290e12 / (2 * 7.5e9)  # tokens a second, by planning.gpu.serving
    assert times[1] - times[0] == pytest.approx(64 * 150 * 32256 / served, rel=0.05)
    assert times[2] - times[1] == pytest.approx(128 * 150 * 32256 / served, rel=0.05)
    assert times[3] == times[2]


def test_a_stage_that_is_not_known_is_short(config, monkeypatch):
    monkeypatch.setitem(STAGES, "probe", Stage("probe/{model}.json", "module:function", gpus="score"))
    probe = job("probe", 1, model="llama-3.1-8b", outputs=["results/probe/llama-3.1-8b.json"])
    assert 0 < seconds(config, probe) < 300


def test_an_exclusive_node_counts_whole(config):
    shared, alone = (
        estimate_plan(CLUSTER, typed(config), [point("interactive-2k", extra=extra)])
        for extra in (None, "--mail-type=FAIL --exclusive")
    )
    assert 0 < 8 * shared.times.gpu_hours[0] == pytest.approx(alone.times.gpu_hours[0])
    assert "up to 8 GPUs a job" in report(alone)
    here = replace(CLUSTER, jobs=None, cores=2)
    (job,) = estimates(here, typed(config), [point("interactive-2k", extra="--exclusive")]).to_dict("records")
    assert job["gpus"] == 1


# When it ends


@pytest.mark.parametrize(
    ("taken", "profile", "least"),
    [
        ([5, 10, 4, 3], Profile(Path("slurm"), jobs=9), 15),  # the longest chain
        ([5, 10, 4, 30], Profile(Path("slurm"), jobs=1), 49),  # one job at a time
        ([5, 10, 40, 3], Profile(Path("gpu"), cores=8, resources={"gpu": 2}), 46.5),  # GPU-hours on two GPUs
        ([5, 10, 4, 3], Profile(Path("local"), cores=1), 22),
    ],
)
def test_a_run_takes_at_least_its_longest_chain_and_its_share_of_what_is_scarce(taken, profile, least):
    planned = dict(
        enumerate([job("pack", outputs=["a"]), job("score", 1, inputs=["a"]), job("score", 2), job("score", 1)])
    )
    graph = parents(planned)
    assert graph == {0: [], 1: [0], 2: [], 3: []}
    assert wall_seconds(planned, taken, graph, profile) == least


def test_a_measurement_takes_all_cores_and_local_rules_no_place_in_the_queue():
    def least(planned, taken, profile):
        return wall_seconds(planned, taken, dict.fromkeys(range(len(planned)), ()), profile)

    serving = [job("score"), job("score"), job("measure", threads=8)]
    assert least(serving, [2, 3, 4], Profile(Path("local"), cores=2)) == 6.5
    assert least([job("table"), job("score", 1)], [9, 5], Profile(Path("slurm"), jobs=1)) == 9
