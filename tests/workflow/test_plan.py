"""Snakemake plans the right jobs, with the right GPUs, on a machine without SLURM and network; mistakes stop it."""

import contextlib
import re
from collections import Counter

import pytest
from tests.programs import ROOT, SNAKEMAKE, run, snakemake

from pipeline.run.jobs import dry_run


def plan(*arguments):
    """The planned jobs: a list of (rule, wildcards, resources)."""
    with contextlib.chdir(ROOT):
        jobs = dry_run("--forceall", *arguments)
    return [(job.rule, job.wildcards, job.resources) for job in jobs]


@pytest.fixture(scope="module")
def table2():
    return plan("--profile", "profiles/slurm", "results/tables/table2.tex")


def test_table2_at_paper_scale_plans_every_job(table2):
    assert Counter(rule for rule, _, _ in table2) == {
        "resolve_model": 1, "heldout": 1, "corpus": 1, "pack": 1, "distill": 7, "fetch_questions": 7, "score": 56,
        "fidelity": 8, "table": 1,
    }  # fmt: skip


def test_table2_at_paper_scale_asks_for_the_right_gpus(table2):
    for rule, wildcards, resources in table2:
        if rule == "distill":
            assert (resources["gpu"], resources["nodes"], resources["gpu_model"]) == (8, 1, "h100"), wildcards
        elif rule in ("score", "fidelity"):
            assert (resources["gpu"], resources["slurm_partition"]) == (1, "h100"), wildcards
        else:
            assert "gpu" not in resources


def test_vllm_scores_on_the_gpus_of_the_model_where_it_is_asked_for(tmp_path):
    file = tmp_path / "vllm.yaml"
    file.write_text("scoring: {backend: vllm}\n")
    targets = [
        f"results/scores/llama-3.1-70b/baseline/{cell}.json" for cell in ("auto/gsm8k", "fp8/gsm8k", "auto/hellaswag")
    ]
    arguments = ["--profile", "profiles/slurm", "--configfile", str(file), "--", *targets]
    assert all(resources["gpu"] == 4 for rule, _, resources in plan(*arguments) if rule == "score")
    printed = snakemake("--dry-run", "--forceall", "--printshellcmds", *arguments).stdout
    assert printed.count('"gpus": 4') == 1, [line for line in printed.splitlines() if "--tasks" in line]


def test_the_demo_is_a_part_of_the_local_run():
    """So what one has made, the other finds made: the same jobs, from the same inputs, in the same places."""
    with contextlib.chdir(ROOT):
        demo, everything = (
            dry_run("--forceall", "--profile", "profiles/local", "--", *target) for target in (["demo"], [])
        )
    alike = {job.outputs: (job.rule, job.inputs, job.wildcards) for job in everything}
    assert demo and all(alike[job.outputs] == (job.rule, job.inputs, job.wildcards) for job in demo)
    assert {job.wildcards["artifact"] for job in demo if "artifact" in job.wildcards} >= {"table1", "figure1", "demo"}
    assert Counter(job.rule for job in demo)["distill"] == Counter(job.rule for job in demo)["measure"] == 1
    assert len(demo) < len(everything) / 5


def test_the_70b_model_trains_on_four_nodes_of_eight():
    jobs = plan("--profile", "profiles/slurm", "results/checkpoints/llama-3.1-70b/swiftkv-50")
    (resources,) = (resources for rule, _, resources in jobs if rule == "distill")
    assert (resources["gpu"], resources["nodes"]) == (32, 4)


def test_the_405b_model_is_trained_on_four_nodes_and_scored_in_shards():
    jobs = plan("--profile", "profiles/slurm", "results/tables/tableB3.tex")
    assert Counter(rule for rule, _, _ in jobs) == {
        "resolve_model": 1, "heldout": 1, "corpus": 1, "pack": 1, "distill": 1, "fetch_questions": 7, "score": 8,
        "score_shard": 26, "merge_scores": 6, "fidelity": 2, "table": 1,
    }  # fmt: skip
    gpus = {rule: (resources["gpu"], resources["nodes"]) for rule, _, resources in jobs if "gpu" in resources}
    assert gpus == {"distill": (32, 4), "score": (8, 1), "score_shard": (8, 1), "fidelity": (8, 1)}


SERVING = "results/serving/{}/{}/{}/auto.json"


