"""Few questions: intervals, what is within noise, and differences of the same questions only."""

import math
from statistics import stdev

import pytest
from artifact_helpers import SMOL, closeness, made, resolved, saved, score

from pipeline.statistics import mean_and_stderr, paired_difference
from swiftkv.errors import UserError

VARIANTS = ["baseline", "swiftkv-50"]
RIGHT = {"winogrande": (52, 47), "gsm8k": (20, 5), "arc-easy": (60, 50)}  # of 100, in both variants


def answered(task, n=100, **changes):
    """Scores of both variants on `n` questions, of which the first are right."""
    found = []
    for variant, right in zip(VARIANTS, RIGHT[task], strict=True):
        values = [1.0] * (right * n // 100) + [0.0] * (n - right * n // 100)
        mean, stderr = mean_and_stderr(values)
        found.append(score(SMOL, variant, task, mean, stderr=stderr, questions=values, **changes))
    return found


def few(tmp_path, n=100):
    """Winogrande at chance in both rows, GSM8K not."""
    found = [record for task in ("winogrande", "gsm8k") for record in answered(task, n)]
    close = [closeness(SMOL, "baseline", 0.0), closeness(SMOL, "swiftkv-50", 0.2)]
    entry = resolved("quality", scale_name="local", models=["small"], variants=VARIANTS, tasks=["winogrande", "gsm8k"])
    return made(entry, scores=saved(tmp_path, found), fidelity=saved(tmp_path, close))


def cell(table, panel, variant, task):
    frame = table.panels[panel].frame
    (column,) = (name for name in frame.columns if name.startswith(task))
    return frame.set_index("Variant").loc[variant, column].replace("\N{NO-BREAK SPACE}", " ")


def test_benchmarks_of_few_questions_have_intervals_and_what_is_noise_is_marked(tmp_path):
    table = few(tmp_path)
    assert [panel.caption[4:13] for panel in table.panels] == ["Closeness", "Benchmark", "Differenc"]
    assert cell(table, 1, "baseline", "Winogrande") == "≈ 52.0 [42, 62]"  # 50 is what guessing gets
    assert cell(table, 1, "baseline", "GSM8K") == "20.0 [13, 29]"
    assert cell(table, 2, "swiftkv-50", "Winogrande") == "-5.0 ± 2.2 (5%)"  # all one way: clear
    assert cell(table, 2, "swiftkv-50", "GSM8K") == "-15.0 ± 3.6 (15%)"
    row = table.values[table.values["row"] == "difference"].iloc[0]
    assert (row["variant"], row["against_variant"], row["against_model"]) == ("baseline", "swiftkv-50", SMOL)
    assert (row["winogrande_difference"], row["winogrande_changed"]) == (5, 5)
    many = few(tmp_path, n=1000)
    assert [panel.caption[4:13] for panel in many.panels] == ["Benchmark", "Closeness", "Differenc"]
    assert "±" in cell(many, 0, "baseline", "GSM8K")


def test_closeness_is_compared_chat_by_chat_where_chats_are_the_same(tmp_path):
    """Two variants that are as far from the teacher on each of 4 chats but for a little more on the longest."""
    variants, found = ["swiftkv-50-full-model", "swiftkv-50"], []
    for variant, last in zip(variants, (34.0, 30.0), strict=True):
        kl = [1.0, 9.0, 2.0, last]
        record = closeness(SMOL, variant, sum(kl) / 100)
        chats = {"positions": [10, 20, 30, 40], "kl": kl, "top1_agreement": [5, 10, 15, 20], "nll": kl}
        record["result"]["chats"] = chats
        found.append(record)
    entry = resolved("quality", scale_name="local", models=["small"], variants=variants)
    values = made(entry, fidelity=saved(tmp_path, found)).values
    line = values[values["row"] == "difference"].iloc[0]
    # Less than the error of either, which is that of chats as unlike as these.
    assert line["kl_difference"] == pytest.approx(0.04) and 0 < line["kl_difference_stderr"] < 0.06
    chats["positions"] = [10, 20, 30, 39]
    assert "difference" not in set(made(entry, fidelity=saved(tmp_path, found)).values["row"])


def panel(tmp_path, found):
    entry = resolved(
        "panel", scale_name="local", models=["small"], variants=VARIANTS, tasks=["arc-easy"], cards=["model_cards"]
    )
    return made(entry, scores=saved(tmp_path, found), cards=["resources/published/model_cards.csv"])


def test_published_scores_say_whether_they_are_within_errors(tmp_path):
    found = answered("arc-easy", metric="acc")
    printed = panel(tmp_path, found).panels[-1].frame.set_index("Task").loc["ARC-Easy"]
    apart = (0.6 - 0.5412) / found[0]["result"]["stderr"]
    assert printed["Apart,\nstandard errors"] == f"{apart:+.1f}" and printed["Within errors"] == "yes"
    assert printed["Settings"] == "agree"


def test_other_questions_are_not_paired(tmp_path):
    found = answered("arc-easy")
    found[1]["result"]["questions"]["sha256"] = "other"
    for _ in range(2):
        with pytest.raises(UserError, match="'arc-easy'"):
            panel(tmp_path, found)
        found[1]["result"].pop("questions", None)


def test_answers_that_are_all_alike_leave_an_error():
    same = paired_difference([1.0, 0.0] * 20, [1.0, 0.0] * 20)
    assert same.value == 0
    assert same.stderr == pytest.approx(stdev([0.0] * 40 + [1.0, -1.0]) / math.sqrt(42))
    assert not paired_difference([1.0, 1.0], [1.0, 1.0]).clear
