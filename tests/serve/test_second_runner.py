"""The plugin takes the rows that vLLM's second model runner (V2, the one of GPUs from 0.30 on) picks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Name: a step; the rows the layers >= l run, None for all; and how many of them count.
STEPS = {
    "a prompt": (dict(queries=[6], logits=[1], prefill=True, mode="NONE", padded=0), [5], 1),
    "a prompt and two decoding": (
        dict(queries=[1, 5, 1], logits=[1, 1, 1], prefill=True, mode="NONE", padded=0), [0, 5, 6], 3
    ),
    "padded to a captured size": (
        dict(queries=[1, 5, 1], logits=[1, 1, 1], prefill=True, mode="PIECEWISE", padded=4), [0, 5, 6, 6], 3
    ),
    "drafts to verify beside a prompt": (
        dict(queries=[3, 4], logits=[3, 1], prefill=True, mode="NONE", padded=0), [0, 1, 2, 6], 4
    ),
    "a last piece of one token": (dict(queries=[1, 1], logits=[1, 1], prefill=True, mode="NONE", padded=0), None, 2),
    "decoding alone": (dict(queries=[1, 1, 1], logits=[1, 1, 1], prefill=False, mode="NONE", padded=0), None, 3),
    "drafts alone": (dict(queries=[3, 3], logits=[3, 3], prefill=False, mode="NONE", padded=0), None, 6),
    "a captured step": (dict(queries=[2, 1], logits=[1, 1], prefill=True, mode="FULL", padded=0), None, 3),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers():
    program = Path(__file__).with_name("second_runner.py")
    cases = json.dumps([case for case, *_ in STEPS.values()])
    ended = subprocess.run([sys.executable, program, cases], capture_output=True, text=True, timeout=600)
    if (
        "No module named 'vllm.v1.worker.gpu" in ended.stderr
        or "cannot import name 'FastPrefillHelper'" in ended.stderr
    ):
        pytest.skip("this vLLM has no fast prefill in its second runner")
    assert ended.returncode == 0, ended.stderr[-3000:]
    return dict(zip(STEPS, json.loads(ended.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", STEPS)
def test_rows_of_a_step(answers, name):
    (case, rows, count), answer = STEPS[name], answers[name]
    assert (answer["rows"], answer["count"]) == (rows, count)
    # Attention runs on the same rows, each request's own.
    per_request = case["queries"] if rows is None else case["logits"]
    assert answer["attended"] == sum(per_request) == count
    assert answer["starts"] == [sum(per_request[:index]) for index in range(len(per_request) + 1)]