@pytest.mark.parametrize(
    ("point", "model", "gpus"),
    [
        ("batch-128k", "llama-3.1-8b", 1),
        ("interactive-2k", "llama-3.1-70b", 4),
        ("memory-16gib", "llama-3.1-8b", 1),
        ("forward", "llama-3.1-8b", 1),
        ("decode", "llama-3.1-8b", 1),
        ("kv-capacity", "llama-3.1-405b", 8),
    ],
)
def test_serving_asks_for_the_gpus_of_its_model(point, model, gpus):
    jobs = plan("--profile", "profiles/slurm", SERVING.format(point, model, "merge-all-layers"))
    # Nothing is trained for it.
    assert {name for name, _, _ in jobs} <= {"resolve_model", "dummy_checkpoint", "measure"}
    (resources,) = (resources for name, _, resources in jobs if name == "measure")
    assert (resources["gpu"], resources["nodes"], resources["slurm_partition"]) == (gpus, 1, "h100")


def test_served_variants_are_trained_first():
    jobs = plan("--profile", "profiles/slurm", SERVING.format("ngram-on", "llama-3.1-8b", "swiftkv-50"))
    assert Counter(rule for rule, _, _ in jobs) == {
        "resolve_model": 1, "heldout": 1, "corpus": 1, "pack": 1, "distill": 1, "measure": 1,
    }  # fmt: skip


def test_a_point_has_its_node_to_itself_because_of_what_it_measures(tmp_path):
    file = tmp_path / "points.yaml"
    file.write_text("""
gpu_jobs: {resources: {slurm_extra: --mail-type=FAIL}}
serving:
  points:
    first-words: {measure: latency, input_tokens: 500, request_rates: [1], seconds: 60}
    interactive-bulk: {measure: throughput, input_tokens: 500, total_tokens: 15000}
""")
    names = ("first-words", "interactive-bulk", "forward", "decode", "kv-capacity")
    targets = [SERVING.format(name, "llama-3.1-8b", "baseline") for name in names]
    site = ["--configfile", "profiles/slurm/site.yaml", str(file)]
    jobs = plan("--profile", "profiles/slurm", *site, "--", *targets)
    extra = {wildcards["point"]: resources["slurm_extra"] for rule, wildcards, resources in jobs if rule == "measure"}
    alone = dict.fromkeys(("first-words", "forward", "decode"), "--mail-type=FAIL --exclusive")
    assert extra == alone | dict.fromkeys(("interactive-bulk", "kv-capacity"), "--mail-type=FAIL")


def test_a_published_checkpoint_is_served_without_training():
    jobs = plan("--profile", "profiles/slurm", SERVING.format("batch-2k", "llama-3.1-8b", "swiftkv-50-published"))
    assert Counter(rule for rule, _, _ in jobs) == {"resolve_model": 1, "fetch_checkpoint": 1, "measure": 1}
    ended = snakemake("--dry-run", "--cores", "1", "results/checkpoints/llama-3.1-70b/swiftkv-50-published")
    assert ended.returncode != 0
    assert "models.llama-3.1-70b.checkpoints names none for it" in ended.stderr and "Traceback" not in ended.stderr


def test_a_fitted_start_of_normalized_keys_is_refused():
    run = snakemake("--dry-run", "--cores", "1", "results/checkpoints/qwen3-4b/swiftkv-50-tuned")
    assert run.returncode != 0
    assert "the keys of qwen3 are normalized" in run.stderr and "Traceback" not in run.stderr


def test_a_model_without_weights_needs_no_download(tmp_path):
    file = tmp_path / "dummy.yaml"
    file.write_text("models: {llama-3.1-8b: {serving_weights: dummy}}\n")
    target = SERVING.format("batch-2k", "llama-3.1-8b", "swiftkv-50-across4")
    jobs = plan("--cores", "1", "--configfile", str(file), "--", target)
    assert Counter(rule for rule, _, _ in jobs) == {"dummy_checkpoint": 1, "measure": 1}


@pytest.mark.parametrize("cores", ["2", "6"])
def test_a_measurement_has_the_machine_to_itself(cores):
    target = "results/local/serving/batch-2k/smollm2-135m/baseline/auto.json"
    ended = snakemake("--dry-run", "--forceall", "--profile", "profiles/local", "--cores", cores, target)
    assert f"threads: {cores}\n" in ended.stdout + ended.stderr


def test_the_whole_paper_plans_every_measurement_once():
    assert Counter(rule for rule, _, _ in plan("--profile", "profiles/slurm")) == {
        "resolve_model": 13, "heldout": 1, "corpus": 3, "pack": 11, "distill": 44, "fetch_questions": 23, "score": 360,
        "score_shard": 36, "merge_scores": 11, "score_panel": 10, "fidelity": 57,
        "similarity": 6, "moments": 1, "dummy_checkpoint": 4, "measure": 174, "table": 33,
        "figure": 15, "report_page": 1, "fetch_checkpoint": 1, "early_exit": 1,
    }  # fmt: skip


