"""What a plan says: jobs as Snakemake prints them, sizes and times that can be checked by hand, and words for the rest."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
import yaml

from swiftkv.cost import request_flops
from swiftkv.planning import disk, jobs, schedule
from swiftkv.planning.estimate import ESTIMATED, GUESSED, MEASURED, SCALED, UNKNOWN, Estimator
from swiftkv.planning.jobs import PlannedJob, Resources, parse_dry_run
from swiftkv.planning.machine import Machine
from swiftkv.planning.plan import estimate_plan
from swiftkv.planning.profile import Profile, read_profile
from swiftkv.planning.report import report
from swiftkv.planning.size import Size, spec_of
from swiftkv.planning.text import recipe_of
from swiftkv.planning.training import distill, training_flops
from swiftkv.preflight import machine
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
CLUSTER = Profile(Path("slurm"), jobs=2)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The paper's configuration, in a folder where nothing has run."""
    monkeypatch.chdir(tmp_path)
    names = ("config.yaml", "artifacts.yaml")
    return {key: section for name in names for key, section in yaml.safe_load((ROOT / name).read_text()).items()}


def size_of(name):
    return Size(read_json(ROOT / f"resources/architectures/{name}.json")["config"])


def job(rule, gpus=0, inputs=(), outputs=(), benchmark=None, priority=0, threads=1, **wildcards):
    resources = Resources(gpu=gpus) if gpus else Resources()
    return PlannedJob(rule, wildcards, tuple(inputs), tuple(outputs), benchmark, threads, priority, resources)


def distilling(model="llama-3.1-8b", variant="swiftkv-50", gpus=8, **more):
    checkpoint = f"results/checkpoints/{model}/{variant}"
    return job("distill", gpus, outputs=[checkpoint], model=model, variant=variant, **more)


# What there is to do

PRINTED = """Building DAG of jobs...
Job stats:
job      count
-----  -------
total        2

[Sun Nov 22 02:55:48 2026]
rule distill:
    input: results/models/m/source.json, results/packed/m/r.safetensors
    output: results/checkpoints/m/v, results/training/m/v.csv
    log: results/logs/distill/m/v.log
    jobid: 3
    benchmark: results/benchmarks/distill/m/v.tsv
    reason: Missing output files: results/checkpoints/m/v; Code has changed since last execution
    wildcards: model=m, variant=v
    priority: 10
    threads: 2
    resources: tmpdir=/tmp, mem_mb=900000, mem=900 GB, gpu=16, gpu_model=h100, nodes=2
[Sun Nov 22 02:55:48 2026]
localrule all:
    input: results/checkpoints/m/v
    jobid: 0
    resources: tmpdir=<TBD>
This was a dry-run (flag -n). The order of jobs does not reflect the order of execution.
"""


def test_a_dry_run_is_read_job_by_job():
    training, everything = parse_dry_run(PRINTED)
    assert (training.rule, training.wildcards) == ("distill", {"model": "m", "variant": "v"})
    assert training.inputs == ("results/models/m/source.json", "results/packed/m/r.safetensors")
    assert training.outputs == ("results/checkpoints/m/v", "results/training/m/v.csv")
    assert (training.gpus, training.threads, training.priority) == (16, 2, 10)
    assert training.benchmark == "results/benchmarks/distill/m/v.tsv" and not training.local
    assert (everything.rule, everything.gpus, everything.benchmark, everything.local) == ("all", 0, None, True)
    assert (training.resources["mem_mb"], training.resources.gpu_model) == (900000, "h100")
    assert "tmpdir" not in everything.resources  # not known yet
    assert jobs.parents([training, everything]) == {0: [], 1: [0]}


