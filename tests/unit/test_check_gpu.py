"""`make check-gpu`: each judgement passes, and fails with the fault that it is there to see."""

import json

import check_gpu
import gpu_checks
import pytest
import torch
from gpu_models import GPU, TINY, half, make_recipe, make_rows, random_model

from swiftkv.cost import Dimensions, speedup_limits
from swiftkv.distill import attention
from swiftkv.distill.step import make_step
from swiftkv.errors import UserError


@pytest.mark.parametrize("tokens, logprob, passes", [(0, 0.02, True), (1, 0.02, False), (0, 0.04, False)])
def test_answers_that_differ_from_the_reference(tokens, logprob, passes):
    good = {"tokens": 0, "logprob": 0.001}
    assert gpu_checks.judge_answers({"a": good, "b": {"tokens": tokens, "logprob": logprob}})[0] is passes


def test_a_stale_set_of_graphs():
    assert gpu_checks.judge_graphs({"eager": ([], []), "graphs": ([1, 2, 4], [1, 2, 4])})[0]
    passed, line = gpu_checks.judge_graphs({"eager": ([], []), "graphs": ([1, 4], [1, 2, 4])})
    assert not passed and "graphs" in line


def test_a_lost_cache_group():
    assert gpu_checks.judge_capacity({"AcrossKV": (1.66, 20 / 12)})[0]
    assert not gpu_checks.judge_capacity({"AcrossKV": (20 / 13, 20 / 12)})[0]


def test_no_speed_up():
    point = {"limit": 1.7}
    limits = {"prompts-2000": 1.45}
    assert gpu_checks.judge_speed({"prompts-2000": point | {"speedup": 1.5}}, limits)[0]
    assert not gpu_checks.judge_speed({"prompts-2000": point | {"speedup": 1.0}}, limits)[0]


def test_limits_of_speed_lie_below_those_of_the_flops():
    arch, spec = Dimensions.from_config(GPU.large), half(GPU.large)
    for output, limits in {1: gpu_checks.PREFILL, 256: gpu_checks.MIXED}.items():
        for length, least in limits.items():
            assert least < speedup_limits(arch, spec, length, output)["request_speedup"]
            assert length in GPU.batches


def test_rows_of_the_upper_half():
    idle, ending = {"lower": [128], "upper": [], "sampled": 0}, {"lower": [100], "upper": [3, 3], "sampled": 3}
    assert gpu_checks.judge_steps([idle, ending])[0]
    assert not gpu_checks.judge_steps([idle, ending | {"upper": [100, 100]}])[0]
    assert not gpu_checks.judge_steps([idle | {"upper": [128]}, ending])[0]
    assert not gpu_checks.judge_steps([ending])[0]  # no step in which the upper half could have been left out


def test_a_training_that_is_slow_large_or_compiles_again():
    good = {"losses": {"sdpa": 1.0, "flex": 1.0}, "recompiled": 0, "tokens_per_second": 1.0, "tflops": 400,
            "peak_tflops": 989, "peak_gib": 44}  # fmt: skip
    assert gpu_checks.judge_training(good)[0]
    for fault in ({"recompiled": 1}, {"tflops": 300}, {"peak_gib": 60}, {"losses": {"sdpa": 1.0, "flex": 1.01}}):
        assert not gpu_checks.judge_training(good | fault)[0]


def test_a_wrong_mask_changes_the_loss(tmp_path, monkeypatch):
    recipe, rows = make_recipe(TINY.row), make_rows(tmp_path / "rows", TINY.row, TINY.large["vocab_size"], 1)
    step = make_step(random_model(TINY.large, "cpu"), half(TINY.large), recipe)
    found = {"recompiled": 0, "tokens_per_second": 1.0, "peak_tflops": None, "peak_gib": None}
    assert gpu_checks.judge_training(found | {"losses": gpu_checks.kernel_losses(step, recipe, rows)})[0]
    monkeypatch.setattr(attention, "sample_lengths", lambda position_ids: [position_ids.numel()])
    assert not gpu_checks.judge_training(found | {"losses": gpu_checks.kernel_losses(step, recipe, rows)})[0]


def test_another_loss_after_a_stop():
    assert gpu_checks.judge_resume({"whole": ["step", "1,2.5"], "parts": ["step", "1,2.5"]})[0]
    assert not gpu_checks.judge_resume({"whole": ["step", "1,2.5"], "parts": ["step", "1,2.500001"]})[0]


def test_a_check_that_takes_too_long_is_stopped(tmp_path):
    record = check_gpu.run_check(gpu_checks.CHECKS[0], tmp_path, 0.0, tiny=True)
    assert record["status"] == "stopped"
    assert json.loads((tmp_path / "0.json").read_text())["status"] == "stopped"


def test_choosing_checks():
    assert [check.number for check in check_gpu.selected("3,1")] == [3, 1]
    assert len(check_gpu.selected(None)) == len(gpu_checks.CHECKS)
    with pytest.raises(UserError, match="'12'"):
        check_gpu.selected("1,12")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no GPU"):
        check_gpu.main(["--output", str(tmp_path)])
