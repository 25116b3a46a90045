"""`make plan`: what Snakemake plans, priced; on a machine without SLURM, GPU and network."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from tests.conftest import refused
from tests.programs import ROOT, run

from pipeline.run import estimate
from pipeline.run.jobs import plan_jobs, read_config, read_profile
from pipeline.run.plan import estimate_plan
from swiftkv.io import read_json

# Of the reference run, two steps at once except for serving; and the speed of its processor
LOCAL_MINUTES, LOCAL_SPEED = 202, 0.165  # docs/measurements/2026-11-28-local.md
REFERENCE = ROOT / "resources/reference/local"


def plan(*arguments):
    return run(sys.executable, "-m", "pipeline", "plan", *arguments)


def test_the_local_scale_takes_about_as_long_as_was_measured(monkeypatch):
    monkeypatch.setattr(estimate, "processor_speed", lambda config: LOCAL_SPEED)
    profile = dataclasses.replace(read_profile("local"), cores=2, resources={})  # no matter how much memory is free now
    config = read_config(profile)
    # As if nothing had run yet, whatever this folder holds.
    jobs = [dataclasses.replace(job, benchmark=None) for job in plan_jobs(profile, everything=True)]
    cold = estimate_plan(profile, config, jobs)
    assert 1 / 1.5 < cold.wall_seconds / 60 / LOCAL_MINUTES < 1.5
    assert not cold.times.gpu_hours.any() and not cold.times.measured.any()


def test_a_job_of_the_local_scale_takes_about_as_long_as_in_the_reference_run():
    """Within a factor of two of what its records say, which do not count the start of a job."""
    profile = read_profile("local")
    config, compared, times = read_config(profile), set(), {}
    for job in plan_jobs(profile, everything=True) + plan_jobs(profile, ["long_context"], everything=True):
        files = [REFERENCE / Path(file).relative_to(config.pathvars.results) for file in job.outputs]
        records = [read_json(file) for file in files if file.suffix == ".json" and file.is_file()]
        if len(records) < len(files) or any(record["status"] == "oom" for record in records):
            continue
        if job.rule == "evaluate_reading":  # the shipped ones took more: tasks that are no longer asked
            continue
        took = config.planning.cpu.start + sum(record["provenance"]["wall_seconds"] for record in records)
        # That run measured points of several jobs of a case with one start of vLLM.
        measured = job.outputs if job.rule != "measure" else Path(job.outputs[0]).parts[-3:]
        times.setdefault(measured, []).append((estimate.Work(job, config, LOCAL_SPEED).seconds(), took))
        compared.add(job.rule)
    for measured, pairs in times.items():
        planned, took = map(sum, zip(*pairs, strict=True))
        assert 1 / 2 < planned / took < 2, (measured, planned, took)
    assert compared >= {"measure", "score_panel", "fidelity", "similarity"}


def test_the_paper_scale_is_planned():
    run = plan("--profile", "slurm", "--all")
    assert run.returncode == 0, run.stderr
    text = run.stdout
    hours = re.search(r"\n  GPU-hours   ([\d,]+), up to 32 GPUs a job\n", text)[1]
    assert 4377 / 2 < int(hours.replace(",", "")) < 2 * 4377  # of a step-by-step model of every job
    assert "32 jobs in the queue at once" in text
    assert re.search(r"\ndistill +46 +4 nodes of 8 GPUs, 96 cores, 880 GB, 24 h ", text)
    assert re.search(r"\nmeasure +95 +8 GPUs, 96 cores, ", text)
    assert re.search(r"\nProfile slurm: 696 cluster jobs and 55 small ones", text)
    assert "https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct" in text


def test_a_plan_without_the_hub_has_gaps_and_their_reason(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("models: {llama-3.1-8b: {source: {hub: org/never-seen}, architecture: null}}")
    done = plan("--profile", "slurm", "--configfile", str(mine), "results/similarity/llama-3.1-8b.json")
    assert done.returncode == 0, done.stderr
    assert "GPU-hours   ?" in done.stdout and "the hub cannot be reached" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--profile", "slrum"], "there is no profile 'slrum' .did you mean 'slurm'"),
        (["--profile", "slurm", "--configfile", "nosuch.yaml"], "no configuration file 'nosuch.yaml'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence):
    run = plan(*arguments)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert re.search(f"^error: .*{sentence}", line)


@pytest.mark.parametrize(
    ("profile", "file", "sentence"),
    [
        ("local", "results/tables/table2.tex", "such as results/local/tables/table2.tex"),
        ("local", "results/checkpoints/smollm2-135m/swiftkv-50", "results of this scale lie in results/local/"),
        (
            "slurm",
            "results/checkpoints/llama-3.1-8b/swiftkv-60/config.json",
            r"no variant 'swiftkv-60' .* 'swiftkv-50'",
        ),
        ("slurm", "results/checkpoints/llama-3.1-8b/swiftkv-50", "of a checkpoint name config.json"),
        ("slurm", "results/serving/batch-3k/llama-3.1-8b/baseline/auto.json", "no point 'batch-3k' .did you mean"),
    ],
)
def test_a_file_that_a_scale_does_not_make_is_answered_with_the_reason(profile, file, sentence):
    with refused(sentence):
        plan_jobs(read_profile(profile), [file])


@pytest.mark.parametrize(
    ("key", "wrong", "sentence"),
    [
        ("slurm_account:", "slurm_acount:", "'slurm_acount', which nothing reads .* 'slurm_account'"),
        ("\nset-resources:", "\nset-resurces:", "no option 'set-resurces' .* 'set-resources'"),
        ("gpu_model:", "gpu_modl:", "site file has 'gpu_modl', .* 'gpu_model'"),
    ],
)
def test_a_misspelt_key_of_a_profile_or_site_file_is_refused(tmp_path, key, wrong, sentence):
    for name in ("profile.yaml", "site.yaml", "partitions.yaml"):
        (tmp_path / name).write_text((ROOT / "profiles/slurm" / name).read_text().replace(key, wrong))
    with refused(sentence):
        plan_jobs(read_profile(tmp_path), ["results/tables/table1.tex"])


def test_a_profile_whose_partitions_are_missing_is_one_sentence(tmp_path):
    (tmp_path / "profile.yaml").write_text((ROOT / "profiles/slurm/profile.yaml").read_text())
    with refused("Partition configuration file not found, given was partitions.yaml"):
        read_profile(tmp_path)
