"""Snakemake plans the right jobs, with the right GPUs, on a machine without SLURM and network; mistakes stop it."""

import re
import shlex
from collections import Counter

import pytest
from tests.programs import ROOT, SNAKEMAKE, read_yaml, run, snakemake

from pipeline.run.jobs import dry_run


def plan(*arguments):
    """The planned jobs: a list of (rule, wildcards, resources)."""
    return [(job.rule, job.wildcards, job.resources) for job in dry_run("--forceall", *arguments)]


def test_vllm_scores_a_model_of_several_gpus():
    targets = [
        f"results/scores/llama-3.1-70b/baseline/{cell}.json" for cell in ("auto/gsm8k", "fp8/gsm8k", "auto/hellaswag")
    ]
    arguments = ["--profile", "profiles/slurm", "--", *targets]
    assert all(resources["gpu"] == 4 for rule, _, resources in plan(*arguments) if rule == "score")
    printed = snakemake("--dry-run", "--forceall", "--printshellcmds", *arguments).stdout
    assert printed.count('"gpus": 4') == 1, [line for line in printed.splitlines() if "--tasks" in line]


def test_a_cluster_gives_jobs_twice_their_estimate_or_what_the_profile_says():
    target = "results/checkpoints/llama-3.1-8b/swiftkv-50/config.json"

    def minutes(*words):
        return next(
            r["runtime"]
            for rule, _, r in plan("--profile", "profiles/slurm", *words, "--", target)
            if rule == "distill"
        )

    first = minutes()
    assert 2 * 2.2 * 60 <= first <= 2 * 2.2 * 60 + 60  # the plan's estimate, in hours
    assert minutes("--attempt", 2) == 2 * first and minutes("--attempt", 9) == 24 * 60
    assert minutes("--set-resources", "distill:runtime=99") == 99


def test_the_demo_is_a_part_of_the_local_run():
    """So what one has made, the other finds made: the same jobs, from the same inputs, in the same places."""
    demo, everything = (
        dry_run("--forceall", "--profile", "profiles/local", "--", *target) for target in (["demo"], [])
    )
    alike = {job.outputs: (job.rule, job.inputs, job.wildcards) for job in everything}
    assert demo and all(alike[job.outputs] == (job.rule, job.inputs, job.wildcards) for job in demo)
    assert {job.wildcards["artifact"] for job in demo if "artifact" in job.wildcards} >= {
        "table1",
        "concept",
        "demo_result",
    }
    assert Counter(job.rule for job in demo)["distill"] == 1
    # Of each engine only the point that the demo shows.
    assert [job.points for job in demo if job.points] == [["first-1k"]] * 3
    assert len(demo) < len(everything) / 5


SERVING = "results/serving/{}/{}/{}/auto.json"


def test_a_point_has_its_node_to_itself_because_of_what_it_measures(tmp_path):
    file = tmp_path / "points.yaml"
    file.write_text("""
gpu_jobs: {resources: {slurm_extra: --mail-type=FAIL}}
serving:
  points:
    first-words: {measure: latency, input_tokens: 500, request_rates: [1], seconds: 60}
    interactive-bulk: {measure: throughput, input_tokens: 500, total_tokens: 15000}
""")
    names = ("first-words", "interactive-bulk", "forward", "decode", "kv-capacity", "batch-2k")
    targets = [SERVING.format(name, "llama-3.1-8b", "baseline") for name in names]
    site = ["--configfile", "profiles/slurm/site.yaml", str(file)]
    jobs = dry_run("--forceall", "--profile", "profiles/slurm", *site, "--", *targets)
    extra = {point: job.resources["slurm_extra"] for job in jobs for point in job.points}
    alone = dict.fromkeys(("first-words", "forward", "short", "decode"), "--mail-type=FAIL --exclusive")
    batches = ("interactive-bulk", "kv-capacity", "batch-2k", "batch-8k", "batch-32k", "batch-128k")
    assert extra == alone | dict.fromkeys(batches, "--mail-type=FAIL")


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("checkpoints/llama-3.1-8b/swiftkv-45/config.json", "asks for 45 % prefill reduction, but models.llama-3.1-8b"),
        (
            "checkpoints/llama-3.1-70b/swiftkv-50-published/config.json",
            "models.llama-3.1-70b.checkpoints names none for it",
        ),
        ("checkpoints/qwen3-4b/swiftkv-50-tuned/config.json", "the keys of qwen3 are normalized"),
        (
            "checkpoints/llama-3.1-70b/swiftkv-50/config.json",
            "asks for 4 nodes (nodes.distill), which only a profile with",
        ),
        ("checkpoints/llama-3.1-8b/baseline/README.md", "nothing makes "),
        ("scores/llama-3.1-8b/merge-all-layers/auto/gsm8k.json", "nothing makes "),
        ("scores/llama-3.1-8b/merge-all-layers/auto/lambada.json", "nothing makes "),
        ("fidelity/llama-3.1-8b/merge-all-layers/auto.json", "nothing makes "),
    ],
)
def test_a_file_that_cannot_be_made_is_refused(file, sentence):
    machine = ["--profile", "profiles/gpu", "--resources", "gpu=32", "--dry-run", "--"]
    ended = snakemake(*machine, f"results/{file}")
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0 and sentence in said and "Traceback" not in said