def test_profiles_are_read_as_snakemake_reads_them(monkeypatch):
    monkeypatch.setattr(machine, "memory_mb", lambda: 16000)
    slurm, local = (read_profile(name, ROOT) for name in ("slurm", "local"))
    assert (slurm.jobs, slurm.cores, slurm.attempts) == (32, None, 4) and slurm.configfiles
    assert slurm.slurm.requeue and slurm.slurm.qos is None and not local.slurm
    assert local.jobs is None and local.cores >= 1
    assert [file.name for file in local.configfiles] == ["override.yaml"]
    assert read_profile(ROOT / "profiles/gpu", ROOT).resources == {"mem_mb": 16000, "gpu_turn": 1, "gpu": 1}
    assert not slurm.resources and slurm.python == (sys.executable,)
    with pytest.raises(jobs.UserError, match="there is no profile 'slrum'; it is one of gpu, local,"):
        read_profile("slrum", ROOT)


# How big a model is


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v2-lite", 15.71), ("llama-3.1-8b", 8.03), ("llama-3.1-405b", 405.85)]
)
def test_parameters_are_the_published_ones(name, billions):
    assert size_of(name).parameters / 1e9 == pytest.approx(billions, abs=0.006)


def test_a_token_goes_through_the_active_experts_only():
    assert size_of("deepseek-v2-lite").layer(1) * 27 / 2e9 == pytest.approx(
        2.4 - 0.2, rel=0.1
    )  # 2.4e9, embedding included


def test_a_packaged_model_is_measured_without_loading_it(config):
    config["models"]["small"] = yaml.safe_load((ROOT / "profiles/local/override.yaml").read_text())["models"][
        "smollm2-135m"
    ]
    size = Size.of(config, "small", ROOT)
    assert (size.layers, size.width, size.parameters) == (30, 576, 134515008)


def test_fp8_weights_are_a_byte_each_but_for_the_vocabulary(config):
    assert Size.of(config, "llama-3.1-405b", ROOT).bytes == pytest.approx(
        401.7e9 + 2 * 4.2e9, rel=0.001
    )  # docs/training.md


def test_trained_parameters_are_those_of_the_recipe():
    size, spec = size_of("llama-3.1-8b"), SwiftKVSpec(32, 16)
    projections = 16 * 4096 * (4096 + 2 * 1024)
    assert size.trained(spec, "qkv") == projections
    assert size.trained(SwiftKVSpec(32, 16, 16), "qkv") == 16 * 4096**2 + 2 * 4096 * 1024
    assert size.trained(SwiftKVSpec(32, 16, early_exit=True), "qkv") == projections + 128256 * 4096
    assert size.trained(spec, "upper_layers") == pytest.approx(
        16 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), rel=1e-3
    )
    assert size.trained(None, "all") == size.parameters


# How long it takes


def hours(config, model, gpus):
    recipe = recipe_of(config, model, "distillation")
    size, spec = Size.of(config, model, ROOT), spec_of(config, model, "swiftkv-50")
    return distill(config, size, spec, recipe, None, Machine(config, gpus)) / 3600


@pytest.mark.parametrize(("model", "gpus", "published"), [("llama-3.1-8b", 8, 3), ("llama-3.1-70b", 32, 5)])
def test_training_takes_about_as_long_as_published(config, model, gpus, published):
    assert published / 1.5 < hours(config, model, gpus) < published * 1.5  # resources/paper/claims.yaml


def test_a_training_costs_what_is_computed(config):
    size, spec, context = size_of("llama-3.1-8b"), SwiftKVSpec(32, 16), 500
    layer, head, new = size.layer(context), size.head, 2 * size.trained(spec, "qkv")

    def flops(name, **changes):
        config["recipes"]["changed"] = config["recipes"][name] | changes
        return training_flops(size, spec, recipe_of(config, "llama-3.1-8b", "changed"), context)

    assert flops("distillation") == 64 * layer + 3 * head + new
    assert flops("distillation", teacher_states="stored") == 32 * layer + 3 * head + new
    assert flops("distillation", gradient_checkpointing=True) == 80 * layer + 3 * head + new
    assert flops("lm-loss") == 48 * layer + 2 * head + new


