"""`make check-gpu`: each judgement passes, and fails with the fault that it is there to see."""

import contextlib
import urllib.error
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import check_gpu
import gpu_answers
import gpu_checks
import gpu_models
import gpu_training
import pytest
import torch
from gpu_models import GPU, TINY, half, make_recipe, make_rows, random_model

from swiftkv.cost import Dimensions, speedup_limits
from swiftkv.distill import attention
from swiftkv.distill.step import DistillationStep
from swiftkv.io import read_json, write_json

GOOD_ANSWERS = {"tokens": 0, "sure": 100, "rms": 0.01, "largest": 0.03}
IDLE, ENDING = {"lower": [128], "upper": [], "sampled": 0}, {"lower": [100], "upper": [3, 3], "sampled": 3}
TRAINING = {"losses": {"sdpa": 1.0, "flex": 1.0}, "recompiled": 0, "tokens_per_second": 1.0, "tflops": 400,
            "peak_tflops": 989, "peak_gib": 44}  # fmt: skip


def test_a_training_is_judged_by_its_losses_graphs_speed_and_memory():
    assert gpu_checks.judge_training(TRAINING)[0]
    for fault in ({"recompiled": 1}, {"tflops": 300}, {"peak_gib": 60}, {"losses": {"sdpa": 1.0, "flex": 1.02}}):
        assert not gpu_checks.judge_training(TRAINING | fault)[0]


def test_a_resumed_training_has_the_same_losses():
    for losses, same in ((["step", "1,2.5"], True), (["step", "1,2.500001"], False)):
        assert gpu_training.judge_resume({"whole": ["step", "1,2.5"], "parts": losses})[0] is same


def test_each_speed_on_a_gpu_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = []

    def measured(sizes, folder, points):
        names[:] = points
        return {name: {"limit": 1.7, "speedup": 0.9 if name == slow else 1.6, "low": 1, "high": 2} for name in points}

    monkeypatch.setattr(gpu_checks, "in_pairs", measured)
    slow = None
    assert gpu_checks.speed(GPU, tmp_path)[0] and len(names) == 7
    for slow in list(names):
        assert not gpu_checks.speed(GPU, tmp_path)[0]


class Reference:
    """Engines' answers are their own comparison here."""

    def __init__(self, *model):
        pass

    def compare(self, answer):
        return GOOD_ANSWERS | answer


@pytest.fixture
def without_engines(monkeypatch):
    """Function that replaces engines by a function of a case's name and the environment, on a GPU that is pretended."""

    def replaced(answer, cuda=True):
        def run(folder, cases, **environment):
            return {name: answer(name, environment) for name in cases}

        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        for name, function in (("make_model", lambda folder, *_: folder), ("Reference", Reference), ("engines", run)):
            monkeypatch.setattr(gpu_answers, name, function)

    return replaced


@pytest.mark.parametrize("cuda", [False, True])
def test_answers_and_rows_are_judged_together(cuda, tmp_path, without_engines):
    def answer(name, environment):
        if name == "rows":
            return {"steps": steps}
        runner = environment.get("VLLM_USE_V2_MODEL_RUNNER")
        return {"async_scheduling": runner != late} | ({"tokens": 1} if runner == faulty else {})

    without_engines(answer, cuda)
    steps, faulty, late = [IDLE, ENDING], "none", "none"
    assert gpu_answers.exactness(TINY, tmp_path)[0]
    late = "1"  # runs without asynchronous scheduling
    assert gpu_answers.exactness(TINY, tmp_path)[0] is not cuda
    late = "none"
    for faulty in ("0", "1") if cuda else (None,):
        assert not gpu_answers.exactness(TINY, tmp_path)[0]
    faulty = "none"
    # With all rows, with a half that should be left out, and no step in which it could have been.
    for steps in ([IDLE, ENDING | {"upper": [100, 100]}], [IDLE | {"upper": [128]}, ENDING], [ENDING]):
        assert not gpu_answers.exactness(TINY, tmp_path)[0]