def test_a_measurement_has_the_machine_to_itself():
    target = "results/local/serving/batch-2k/smollm2-135m/baseline/auto.json"
    ended = snakemake("--dry-run", "--forceall", "--profile", "profiles/local", "--cores", "6", target)
    assert "threads: 6\n" in ended.stdout + ended.stderr


def test_no_command_splits_a_path_of_results_with_a_space(tmp_path):
    file = tmp_path / "places.yaml"
    file.write_text("pathvars: {results: my results, logs: my results/logs, benchmarks: my results/benchmarks}\n")
    files = ["--configfile", "profiles/smoke/override.yaml", file]
    printed = snakemake("--profile", "profiles/smoke", "--dry-run", "--printshellcmds", *files).stdout
    shells = re.findall(r"^Shell command: ?(.*?)(?=\n\n|\n\S)", printed, re.MULTILINE | re.DOTALL)
    assert len(shells) > 20
    assert not [word for shell in shells for word in shlex.split(shell) if word == "my" or word.startswith("results/")]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("models: {}\nmodels: {}\n", "key 'models' stands twice"),
        ("sets: {artifacts: {score: [table1]}}\n", "a rule or an artifact is called 'score' already"),
        (
            "data: {ultrachat: {sources: [{name: a, local: mine, chats: messages}]}}\n",
            "config, at data.ultrachat.sources.0: 'mine' does not exist; check `local`",
        ),
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
        ((), "neither a profile nor a target is named, .* snakemake --profile profiles/local "),
        (("tabel2",), r"there is no artifact 'tabel2' \(did you mean 'table2'\?\)"),
        (("tables/table2.md",), "table2 is a table of this scale, such as results/tables/table2.md\n"),
        (("--set-resources", "distil:gpu=1"), r"set-resources names 'distil', .* \(did you mean 'distill'\?\)\n"),
    ],
)
def test_a_command_that_cannot_be_meant_is_answered_with_what_may_be(words, sentence):
    ended = snakemake("--dry-run", "--cores", "1", *words)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr + ended.stdout
    assert re.search(f"(?s)error: .*{sentence}", ended.stderr + ended.stdout), ended.stderr


def test_snakemake_s_workflow_catalog_runs_the_same_workflow():
    usage = read_yaml(ROOT / ".snakemake-workflow-catalog.yml")["usage"]
    words = [*usage["mandatory-flags"]["flags"].split(), "--forceall", "results/local/figures/figure2_left.png"]
    both = [dry_run("--snakefile", file, *words) for file in ("Snakefile", "workflow/Snakefile")]
    plans = [{job.outputs: job for job in jobs} for jobs in both]  # Snakemake orders jobs as it likes
    assert plans[0] == plans[1] and {job.rule for job in both[0]} >= {"similarity", "figure"}