def test_gpus_of_a_training_work_together_and_those_of_a_score_in_turn(config):
    estimator = Estimator(config, ROOT)
    few, many = (estimator.estimate(distilling(gpus=gpus)).seconds for gpus in (8, 32))
    assert 3 < few / many < 4
    path = "results/scores/llama-3.1-70b/baseline/auto/winogrande.json"
    case = {"model": "llama-3.1-70b", "variant": "baseline", "kv_cache": "auto", "task": "winogrande"}
    alone, spread = (estimator.estimate(job("score", gpus, outputs=[path], **case)) for gpus in (1, 4))
    assert alone == spread and alone.sure == ESTIMATED


def test_a_rule_that_nothing_is_known_of_is_a_guess(config):
    assert Estimator(config, ROOT).estimate(job("something_new", model="llama-3.1-8b")).sure == GUESSED


def test_a_model_of_unknown_size_is_said_to_be_unknown(config):
    del config["models"]["qwen2.5-7b"]["architecture"]
    planned = [job("similarity", 1, model="qwen2.5-7b", outputs=["results/similarity/qwen2.5-7b.json"])]
    plan = estimate_plan(ROOT, CLUSTER, config, planned)
    assert plan.estimates[0].sure == UNKNOWN and plan.total.gpu_hours == 0
    assert "not counted: 1 jobs, as nothing says how big model 'qwen2.5-7b' is" in report(plan)


def test_packed_rows_are_counted_where_they_are(config, tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    rows = tmp_path / "results/packed/llama-3.1-8b/distillation.safetensors"
    rows.parent.mkdir(parents=True)
    save_file({"input_ids": np.zeros((320, 2), dtype=np.int32)}, rows)
    config["planning"]["gpu"]["load_gb"]["value"] = 1e9  # neither loading nor states take time
    estimator, path = Estimator(config, ROOT), "results/packed/llama-3.1-8b/distillation.safetensors"
    assumed, counted = (estimator.estimate(distilling(inputs=inputs)).seconds for inputs in ([], [path]))
    config["planning"]["gpu"]["trainer"]["value"] = config["planning"]["gpu"]["start"]["value"] = 1e-9
    again = estimator.estimate(distilling(inputs=[path])).seconds
    tokens = 340e6 / 8192
    assert counted < assumed / 10 and again == pytest.approx((assumed - 90) * 320 / tokens, rel=0.01)


def test_a_finished_job_counts_as_measured_and_its_like_are_scaled(config, tmp_path):
    def record(variant, seconds):
        file = tmp_path / f"results/benchmarks/distill/llama-3.1-8b/{variant}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\th:m:s\n{seconds}\t0:00:01\n")
        return distilling(variant=variant, benchmark=str(file.relative_to(tmp_path)))

    estimator = Estimator(config, ROOT)
    first = estimator.estimate(distilling(variant="swiftkv-25")).seconds
    same = record("swiftkv-50", 1234.5)
    like = distilling(variant="swiftkv-62.5", benchmark="results/benchmarks/distill/llama-3.1-8b/swiftkv-62.5.tsv")
    other = distilling(model="qwen2.5-7b")
    finished = record("swiftkv-25", 2 * first)
    found = estimator.estimates([same, like, other], [finished])
    assert [estimate.sure for estimate in found] == [MEASURED, SCALED, ESTIMATED]
    assert found[0].seconds == 1234.5
    halves = sorted([2.0, 1234.5 / estimator.estimate(same).seconds])
    assert found[1].seconds == pytest.approx(estimator.estimate(like).seconds * sum(halves) / 2)
    (tmp_path / same.benchmark).write_text("s\th:m:s\n")
    assert estimator.estimates([same])[0].sure == ESTIMATED


# When it ends


def course(planned, seconds, profile):
    found = schedule.run(planned, seconds, jobs.parents(planned), profile)
    return found.seconds, found.gpus