# By engine: what it answers; and by fault, what is another then.
ENGINE = {"kv_cache_tokens": 120, "captured": [1, 2], "sizes": [1, 2], "compiled": 2, "loaded": 0}
CACHED = {"compiled": 0, "loaded": 2}
FP8 = {"kv_cache_tokens": 240, "rms": 0.08, "largest": 0.33, "tokens": 3}
ENGINES = {
    "AcrossKV": {"kv_cache_tokens": 200},
    "second start": CACHED,
    "FP8": FP8,
    "unchanged, FP8": FP8 | {"rms": 0.07},
}
FAULTS = {
    "none": {},
    "FP8 far from the unchanged model's": {"FP8": FP8 | {"rms": 0.11}},
    "wrong tokens above the largest graph": {"first start": {"tokens": 1}},
    "wrong numbers from the cache": {"second start": CACHED | {"rms": 0.02}},
    "a half that is compiled again": {"second start": {"compiled": 1, "loaded": 1}},
    "a lost graph": {"AcrossKV": ENGINES["AcrossKV"] | {"captured": [1]}},
    "a cache that is too small": {"AcrossKV": {"kv_cache_tokens": 185}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_graphs_caches_and_starts_are_judged_together(fault, tmp_path, without_engines):
    without_engines(lambda name, environment: ENGINE | (ENGINES | FAULTS[fault]).get(name, {}))
    passed, line, _ = gpu_answers.graphs_and_caches(replace(TINY, graphs=True), tmp_path)
    assert passed == (fault == "none"), line


@pytest.mark.parametrize("status", [400, 500, None])
def test_a_server_has_to_answer_as_a_forked_engine_and_to_refuse_prompt_logprobs(
    status, tmp_path, monkeypatch, without_engines
):
    started = []

    def answer(name, environment):
        started.append(environment)
        return {}

    def complete(server, prompt_logprobs=None, **body):
        if prompt_logprobs is None or status is None:
            return {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}]}
        raise urllib.error.HTTPError("/", status, "", {}, None)

    without_engines(answer)
    monkeypatch.setattr(Reference, "compare", lambda reference, answer: GOOD_ANSWERS)
    monkeypatch.setattr(gpu_answers, "serving", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr(gpu_answers, "complete", complete)
    assert gpu_answers.ways_to_start(TINY, tmp_path)[0] is (status == 400)
    assert started == [{"VLLM_WORKER_MULTIPROC_METHOD": "fork"}]


@pytest.mark.parametrize("check", [gpu_answers.fp8_weights, gpu_answers.two_gpus])
def test_rounding_is_judged_by_the_unchanged_models(check, tmp_path, without_engines):
    for worse, passes in ((1.4, True), (1.6, False)):
        without_engines(lambda name, environment, worse=worse: {"rms": 0.05 * (worse if name == "swiftkv" else 1)})
        assert check(TINY, tmp_path)[0] is passes


def test_each_engine_with_graphs_has_a_process_of_its_own(tmp_path, monkeypatch):
    started = []

    def run(command, env, check):
        names = [case["model"] for case in read_json(command[2])]
        started.append((names, env["VLLM_ENABLE_V1_MULTIPROCESSING"]))
        write_json(Path(command[3]), names)

    monkeypatch.setattr(gpu_models.subprocess, "run", run)
    eager, apart = {"enforce_eager": True}, {"apart": True}
    settings = {"a": (eager, {}), "b": ({}, {}), "c": (eager, {}), "d": (eager, apart), "e": ({}, {})}
    cases = {name: gpu_models.case(Path(name), [], one, **more) for name, (one, more) in settings.items()}
    assert gpu_models.engines(tmp_path, cases) == {name: name for name in cases}
    assert started == [(["a", "c"], "0"), (["b"], "0"), (["d"], "1"), (["e"], "0")]


def test_limits_of_speed_lie_below_those_of_the_flops():
    arch, spec = Dimensions.from_config(GPU.large), half(GPU.large)
    for output, limits in {1: gpu_checks.PREFILL, 256: gpu_checks.MIXED}.items():
        for length, least in limits.items():
            assert least < speedup_limits(arch, spec, length, output)["request_speedup"]
            assert length in GPU.batches


def test_a_wrong_mask_changes_the_loss(tmp_path, monkeypatch):
    recipe, rows = make_recipe(TINY.row), make_rows(tmp_path / "rows", TINY.row, TINY.large["vocab_size"], 1)
    step = DistillationStep(random_model(TINY.large), half(TINY.large), recipe)
    found = {"recompiled": 0, "tokens_per_second": 1.0, "peak_tflops": None, "peak_gib": None}
    assert gpu_checks.judge_training(found | {"losses": gpu_checks.kernel_losses(step, recipe, rows)})[0]
    monkeypatch.setattr(attention, "sample_lengths", lambda position_ids: [position_ids.numel()])
    assert not gpu_checks.judge_training(found | {"losses": gpu_checks.kernel_losses(step, recipe, rows)})[0]


def test_a_check_that_takes_too_long_is_stopped(tmp_path):
    record = check_gpu.run_check(gpu_checks.CHECKS[0], tmp_path, 0.0, sizes="tiny")
    assert record["status"] == "stopped"
    assert read_json(tmp_path / "0.json")["status"] == "stopped"


@pytest.fixture
def checks(monkeypatch):
    """Replaces the processes of checks: `begun` has their numbers, and with graphs they end as `graphs` says."""
    checks = SimpleNamespace(begun=[], graphs="pass")

    def run_check(check, *_, eager, **options):
        checks.begun.append(check.number)
        return {"status": checks.graphs if check.graphs and not eager else "pass", "summary": "why", "seconds": 0}

    monkeypatch.setattr(check_gpu, "run_check", run_check)
    return checks


def test_a_check_that_does_not_fit_into_the_time_is_left_out(checks, tmp_path, capsys):
    with pytest.raises(SystemExit):
        check_gpu.main(["--sizes", "tiny", "--minutes", "1", "--output", str(tmp_path)])
    usual = {number: check.seconds for number, check in gpu_checks.CHECKS.items()}
    assert checks.begun == [number for number, seconds in usual.items() if seconds < 60]
    assert capsys.readouterr().out.count("not run") == len(usual) - len(checks.begun)
    checks.begun.clear()
    check_gpu.main(["--sizes", "tiny", "--output", str(tmp_path)])  # all fit into the default
    assert checks.begun == list(usual) and sum(usual.values()) < 15 * 60


def test_a_check_of_two_gpus_is_none_of_those_of_one(checks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gpus in (1, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        check_gpu.main(["--only", "0,8", "--output", str(tmp_path)])
        assert f"{gpus} of {gpus} checks passed" in capsys.readouterr().out


def test_a_check_whose_graphs_fail_runs_eagerly_and_says_so(checks, tmp_path, capsys):
    checks.graphs = "error"
    check_gpu.main(["--sizes", "tiny", "--only", "2,4", "--output", str(tmp_path)])
    assert read_json(tmp_path / "2.json")["with_graphs"]["status"] == "error"
    assert "eager, as graphs failed" in capsys.readouterr().out and not (tmp_path / "4.json").exists()
