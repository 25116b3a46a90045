"""What this machine, SLURM or the hub lacks for a run is named before anything runs or is downloaded."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from huggingface_hub import constants, errors
from tests.conftest import refused
from tests.programs import ROOT, write_program
from tests.unit.artifact_helpers import scale, typed
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, install, jobs

from pipeline.records import libraries
from pipeline.run import check, slurm
from pipeline.run.check import (
    Report,
    check_disk,
    check_environment,
    check_gpus,
    check_hub,
    in_cache,
    other_libraries,
    problems_at_start,
)
from pipeline.run.jobs import PlannedJob, Profile, read_profile
from pipeline.run.sizes import Download, downloads, once
from pipeline.sources import MODEL_FILES, TOKENIZER_FILES
from swiftkv.cost import GIGA
from swiftkv.io import write_json


def test_a_full_disk(tmp_path, monkeypatch):
    folder = tmp_path / "results" / "local"
    assert check_disk(folder, 10**8, 0).startswith("room for 0.1 GB of results")
    for written, missing in ((10**9 * GIGA, 0), (0, 10**9 * GIGA)):
        with refused("GB free and at least 1000000000.0 GB"):
            check_disk(folder, written, missing)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with refused("results/local cannot be written to"):
        check_disk(folder, 0, 0)


def test_too_few_gpus(tmp_path, monkeypatch):
    write_program(tmp_path / "nvidia-smi", 'echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert check_gpus(1) == "1 here, 1 shared out"
    with refused("shares out 8 GPUs and this machine has 1"):
        check_gpus(8)
    monkeypatch.setenv("PATH", "")
    with refused("nvidia-smi is not here"):
        check_gpus(1)


def test_records_of_another_environment(tmp_path):
    for number, version in enumerate((libraries()["torch"], "0.1", "0.1")):
        record = {"provenance": {"libraries": {"torch": version, "gone": "1"}}}
        write_json(tmp_path / f"scores/m/v/auto/{number}.json", record)
    assert other_libraries(tmp_path) == "2 made with torch 0.1"


# SLURM


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder whose bin/ is on PATH and has the stand-ins; the queue is empty."""
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    (tmp_path / "queue").touch()
    return tmp_path


def test_jobs_that_ask_for_the_same_are_one_request(cluster):
    same = jobs(("score", GPU_JOB), ("fidelity", GPU_JOB), ("pack", CPU_JOB))
    found = slurm.requests(same, SETTINGS)
    assert [[job.rule for job in alike] for alike in found.values()] == [["score", "fidelity"], ["pack"]]
    words = " ".join(next(iter(found)))
    assert "-A swiftkv -p h100 -t 1440 --mem 880000 --nodes=1 --requeue --cpus-per-gpu=12 --gpus=h100:8" in words
    assert slurm.verdict(same, SETTINGS) == ([], [])


@pytest.mark.parametrize(("resources", "words"), FAULTS)
def test_a_fault_is_named_with_the_key_to_correct(cluster, resources, words):
    refused, waiting = slurm.verdict(jobs(("distill", resources)), SETTINGS)
    (sentence,) = refused + waiting
    assert sentence.startswith("of rule distill ")
    assert all(word in sentence for word in words), sentence


def test_a_time_limit_that_slurm_enforces_is_one_problem_and_none_is_none(cluster, monkeypatch):
    monkeypatch.setenv("ENFORCED", "1")
    assert slurm.verdict(jobs(("pack", CPU_JOB | {"runtime": None})), SETTINGS) == ([], [])
    unknown = SimpleNamespace(
        **vars(SETTINGS) | {"partition_config": None}
    )  # the limits, and which partitions there are
    long = jobs(("distill", GPU_JOB | {"slurm_partition": "h100", "runtime": 2880}))
    (sentence,), _ = slurm.verdict(long, unknown)
    assert "SLURM says" in sentence and "longest_runtime" in sentence
    monkeypatch.delenv("ENFORCED")  # then the job would wait for ever
    (sentence,), _ = slurm.verdict(long, unknown)
    assert "partition h100 has a time limit of 1440 minutes" in sentence and "longest_runtime" in sentence


