"""In both of vLLM's model runners the upper half runs the rows with logits, in CUDA graphs of their number, or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GRAPHS = dict(mode="FULL_AND_PIECEWISE", sizes=[1, 2, 4, 8])


def step(queries, logits=None, decoding=(), left=(), mode="NONE", sizes=()):
    """A step of so many tokens of each request; prompts unless `decoding`, ending in this step unless tokens are `left`."""
    requests = len(queries)
    return {
        "queries": queries,
        "logits": logits or [1] * requests,
        "decoding": [index in decoding for index in range(requests)],
        "left": list(left) or [0] * requests,
        "mode": mode,
        "sizes": list(sizes),
    }


# A step; its tokens and mode as vLLM dispatches them; the rows the upper half is called with, and the mode.
STEPS = {
    "a prompt": (step([6]), [6, "NONE"], [5], "NONE"),
    "a prompt and two decoding": (step([1, 5, 1], decoding=(0, 2)), [7, "NONE"], [0, 5, 6], "NONE"),
    "drafts to verify beside a prompt": (
        step([3, 4], logits=[3, 1], decoding=[0]), [7, "NONE"], [0, 1, 2, 6], "NONE"
    ),
    "a last piece of one token": (step([1, 1], decoding=[0]), [2, "NONE"], [0, 1], "NONE"),
    "decoding alone": (step([1, 1, 1], decoding=range(3)), [3, "NONE"], [0, 1, 2], "NONE"),
    "drafts alone": (step([3, 3], logits=[3, 3], decoding=range(2)), [6, "NONE"], [0, 1, 2, 3, 4, 5], "NONE"),
    # Graphs of 8 tokens are not replayed for 4 rows, nor for 3 that are padded to 4.
    "rows of a captured size": (
        step([1, 5, 1, 1], decoding=(0, 2, 3), **GRAPHS), [8, "PIECEWISE"], [0, 5, 6, 7], "PIECEWISE"
    ),
    "padded rows of padded tokens": (
        step([1, 5, 1], decoding=(0, 2), **GRAPHS), [8, "PIECEWISE"], [0, 5, 6, 6], "PIECEWISE"
    ),
    "decoding alone, captured": (
        step([1, 1, 1, 1], decoding=range(4), **GRAPHS), [4, "PIECEWISE"], [0, 1, 2, 3], "PIECEWISE"
    ),
    # Too many tokens for a graph, but not too many rows.
    "rows beside a long prompt": (
        step([1, 20, 1], decoding=(0, 2), **GRAPHS), [22, "NONE"], [0, 20, 21, 21], "PIECEWISE"
    ),
    "too many rows": (
        step([1] * 9 + [5], decoding=range(9), **GRAPHS), [14, "NONE"], [*range(9), 13], "NONE"
    ),
    "graphs for decoding alone": (
        step([1, 5, 1], decoding=(0, 2), **GRAPHS | {"mode": "FULL_DECODE_ONLY"}), [7, "NONE"], [0, 5, 6], "NONE"
    ),
    "one of two prompts goes on": (step([4, 2], left=[8, 0]), [6, "NONE"], [3, 5], "NONE"),
    "a prompt goes on beside decoding": (step([1, 5], decoding=[0], left=[0, 8]), [6, "NONE"], [0, 5], "NONE"),
}  # fmt: skip
# Steps without a row to sample from.
UNFINISHED = {
    "a prompt goes on": (step([6], left=[1]), [6, "NONE"]),
    "two prompts go on": (step([4, 2], left=[8, 1]), [6, "NONE"]),
    "a prompt goes on by a token": (step([1], left=[3]), [1, "NONE"]),
    "a prompt goes on in a graph": (step([6], left=[1], **GRAPHS), [8, "PIECEWISE"]),
}
CASES = [(runner, name) for runner in ("V1", "V2") for name in STEPS | UNFINISHED]


@pytest.fixture(scope="module")
def answers():
    program = Path(__file__).with_name("one_step.py")
    cases = json.dumps([{"runner": runner} | (STEPS | UNFINISHED)[name][0] for runner, name in CASES])
    ended = subprocess.run([sys.executable, program, cases], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return dict(zip(CASES, json.loads(ended.stdout.splitlines()[-1]), strict=True))


def with_logits(case):
    """Rows of the step that are sampled from."""
    ends = [sum(case["queries"][: index + 1]) for index in range(len(case["queries"]))]
    return [row for end, count in zip(ends, case["logits"], strict=True) for row in range(end - count, end)]


@pytest.mark.parametrize(("runner", "name"), CASES)
def test_the_upper_half_runs_what_is_needed(answers, runner, name):
    (case, dispatched, *expected), answer = (STEPS | UNFINISHED)[name], answers[runner, name]
    if "absent" in answer:
        pytest.skip(f"this vLLM has no fast prefill in its second runner: {answer['absent']}")
    assert answer["captures"] == sorted(case["sizes"], reverse=True) * (case["mode"] == "FULL_AND_PIECEWISE")
    assert answer["step"] == dispatched
    if not expected:
        assert (answer["calls"], set(answer["output"])) == ([], {0})
        return
    (call,), (rows, mode) = answer["calls"], expected
    assert (call["rows"], call["mode"], call["static"]) == (rows, mode, mode == "PIECEWISE")
    assert call["descriptor"] == len(rows)
    assert [answer["output"][row] for row in with_logits(case)] == [2 * (row + 1) for row in with_logits(case)]
    # Attention runs on the same rows, each request's own.
    per_request = case["queries"] if len(rows) == sum(case["queries"]) else case["logits"]
    assert answer["attended"] == sum(per_request)
    assert answer["starts"] == [sum(per_request[:index]) for index in range(len(per_request) + 1)]