def test_jobs_wait_for_their_inputs_and_for_a_place():
    planned = [
        job("pack", outputs=["a"]),
        job("score", 1, inputs=["a"], outputs=["b"]),
        job("score", 4),
        job("score", 1),
    ]
    assert course(planned, [5, 10, 4, 3], CLUSTER) == (15, 4)  # two at once: 1 GPU joins after the 4
    assert course(planned, [5, 10, 4, 3], Profile(Path("slurm"), jobs=9)) == (15, 5)
    assert course(planned, [5, 10, 4, 3], Profile(Path("gpu"), cores=8, resources={"gpu": 1})) == (17, 4)


def test_a_serving_job_takes_all_cores_and_local_rules_no_place_in_the_queue():
    serving = [job("score"), job("score"), job("measure", threads=2)]
    assert course(serving, [2, 3, 4], Profile(Path("local"), cores=2))[0] == 7
    small = [job("table"), job("figure"), job("score", 1), job("score", 1)]
    assert course(small, [1, 1, 5, 5], CLUSTER)[0] == 5


@pytest.mark.parametrize(("cores", "seconds"), [(1, 18), (2, 9)])
def test_what_is_urgent_goes_first(cores, seconds):
    planned = [job("score"), job("distill", outputs=["x"], priority=10), job("fidelity", inputs=["x"])]
    assert course(planned, [9, 4, 5], Profile(Path("local"), cores=cores))[0] == seconds