@pytest.mark.parametrize(
    "partitions, words",
    [
        ("partitions: {h100: {max_gpus: 8}}", r"partitions.yaml: .*'max_gpus'"),
        ("partitions: {cpu: {}, 2080: {max_gpu: 8}}", "partitions.yaml: .* name 2080 .* quotes"),
        ("partitions: {on: {max_gpu: 8}}", "partitions.yaml.* quotes"),
        ("partitions: {h100: {max_runtime: a day}}", "partitions.yaml: .*a day"),
        ("partitions: [h100]", "partitions.yaml: .* mapping"),
        (None, "partitions.yaml"),
    ],
)
def test_a_partition_that_cannot_be_read_is_one_sentence_in_plan_and_at_the_start(cluster, partitions, words):
    for name in ("profile.yaml", "site.yaml"):
        shutil.copy(ROOT / "profiles/slurm" / name, cluster)
    if partitions:
        (cluster / "partitions.yaml").write_text(partitions)
    settings = SimpleNamespace(**vars(SETTINGS) | {"partition_config": cluster / "partitions.yaml"})
    with refused(words):
        slurm.verdict(jobs(("pack", CPU_JOB)), settings)
    with refused(words):
        read_profile(cluster)


def test_a_partition_that_cancels_preempted_jobs_is_noted(cluster, monkeypatch):
    lines = []
    for mode in ("REQUEUE", "OFF", "GANG,CANCEL"):
        monkeypatch.setenv("PREEMPT", mode)
        profile = Profile(cluster, slurm=SETTINGS, directory=cluster)
        assert check_environment(Report(lines.append), profile, jobs(("pack", CPU_JOB))) == []
    (line,) = (line for line in lines if line.startswith("note"))
    assert "preempt" in line and " cpu " in line and "h100" not in line  # the partition of this job


def test_nodes_that_are_down_stop_no_run(cluster, monkeypatch, capsys):
    monkeypatch.setenv("DRAINED", "1")
    profile = Profile(cluster, slurm=SETTINGS, directory=cluster)
    assert problems_at_start(profile, jobs(("pack", CPU_JOB))) == []
    assert "Requested node configuration is not available" in capsys.readouterr().err
    assert len(check_environment(Report(), profile, jobs(("pack", CPU_JOB)))) == 1


def test_missing_programs_and_a_silent_controller_are_named(cluster, monkeypatch):
    assert slurm.controller()
    monkeypatch.setenv("CONTROLLER", "DOWN")
    with refused("SLURM's controller does not answer"):
        slurm.controller()
    monkeypatch.setenv("PATH", str(install(cluster / "fewer", sbatch=None, scontrol=None)))
    with refused("^sbatch, scontrol not found"):
        slurm.controller()


def test_results_of_unknown_settings_are_named_at_the_start(cluster, capsys):
    assert problems_at_start(Profile(cluster, slurm=SETTINGS, directory=cluster), [], unrecorded=list("abcde")) == []
    assert capsys.readouterr().err.endswith("delete a, b, c and 2 more\n")


MODEL = Download("model", "org/name", files=tuple(MODEL_FILES))
RESPONSE = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid/api"))
FILES = [
    SimpleNamespace(rfilename="model.safetensors", size=2 * 10**9),
    *(
        SimpleNamespace(rfilename=name, size=10**12)
        for name in ("old.bin", "consolidated.safetensors", "onnx/a.safetensors")
    ),
]
LLAMA = {"model_type": "llama", "num_hidden_layers": 8}


