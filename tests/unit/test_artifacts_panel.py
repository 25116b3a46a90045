"""The panel: paired differences with their errors, averages over what is above chance, and published scores beside."""

import math
import random
from statistics import fmean, stdev

import pytest
from artifact_helpers import SMOL, made, resolved, saved, score

from pipeline.statistics import paired_difference
from swiftkv.errors import UserError

VARIANTS = ["baseline", "swiftkv-25", "swiftkv-50", "swiftkv-62.5"]
ORDER = ["swiftkv-25", "swiftkv-50", "swiftkv-62.5"]
TASKS = ["arc-easy", "mmlu-continuation", "gsm8k-bits"]


def answers(seed, wrong):
    """400 answers of which a share is right; the same questions get hard first."""
    hard = random.Random(seed).sample(range(400), 400)
    return [float(place >= 400 * wrong) for place in hard]


def bits(extra):
    return [0.5 + 0.01 * (number % 7) + extra * (1 + 0.1 * (number % 3)) for number in range(60)]


VALUES = {
    "arc-easy": [answers(1, wrong) for wrong in (0.4, 0.45, 0.5, 0.6)],
    "mmlu-continuation": [answers(2, wrong) for wrong in (0.73, 0.73, 0.76, 0.7325)],
    "gsm8k-bits": [bits(extra) for extra in (0.0, 0.1, 0.3, 0.7)],
}
VALUES = {task: dict(zip(VARIANTS, values, strict=True)) for task, values in VALUES.items()}


def scored(task, variant):
    values = VALUES[task][variant]
    error = stdev(values) / math.sqrt(len(values))
    metric = "bits_per_byte" if task == "gsm8k-bits" else "acc"
    return score(SMOL, variant, task, fmean(values), stderr=error, questions=values, metric=metric)


def entry(**changes):
    raw = {"models": ["small"], "variants": VARIANTS, "tasks": TASKS, "orders": [ORDER], "cards": ["model_cards"]}
    return resolved("panel", scale_name="local", **raw | changes)


def everything():
    return [scored(task, variant) for task in TASKS for variant in VARIANTS]


@pytest.fixture
def table(tmp_path):
    return made(entry(), scores=saved(tmp_path, everything()), cards=["resources/published/model_cards.csv"])


def test_steps_count_fewer_bits_as_better(table):
    steps = table.values[table.values["row"] == "step"]
    ends = [("swiftkv-25", "swiftkv-50"), ("swiftkv-50", "swiftkv-62.5"), ("swiftkv-25", "swiftkv-62.5")]
    assert list(zip(steps["variant"], steps["against"], strict=True)) == ends
    printed = table.panels[2].frame.iloc[2]
    (column,) = (name for name in printed.index if name.startswith("GSM8K"))
    assert steps.iloc[2]["gsm8k-bits_difference"] < 0 and printed[column].startswith("+")


def test_published_scores_say_whether_settings_agree(table):
    printed = table.panels[4].frame.set_index("Task")
    values = VALUES["arc-easy"]["baseline"]
    apart = (fmean(values) - 0.5412) / (stdev(values) / 20)
    assert printed.loc["ARC-Easy", "Settings"] == "agree" and abs(apart) > 2
    assert printed.loc["ARC-Easy", "Apart,\nstandard errors"] == f"{apart:+.1f}"
    assert printed.loc["ARC-Easy", "Within errors"] == "no"
    assert printed.loc["MMLU (cloze)", "Settings"].startswith("differ: ")


def test_other_questions_are_not_paired(tmp_path):
    found = everything()
    found[1]["result"]["questions"]["sha256"] = "other"
    for _ in range(2):
        with pytest.raises(UserError, match="'arc-easy'"):
            made(entry(), scores=saved(tmp_path, found))
        found[1]["result"].pop("questions", None)


def test_answers_that_are_all_alike_leave_an_error():
    same = paired_difference([1.0, 0.0] * 20, [1.0, 0.0] * 20)
    assert same.value == 0
    assert same.stderr == pytest.approx(stdev([0.0] * 40 + [1.0, -1.0]) / math.sqrt(42))
    assert not paired_difference([1.0, 1.0], [1.0, 1.0]).clear