def test_a_workload_is_estimated_up_to_the_rate_at_which_requests_wait(config):
    config["serving"]["points"]["p"] = {"measure": "goodput", "workloads": ["code"], "seconds": 10}
    rates = [1, 2, 1000, 2000]
    config["workloads"]["code"] |= {
        "request_rates": rates, "stand_in": {"requests": 9, "input_divisor": 2, "output_divisor": 13},
    }  # fmt: skip
    job_of = {
        point: job("measure", 1, point=point, model="llama-3.1-8b", variant="baseline")
        for point in ("p", "kv-capacity")
    }
    estimator = Estimator(config, ROOT)
    found = {point: estimator.estimate(each).seconds for point, each in job_of.items()}
    gpu = {name: entry["value"] for name, entry in config["planning"]["gpu"].items() if name != "name"}
    flops = sum(request_flops(size_of("llama-3.1-8b").arch, None, 750, 1).values()) / (
        1e12 * gpu["tflops"] * gpu["serving"]
    )
    step = 2 * 8.03 / gpu["memory_gb"] + 32 * gpu["layer_ms"] / 1000

    def requests(count):
        return count * flops + -(-count // 256) * step

    # 1 and 2 a second take their 10 s and a request's own time, 1,000 a second what the work takes; 2,000 is not tried.
    work = 2 * 10 + requests(10_000) + 3 * requests(1)
    assert found["p"] - found["kv-capacity"] == pytest.approx(gpu["server"] - gpu["engine"] + work, rel=0.01)


# What it leaves and fetches


def test_a_training_leaves_a_checkpoint_and_its_states(config):
    state = (ROOT / "src/swiftkv/distill/state.py").read_text()
    assert int(re.search(r"^KEPT = (\d+)", state, re.M)[1]) + 1 == disk.STATES  # one more while it is written
    found = disk.written(distilling(), Estimator(config, ROOT))
    projections = 16 * 4096 * (4096 + 2 * 1024)
    assert found == {
        "checkpoints": 2 * (size_of("llama-3.1-8b").parameters + projections),
        "training state": 36 * projections,
    }


def test_the_plan_counts_the_time_that_states_take(config):
    """One every 20 minutes, or where they take longer than 2 of these, a tenth of the time."""
    size, spec = size_of("llama-3.1-8b"), spec_of(config, "llama-3.1-8b", "swiftkv-50")
    state, seconds = 12 * size.trained(spec, "qkv") / 10**9, {}
    for speed in (2, 0.01):
        config["planning"]["gpu"]["load_gb"]["value"] = speed
        machine, often = Machine(config, 8), recipe_of(config, "llama-3.1-8b", "distillation")
        seldom = often.model_copy(update={"checkpoint_minutes": 10**6})
        taken = [distill(config, size, spec, recipe, None, machine) for recipe in (often, seldom)]
        seconds[speed] = (taken[0] - taken[1], taken[1])
    more, hours = seconds[2][0] / (state / 2), seconds[2][1] / 3600
    assert round(more) == pytest.approx(more) and 3 * hours - 1 < more <= 3 * hours
    assert 0 < seconds[0.01][0] < 0.1 * seconds[0.01][1]


def test_each_source_is_downloaded_once_and_gated_ones_are_named(config):
    planned = [
        job("resolve_model", outputs=["a"], model="llama-3.1-8b"),
        job("resolve_model", outputs=["b"], model="llama-3.1-8b-base"),
        job("resolve_model", outputs=["c"], model="qwen2.5-7b"),
        job("dummy_checkpoint", outputs=["d"], model="llama-3.1-8b", variant="baseline"),
        job("workload", outputs=["e"], workload="chat"),
        job("workload", outputs=["f"], workload="code"),
    ]
    config["workloads"]["code"]["stand_in"] = {"requests": 9, "input_divisor": 1, "output_divisor": 1}
    plan = estimate_plan(ROOT, CLUSTER, config, planned)
    found = {item.hub: (item.what, item.gated, item.bytes) for item in plan.total.downloads}
    assert len(found) == len(plan.total.downloads) == 4
    assert found[config["workloads"]["chat"]["source"]["url"]][:2] == ("data set", False)
    assert found["meta-llama/Llama-3.1-8B-Instruct"] == ("model", True, 2 * 8030261248)
    assert found["Qwen/Qwen2.5-7B-Instruct"][1] is False
    text = report(plan)
    assert "accept it at https://huggingface.co/meta-llama/Llama-3.1-8B\n" in text + "\n" and "HF_TOKEN" in text


def test_every_llama_and_mistral_of_their_makers_is_marked_as_gated(config):
    for entry in config["models"].values():
        for source in (entry["source"], entry.get("chat_template", {})):
            if "hub" in source:
                assert source.get("gated", False) == source["hub"].startswith(("meta-llama/", "mistralai/"))


def test_artifacts_count_what_they_share_once_in_all(config):
    checkpoint = "results/checkpoints/llama-3.1-8b/swiftkv-50"
    planned = [
        distilling(),
        job("table", inputs=[checkpoint], outputs=["results/tables/table2.csv"], artifact="table2"),
        job("figure", inputs=[checkpoint], outputs=["results/figures/figure3.csv"], artifact="figure3"),
    ]
    plan = estimate_plan(ROOT, CLUSTER, config, planned)
    assert list(plan.artifacts) == ["table2", "figure3"]
    alone = plan.artifacts["table2"]
    assert alone.gpu_hours == plan.artifacts["figure3"].gpu_hours == plan.total.gpu_hours > 0
    assert (alone.cluster_jobs, alone.local_jobs) == (1, 1) and (plan.total.cluster_jobs, plan.total.local_jobs) == (
        1,
        2,
    )


def test_nothing_left_to_do_is_said(config):
    assert report(estimate_plan(ROOT, CLUSTER, config, [])) == "Nothing is left to do."


def test_a_job_that_slurm_would_end_is_named(config):
    takes = Estimator(config, ROOT).estimate(distilling()).seconds / 60
    longer, shorter = (
        dataclasses.replace(distilling(variant=name), resources=Resources(gpu=8, runtime=int(takes * factor)))
        for name, factor in (("swiftkv-50", 0.5), ("swiftkv-50-fitted", 2))
    )
    text = report(estimate_plan(ROOT, CLUSTER, config, [longer, shorter]))
    assert "distill llama-3.1-8b swiftkv-50 " in text and "distill llama-3.1-8b swiftkv-50-fitted" not in text