@pytest.fixture
def api(monkeypatch):
    """The answers of a hub that has one model of 2 GB; `fails` and `refuses` are raised, `cached` is the local cache."""
    template = {"chat_template": "{{ messages }}"}
    answers = SimpleNamespace(gated=False, fails=None, refuses=None, cached=False, asked=0, tokenizer=template)

    class Api:
        def repo_info(self, identifier, **settings):
            answers.asked += 1
            if answers.fails:
                raise answers.fails
            return SimpleNamespace(gated=answers.gated, siblings=FILES)

        def auth_check(self, identifier, **settings):
            if answers.refuses:
                raise answers.refuses

        def snapshot_download(self, identifier, local_dir, **settings):
            write_json(Path(local_dir, "config.json"), LLAMA)
            write_json(Path(local_dir, "tokenizer_config.json"), answers.tokenizer)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("pipeline.sources.hub.get_token", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(check, "in_cache", lambda item: answers.cached)
    return answers


def checked(*items):
    """The lines about repositories, the failures, and the bytes to be downloaded."""
    lines = []
    report = Report(lines.append)
    missing = check_hub(report, items)
    return " ".join(lines), report.failures, missing


def test_an_accessible_model_tells_its_size(api):
    for absent in (MODEL, Download("data set", "swiftkv-check/absent")):
        assert not in_cache(replace(absent, hub="swiftkv-check/absent"))
    api.gated = "manual"
    said, failures, missing = checked(MODEL)
    assert "accessible, 2.0 GB to be downloaded" in said and missing == 2 * 10**9 and not failures
    api.cached = True
    said, _, missing = checked(MODEL)
    assert "in the local cache" in said and missing == 0


@pytest.mark.parametrize(
    ("raises", "error", "words"),
    [
        ("refuses", errors.GatedRepoError("gated", response=RESPONSE), "org/name is gated and there is no token here"),
        ("fails", errors.HfHubHTTPError("denied", response=RESPONSE), "the hub refuses org/name"),
    ],
)
def test_a_refusal_is_named(api, raises, error, words):
    api.gated = "manual"
    setattr(api, raises, error)
    (sentence,) = checked(MODEL)[1]
    assert words in sentence


def test_a_model_is_refused_by_its_description(api):
    item = replace(MODEL, layers=8, template=True)
    assert not checked(item)[1]
    api.tokenizer = {}
    (sentence,) = checked(item)[1]
    assert "the tokenizer of org/name has no chat template" in sentence


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ({"fails": httpx.ConnectError("no route")}, 1, "cannot be reached (ConnectError)"),
        ({"offline": True}, 0, "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_silent_hub_is_asked_once_and_is_one_failure(api, monkeypatch, settings, asked, words):
    vars(api).update(settings)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", "offline" in settings)
    items = [MODEL, replace(MODEL, hub="org/other"), replace(MODEL, hub="org/more", optional=True)]
    _, (sentence,), missing = checked(*items)
    assert words in sentence and "local cache: org/name, org/other;" in sentence and api.asked == asked and not missing
    api.cached = True
    assert "in the local cache" in checked(MODEL)[0]


def test_the_sources_of_planned_jobs():
    config = typed(scale())

    def fetched(*jobs):
        planned = [PlannedJob(rule, wildcards) for rule, wildcards in jobs]
        return {item.hub: item for item in once(item for job in planned for item in downloads(job, config))}

    found = fetched(
        ("resolve_model", {"model": "llama-3.1-8b-base"}),
        ("resolve_model", {"model": "llama-3.1-8b"}),
        ("fetch_checkpoint", {"model": "llama-3.1-8b", "variant": "swiftkv-50-published"}),
        ("heldout", {}),
        ("corpus", {"data": "ultrachat"}),
        ("fetch_questions", {"task": "gsm8k"}),
        ("table", {"artifact": "table2"}),
    )
    assert {name: item.what for name, item in found.items()} == {
        "meta-llama/Llama-3.1-8B": "model", "meta-llama/Llama-3.1-8B-Instruct": "model",
        "Snowflake/Llama-3.1-SwiftKV-8B-Instruct": "checkpoint", "HuggingFaceH4/ultrachat_200k": "data set",
        "teknium/OpenHermes-2.5": "data set", "openai/gsm8k": "questions",
    }  # fmt: skip
    assert found["meta-llama/Llama-3.1-8B-Instruct"].files == tuple(MODEL_FILES)  # not only its chat template's
    assert found["meta-llama/Llama-3.1-8B-Instruct"].gated and not found["openai/gsm8k"].optional
    both = [Download("data set", "openai/gsm8k", optional=True), Download("questions", "openai/gsm8k")]
    assert [item.what for item in once(both)] == ["questions"]  # which a run does not go on without
    marked = [Download("model", "org/m"), Download("tokenizer", "org/m", gated=True, template=True)]
    assert [(item.what, item.gated, item.template) for item in once(marked)] == [("model", True, True)]
    alone = fetched(("resolve_model", {"model": "llama-3.1-8b-base"}))
    assert alone["meta-llama/Llama-3.1-8B-Instruct"].files == tuple(TOKENIZER_FILES)
