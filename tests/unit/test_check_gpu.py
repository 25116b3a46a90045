"""`make check-gpu`: each judgement passes, and fails with the fault that it is there to see."""

import check_gpu
import gpu_checks
import gpu_training
import pytest
import torch
from gpu_models import GPU, TINY, half, make_recipe, make_rows, random_model

from swiftkv.cost import Dimensions, speedup_limits
from swiftkv.distill import attention
from swiftkv.distill.step import DistillationStep
from swiftkv.io import read_json

GOOD_ANSWERS = {"tokens": 0, "sure": 100, "rms": 0.01, "largest": 0.03}
IDLE, ENDING = {"lower": [128], "upper": [], "sampled": 0}, {"lower": [100], "upper": [3, 3], "sampled": 3}
TRAINING = {"losses": {"sdpa": 1.0, "flex": 1.0}, "recompiled": 0, "tokens_per_second": 1.0, "tflops": 400,
            "peak_tflops": 989, "peak_gib": 44}  # fmt: skip
# By judgement: what passes, and what does not.
JUDGED = {
    gpu_checks.judge_graphs: ({"graphs": ([1, 2, 4], [1, 2, 4])}, [{"eager": ([], []), "graphs": ([1, 4], [1, 2, 4])}]),
    gpu_checks.judge_capacity: ({"AcrossKV": (1.66, 20 / 12)}, [{"AcrossKV": (20 / 13, 20 / 12)}]),
    gpu_checks.judge_steps: (
        [IDLE, ENDING],
        # With all rows, with a half that should be left out, and no step in which it could have been.
        [[IDLE, ENDING | {"upper": [100, 100]}], [IDLE | {"upper": [128]}, ENDING], [ENDING]],
    ),
    gpu_checks.judge_training: (
        TRAINING,
        [
            TRAINING | fault
            for fault in ({"recompiled": 1}, {"tflops": 300}, {"peak_gib": 60}, {"losses": {"sdpa": 1.0, "flex": 1.02}})
        ],
    ),
    gpu_training.judge_resume: (
        {"whole": ["step", "1,2.5"], "parts": ["step", "1,2.5"]},
        [{"whole": ["step", "1,2.5"], "parts": ["step", "1,2.500001"]}],
    ),
}


@pytest.mark.parametrize("judge", JUDGED, ids=lambda judge: judge.__name__)
def test_a_judgement_passes_and_sees_its_faults(judge):
    good, faults = JUDGED[judge]
    assert judge(good)[0]
    for fault in faults:
        assert not judge(fault)[0]


def test_answers_are_judged_by_those_of_the_unchanged_model():
    for other, passes in (({"rms": 0.014}, True), ({"rms": 0.016}, False), ({"tokens": 1}, False)):
        found = {"unchanged": GOOD_ANSWERS, "fast prefill": GOOD_ANSWERS | other}
        assert gpu_checks.judge_answers(found, "unchanged")[0] is passes


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


@pytest.mark.parametrize("cuda", [False, True])
def test_answers_and_rows_are_judged_together(cuda, tmp_path, monkeypatch):
    class Reference:
        def __init__(self, *model):
            pass

        def compare(self, answer):
            return GOOD_ANSWERS | answer

    def run(folder, cases, runner=None):
        wrong = {"async_scheduling": runner != late} | ({"tokens": 1} if runner == faulty else {})
        return {name: {"steps": steps} if case["steps"] else wrong for name, case in cases.items()}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    for name, function in (("make_model", lambda folder, *_: folder), ("Reference", Reference), ("engines", run)):
        monkeypatch.setattr(gpu_checks, name, function)
    steps, faulty, late = [IDLE, ENDING], "none", "none"
    assert gpu_checks.exactness(TINY, tmp_path)[0]
    late = "1"  # runs without asynchronous scheduling
    assert gpu_checks.exactness(TINY, tmp_path)[0] is not cuda
    late = "none"
    for faulty in ("0", "1") if cuda else (None,):
        assert not gpu_checks.exactness(TINY, tmp_path)[0]
    steps, faulty = [ENDING], "none"
    assert not gpu_checks.exactness(TINY, tmp_path)[0]


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


def test_a_check_that_does_not_fit_into_the_time_is_left_out(tmp_path, monkeypatch, capsys):
    begun = []

    def run_check(check, *arguments, **options):
        begun.append(check.number)
        return {"status": "pass", "summary": "", "seconds": 0}

    monkeypatch.setattr(check_gpu, "run_check", run_check)
    with pytest.raises(SystemExit):
        check_gpu.main(["--sizes", "tiny", "--minutes", "1", "--output", str(tmp_path)])
    usual = {number: check.seconds for number, check in gpu_checks.CHECKS.items()}
    assert begun == [number for number, seconds in usual.items() if seconds < 60]
    assert capsys.readouterr().out.count("not run") == len(usual) - len(begun)
    begun.clear()
    check_gpu.main(["--sizes", "tiny", "--output", str(tmp_path)])  # all fit into the default
    assert begun == list(usual) and sum(usual.values()) < 15 * 60


def test_a_check_whose_graphs_fail_runs_eagerly_and_says_so(tmp_path, monkeypatch, capsys):
    def run_check(check, *arguments, sizes, eager):
        return {"status": "pass" if eager or not check.graphs else "error", "summary": "why", "seconds": 0}

    monkeypatch.setattr(check_gpu, "run_check", run_check)
    check_gpu.main(["--sizes", "tiny", "--only", "2,4", "--output", str(tmp_path)])
    assert read_json(tmp_path / "2.json")["with_graphs"]["status"] == "error"
    assert "eager, as graphs failed" in capsys.readouterr().out and not (tmp_path / "4.json").exists()
