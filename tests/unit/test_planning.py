"""What a plan says: sizes that are published, totals of a fixed plan, what makes it longer, and words for the rest."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
import yaml
from swiftkv.planning import jobs
from swiftkv.planning.estimate import ESTIMATED, MEASURED, SCALED, UNKNOWN, estimate, estimates, written
from swiftkv.planning.plan import WRITTEN, estimate_plan, wall_seconds
from swiftkv.planning.profile import Profile, read_profile
from swiftkv.planning.report import report
from swiftkv.pricing.size import Size
from swiftkv.pricing.work import PlannedJob, Resources, Work

from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec
from swiftkv.stages import STAGES, distill, stage_of
from tests.unit.artifact_helpers import typed

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


def job(rule, gpus=0, inputs=(), outputs=(), benchmark=None, threads=1, **wildcards):
    resources = Resources(gpu=gpus) if gpus else Resources()
    local = stage_of(rule).local
    return PlannedJob(rule, wildcards, tuple(inputs), tuple(outputs), benchmark, threads, resources, local)


def distilling(model="llama-3.1-8b", variant="swiftkv-50", gpus=8, **more):
    checkpoint = f"results/checkpoints/{model}/{variant}"
    return job("distill", gpus, outputs=[checkpoint], model=model, variant=variant, **more)


# What there is to do


def test_profiles_are_read_as_snakemake_reads_them(monkeypatch):
    monkeypatch.setattr("swiftkv.planning.profile.memory_mb", lambda: 16000)
    slurm, local = (read_profile(name, ROOT) for name in ("slurm", "local"))
    assert (slurm.jobs, slurm.cores, slurm.attempts) == (32, None, 4) and slurm.configfiles
    assert slurm.slurm.requeue and slurm.slurm.qos is None and not local.slurm
    assert local.jobs is None and local.cores >= 1
    assert [file.name for file in local.configfiles] == ["override.yaml"]
    assert read_profile(ROOT / "profiles/gpu", ROOT).resources == {"mem_mb": 16000, "gpu_turn": 1, "gpu": 1}
    assert not slurm.resources and slurm.python == (sys.executable,)
    with pytest.raises(UserError, match="there is no profile 'slrum'; it is one of gpu, local,"):
        read_profile("slrum", ROOT)


# How big a model is


def test_a_token_goes_through_the_active_experts_only():
    assert size_of("deepseek-v2-lite").layer(1) * 27 / 2e9 == pytest.approx(
        2.4 - 0.2, rel=0.1
    )  # 2.4e9, embedding included


def test_a_packaged_model_is_measured_without_loading_it(config):
    config["models"]["small"] = yaml.safe_load((ROOT / "profiles/local/override.yaml").read_text())["models"][
        "smollm2-135m"
    ]
    size = Size.of(typed(config), "small", ROOT)
    assert (size.layers, size.width, size.parameters) == (30, 576, 134515008)


def test_fp8_weights_are_a_byte_each_but_for_the_vocabulary(config):
    assert Size.of(typed(config), "llama-3.1-405b", ROOT).bytes == pytest.approx(
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


def seconds(config, planned):
    return estimate(Work(planned, typed(config), ROOT)).seconds


@pytest.mark.parametrize(("model", "gpus", "published"), [("llama-3.1-8b", 8, 3), ("llama-3.1-70b", 32, 5)])
def test_training_takes_about_as_long_as_published(config, model, gpus, published):
    hours = seconds(config, distilling(model, gpus=gpus)) / 3600
    assert published / 1.5 < hours < published * 1.5  # resources/paper/claims.yaml


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        ({"teacher_states": "stored"}, {}),
        ({}, {"gradient_checkpointing": True}),
        ({"loss": "lm", "start": "copied"}, {}),
        ({"checkpoint_minutes": 10**6}, {"checkpoint_minutes": 1}),
        ({}, {"train": "upper_layers"}),
        ({}, {"epochs": 9}),
    ],
)
def test_what_makes_a_training_longer(config, cheaper, dearer):
    recipe = config["recipes"]["distillation"]
    config["recipes"] |= {"cheaper": recipe | cheaper, "dearer": recipe | dearer}
    times = []
    for name in ("cheaper", "dearer"):
        config["variants"]["swiftkv-50"]["recipe"] = name
        times.append(seconds(config, distilling()))
    assert 0 < times[0] < times[1]


def test_states_take_at_most_a_tenth_of_a_training(config):
    """Where they take longer than 2 of the 20 minutes between them."""
    config["planning"]["gpu"]["load_gb"]["value"] = 0.01
    often = seconds(config, distilling())
    config["recipes"]["distillation"]["checkpoint_minutes"] = 10**6
    seldom = seconds(config, distilling())
    assert seldom < often < 1.1 * seldom


def test_gpus_of_a_training_work_together_and_those_of_a_score_in_turn(config):
    few, many = (seconds(config, distilling(gpus=gpus)) for gpus in (8, 32))
    assert 3 < few / many < 4
    case = {"model": "llama-3.1-70b", "variant": "baseline", "kv_cache": "auto", "task": "winogrande"}
    alone, spread = (estimate(Work(job("score", gpus, **case), typed(config), ROOT)) for gpus in (1, 4))
    assert alone == spread and alone.sure == ESTIMATED


def test_a_rule_without_a_stage_is_an_error(config):
    with pytest.raises(KeyError, match="something_new"):
        estimate(Work(PlannedJob("something_new"), typed(config), ROOT))


def test_a_benchmark_is_priced_by_one_entry(config):
    config["tasks"]["new"] = config["tasks"]["arc-easy"] | {"task": "new_one", "source": {"hub": "org/new"}}
    scoring = job("score", 1, model="llama-3.1-8b", variant="baseline", kv_cache="auto", task="new")
    planned = [scoring, job("fetch_questions", task="new")]
    plan = estimate_plan(ROOT, CLUSTER, typed(config), planned)
    assert plan.estimates[0].sure == UNKNOWN and plan.total.downloads[0].hub == "org/new"
    assert "not counted: 1 job, as nothing says how much benchmark 'new' asks; state it under tasks.new.asks" in report(
        plan
    )
    config["tasks"]["new"]["asks"] = {"questions": 1000, "prompt": 50, "choices": 4, "choice": 5}
    few = seconds(config, scoring)
    config["tasks"]["new"]["asks"]["questions"] = 10**6
    many = seconds(config, scoring)
    config["tasks"]["new"]["limit"] = 1000
    assert 0 < few == seconds(config, scoring) < many


def test_a_model_of_unknown_size_is_said_to_be_unknown(config):
    del config["models"]["qwen2.5-7b"]["architecture"]
    planned = [job("similarity", 1, model="qwen2.5-7b", outputs=["results/similarity/qwen2.5-7b.json"])]
    plan = estimate_plan(ROOT, CLUSTER, typed(config), planned)
    assert plan.estimates[0].sure == UNKNOWN and plan.total.gpu_hours == 0
    text = report(plan)
    assert "not counted: 1 job, as nothing says how big model 'qwen2.5-7b' is" in text
    assert "GPU-hours   at least 0.0" in text and re.search(r"similarity +1 +cluster +\? +\? +\? +1 unknown", text)


def test_packed_rows_are_counted_where_they_are(config, tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    rows = tmp_path / "results/packed/llama-3.1-8b/distillation.safetensors"
    rows.parent.mkdir(parents=True)
    save_file({"input_ids": np.zeros((320, 2), dtype=np.int32)}, rows)
    path = "results/packed/llama-3.1-8b/distillation.safetensors"
    assert 10 * seconds(config, distilling(inputs=[path])) < seconds(config, distilling())


def test_a_finished_job_counts_as_measured_and_its_like_are_scaled(config, tmp_path):
    def record(variant, seconds):
        file = tmp_path / f"results/benchmarks/distill/llama-3.1-8b/{variant}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\th:m:s\n{seconds}\t0:00:01\n")
        return distilling(variant=variant, benchmark=str(file.relative_to(tmp_path)))

    def priced(planned, finished=()):
        return estimates(
            [Work(job, typed(config), ROOT) for job in planned], [Work(job, typed(config), ROOT) for job in finished]
        )

    same = record("swiftkv-50", 1234.5)
    like = distilling(variant="swiftkv-62.5", benchmark="results/benchmarks/distill/llama-3.1-8b/swiftkv-62.5.tsv")
    other = distilling(model="qwen2.5-7b")
    ratio = 2.0
    finished = record("swiftkv-25", ratio * seconds(config, distilling(variant="swiftkv-25")))
    found = priced([same, like, other], [finished])
    assert [estimate.sure for estimate in found] == [MEASURED, SCALED, ESTIMATED]
    assert found[0].seconds == 1234.5
    assert 1234.5 / seconds(config, same) < found[1].seconds / seconds(config, like) < ratio
    (tmp_path / same.benchmark).write_text("s\th:m:s\n")
    assert priced([same])[0].sure == ESTIMATED


@pytest.mark.parametrize(("profile", "shared"), [(Profile(Path("gpu"), cores=8), True), (CLUSTER, False)])
def test_points_of_one_engine_start_it_once_where_they_come_one_after_another(config, profile, shared):
    def point(name, variant="baseline"):
        wildcards = {"point": name, "model": "llama-3.1-8b", "variant": variant, "kv_cache": "auto"}
        return job("measure", 1, outputs=[f"results/serving/{name}/{variant}.json"], **wildcards)

    def hours(*names):
        return estimate_plan(ROOT, profile, typed(config), [point(name) for name in names]).total.gpu_hours

    one, other = hours("batch-2k"), hours("batch-8k")
    assert hours("batch-2k", "interactive-2k") == pytest.approx(one + hours("interactive-2k"))
    assert (hours("batch-2k", "batch-8k") < one + other) == shared
    planned = [point("batch-2k"), point("batch-8k"), point("batch-8k", "swiftkv-50"), point("memory-16gib")]
    plan = estimate_plan(ROOT, profile, typed(config), planned)
    # A start of 90 seconds, and 16 GB at 2 GB a second.
    assert plan.shared.gpu_hours == pytest.approx((90 + 8.03) / 3600, rel=1e-3)
    assert (plan.shared.jobs, plan.shared.engines) == (4, 3)
    words = "which saves" if shared else "would do: up to"
    assert re.search(rf"engines +3 for 4 serving measurements,? {words} 0.0 GPU-hours", report(plan))


# When it ends


@pytest.mark.parametrize(
    ("seconds", "profile", "least"),
    [
        ([5, 10, 4, 3], Profile(Path("slurm"), jobs=9), 15),  # the longest chain
        ([5, 10, 4, 30], Profile(Path("slurm"), jobs=1), 49),  # one job at a time
        ([5, 10, 4, 3], Profile(Path("gpu"), cores=8, resources={"gpu": 2}), 15),
        ([5, 10, 40, 3], Profile(Path("gpu"), cores=8, resources={"gpu": 2}), 46.5),  # GPU-hours on two GPUs
        ([5, 10, 4, 3], Profile(Path("local"), cores=1), 22),
    ],
)
def test_a_run_takes_at_least_its_longest_chain_and_its_share_of_what_is_scarce(seconds, profile, least):
    planned = [
        job("pack", outputs=["a"]),
        job("score", 1, inputs=["a"], outputs=["b"]),
        job("score", 2),
        job("score", 1),
    ]
    graph = jobs.parents(planned)
    assert graph == {0: [], 1: [0], 2: [], 3: []} and jobs.ancestors(1, graph) == {0, 1}
    assert wall_seconds(planned, seconds, graph, profile) == least


def test_a_measurement_takes_all_cores_and_local_rules_no_place_in_the_queue():
    def least(planned, seconds, profile):
        return wall_seconds(planned, seconds, dict.fromkeys(range(len(planned)), ()), profile)

    serving = [job("score"), job("score"), job("measure", threads=8)]
    assert least(serving, [2, 3, 4], Profile(Path("local"), cores=2)) == 6.5
    assert least([job("table"), job("score", 1)], [9, 5], Profile(Path("slurm"), jobs=1)) == 9


def test_a_workload_is_estimated_up_to_the_rate_at_which_requests_wait(config):
    config["serving"]["points"]["p"] = {"measure": "goodput", "workloads": ["code"], "seconds": 10}
    point = job("measure", 1, point="p", model="llama-3.1-8b", variant="baseline")
    times = []
    for rates in ([1], [1, 2], [1, 2, 1000], [1, 2, 1000, 2000]):
        config["workloads"]["code"]["request_rates"] = rates
        times.append(seconds(config, point))
    first, second, waiting, untried = times
    assert 10 < second - first < 20 and waiting - second > 20 and untried == waiting


def test_a_closed_loop_is_estimated_with_every_number_of_requests(config):
    config["serving"]["points"]["p"] = asked = {
        "measure": "concurrency", "input_tokens": 1000, "output_tokens": 100, "requests_each": 4,
    }  # fmt: skip
    point = job("measure", 1, point="p", model="llama-3.1-8b", variant="baseline")
    times = []
    for asked["concurrencies"] in ([1], [1, 2], [1, 2, 64], [64, 2, 1]):
        times.append(seconds(config, point))
    one, two, many, other_order = times
    assert other_order == pytest.approx(many)
    # Decoding takes as long for 64 at once as for one, prompts take 32 times as long as for two.
    assert 0 < two - one < many - two < 32 * (two - one)


# What it leaves and fetches


def test_a_training_leaves_a_checkpoint_and_its_states(config):
    state = (ROOT / "src/swiftkv/distill/state.py").read_text()
    assert int(re.search(r"^KEPT = (\d+)", state, re.M)[1]) + 1 == distill.STATES  # one more while it is written
    assert written(Work(distilling(), typed(config), ROOT)) == {
        "checkpoints": 16865828864,
        "training state": 14495514624,
    }


def test_what_stages_write_is_listed(config):
    wildcards = {
        "model": "llama-3.1-8b", "variant": "swiftkv-50", "recipe": "distillation", "data": "ultrachat", "task": "mmlu",
        "workload": "chat", "kv_cache": "auto", "whose": "variants",
    }  # fmt: skip
    for name in STAGES:
        assert set(written(Work(job(name, outputs=["x"], **wildcards), typed(config), ROOT))) <= set(WRITTEN), name


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
    plan = estimate_plan(ROOT, CLUSTER, typed(config), planned)
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
    plan = estimate_plan(ROOT, CLUSTER, typed(config), planned)
    assert list(plan.artifacts) == ["table2", "figure3"]
    alone = plan.artifacts["table2"]
    assert alone.gpu_hours == plan.artifacts["figure3"].gpu_hours == plan.total.gpu_hours > 0
    assert (alone.cluster_jobs, alone.local_jobs) == (1, 1) and (plan.total.cluster_jobs, plan.total.local_jobs) == (
        1,
        2,
    )


def test_nothing_left_to_do_is_said(config):
    assert report(estimate_plan(ROOT, CLUSTER, typed(config), [])) == "Nothing is left to do."


def test_a_job_that_slurm_would_end_is_named(config):
    takes = seconds(config, distilling()) / 60
    longer, shorter = (
        dataclasses.replace(distilling(variant=name), resources=Resources(gpu=8, runtime=int(takes * factor)))
        for name, factor in (("swiftkv-50", 0.5), ("swiftkv-50-tuned", 2))
    )
    text = report(estimate_plan(ROOT, CLUSTER, typed(config), [longer, shorter]))
    assert "distill llama-3.1-8b swiftkv-50 " in text and "distill llama-3.1-8b swiftkv-50-tuned" not in text