@pytest.mark.parametrize("profile", ["local", "smoke"])
def test_every_profile_plans_everything(profile):
    jobs = plan("--profile", f"profiles/{profile}")
    assert {"table", "figure", "measure"} <= {rule for rule, _, _ in jobs}
    assert all(resources.get("gpu", 0) == 0 for _, _, resources in jobs)


def test_several_nodes_need_a_cluster():
    arguments = ["--profile", "profiles/gpu", "--resources", "gpu=32", "--dry-run", "--"]
    ended = snakemake(*arguments, "results/checkpoints/llama-3.1-70b/swiftkv-50")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "\nerror: model 'llama-3.1-70b' asks for 4 nodes (nodes.distill), which only a profile with" in ended.stderr


def test_every_rule_has_docstring_log_and_benchmark():
    for file in ROOT.glob("workflow/rules/*.smk"):
        for block in re.split(r"\n(?=rule )", file.read_text())[1:]:
            name = block.split(":", 1)[0]
            assert re.match(r'rule \w+:\n    """', block), f"{name} in {file.name} has no docstring"
            assert "\n    log:\n" in block and "\n    benchmark:\n" in block, f"{name} in {file.name}"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("modles: {}\n", "modles"),
        ("models: {}\nmodels: {}\n", "key 'models' stands twice"),
        ("artifacts: {table2: {models: [llama-9]}}\n", "artifacts.table2: 'llama-9' is neither a role"),
        ("artifacts: {table2: {points: [batch-2k]}}\n", "artifacts.table2: there is no key 'points'"),
        ("artifacts: {table2: {kind: tabel}}\n", "artifacts.table2: there is no kind 'tabel'"),
        ("artifacts: {table2: {variants: [swiftkv-45]}}\n", "45 % prefill reduction"),
        ("roles: {small: llama-9}\n", "roles.small: 'llama-9' is not defined under models"),
        (
            "models: {llama-3.1-8b: {num_key_value_layers: {'50': 40}}}\n",
            "num_key_value_layers.50: 40 ordinary layers leave none of 32",
        ),
        ("variants: {swiftkv-50-across2: {acrosskv: 99}}\n", "group_size is 99"),
        ("serving: {points: {batch-2k: {rates: [1]}}}\n", "serving.points.batch-2k"),
        ("artifacts: {early_exit: {variants: [swiftkv-50]}}\n", "'swiftkv-50' has no early exit head; variants with"),
    ],
)
def test_a_mistake_stops_with_one_sentence(tmp_path, override, sentence):
    file = tmp_path / "override.yaml"
    file.write_text(override)
    ended = snakemake("--dry-run", "--cores", "1", "--configfile", str(file))
    assert ended.returncode != 0
    assert sentence in ended.stderr and "Traceback" not in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if line.startswith("error: ")]) == 1


def test_the_workflow_runs_in_any_directory(tmp_path):
    where = ["--snakefile", ROOT / "Snakefile", "--directory", tmp_path]
    made = run(SNAKEMAKE, *where, "--cores", "1", "results/tables/table1.tex")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "results/tables/table1.tex").read_text().startswith("%")
    assert "Nothing to be done" in snakemake(*where, "--cores", "1", "results/tables/table1.tex").stderr
    plans = snakemake(*where, "--dry-run", "--profile", ROOT / "profiles/smoke")
    assert plans.returncode == 0, plans.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "neither a profile nor a file is named, .* snakemake --profile profiles/local "),
        (("table2",), "table2 is a table of this scale, such as results/tables/table2.csv\n"),
        (("--set-threads", "mesure=1"), r"set-threads names 'mesure', .* \(did you mean 'measure'\?\)\n"),
        (("--set-resources", "distil:gpu=1"), r"set-resources names 'distil', .* \(did you mean 'distill'\?\)\n"),
        (("--set-resources", "distill:runtme=1"), r"set-resources of distill has 'runtme', .* 'runtime'"),
    ],
)
def test_a_command_that_cannot_be_meant_is_answered_with_what_may_be(words, sentence):
    ended = snakemake("--dry-run", "--cores", "1", *words)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr + ended.stdout
    assert re.search(f"(?s)error: .*{sentence}", ended.stderr + ended.stdout), ended.stderr
