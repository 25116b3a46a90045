"""Quality tables of few questions: intervals, what is within noise, and paired differences."""

import pytest
from artifact_helpers import SMOL, closeness, made, resolved, saved, scale, score, typed

from pipeline.artifacts import contents
from pipeline.artifacts.paired import reference
from pipeline.artifacts.scored import rows
from pipeline.artifacts.table import to_html
from pipeline.statistics import mean_and_stderr


def local(**raw):
    raw = {"models": ["small"], "tasks": ["winogrande", "gsm8k"]} | raw
    return resolved("quality", scale_name="local", **{key: value for key, value in raw.items() if value is not None})


def answered(variant, task, right, n, **changes):
    """A score of `n` questions, of which the first are right."""
    values = [1.0] * right + [0.0] * (n - right)
    mean, stderr = mean_and_stderr(values)
    return score(SMOL, variant, task, mean, stderr=stderr, questions=values, **changes)


def few(tmp_path, n=100):
    """Winogrande at chance in both rows, GSM8K at 20 and 5 of 100."""
    right = {"winogrande": (52, 47), "gsm8k": (20, 5)}
    found = [
        answered(variant, task, counts[row] * n // 100, n)
        for task, counts in right.items()
        for row, variant in enumerate(["baseline", "swiftkv-50"])
    ]
    close = [closeness(SMOL, "baseline", 0.0), closeness(SMOL, "swiftkv-50", 0.2)]
    entry = local(variants=["baseline", "swiftkv-50"])
    return made(entry, scores=saved(tmp_path, found), fidelity=saved(tmp_path, close))


def cell(table, panel, variant, task):
    frame = table.panels[panel].frame
    (column,) = (name for name in frame.columns if name.startswith(task))
    return frame.set_index("Variant").loc[variant, column].replace("\N{NO-BREAK SPACE}", " ")


def test_benchmarks_of_few_questions_come_after_closeness_with_intervals_and_marked_as_noise(tmp_path):
    table = few(tmp_path)
    assert [panel.caption[4:13] for panel in table.panels] == ["Closeness", "Benchmark", "Differenc"]
    assert cell(table, 1, "baseline", "Winogrande") == "≈ 52.0 [42, 62]"  # 50 is what guessing gets
    assert cell(table, 1, "baseline", "GSM8K") == "20.0 [13, 29]"
    assert cell(table, 2, "swiftkv-50", "Winogrande") == "-5.0 ± 2.2 (5%)"  # all one way: clear
    assert cell(table, 2, "swiftkv-50", "GSM8K") == "-15.0 ± 3.6 (15%)"
    assert list(table.panels[2].frame["against"]) == ["baseline"]
    page = to_html(table)
    assert page.count('class="number noise"') == 3
    row = table.values[table.values["row"] == "difference"].iloc[0]
    assert (row["variant"], row["against_variant"], row["against_model"]) == ("baseline", "swiftkv-50", SMOL)
    assert (row["winogrande_difference"], row["winogrande_changed"]) == (5, 5)
    assert row["average_difference"] == pytest.approx(10)


def test_closeness_is_compared_chat_by_chat(tmp_path):
    """Two variants that are as far from the teacher on each of 4 chats but for a little more on the longest."""
    positions, first = [10, 20, 30, 40], [1.0, 9.0, 2.0, 30.0]
    second = [1.0, 9.0, 2.0, 34.0]
    found = []
    for variant, kl in (("swiftkv-50", first), ("swiftkv-50-full-model", second)):
        record = closeness(SMOL, variant, sum(kl) / 100)
        record["result"]["chats"] = {"positions": positions, "kl": kl, "top1_agreement": [5, 10, 15, 20], "nll": kl}
        found.append(record)
    entry = local(variants=["swiftkv-50-full-model", "swiftkv-50"], tasks=None)
    table = made(entry, fidelity=saved(tmp_path, found))
    line = table.values[table.values["row"] == "difference"].iloc[0]
    # Less than the error of either, which is that of chats as unlike as these.
    assert line["kl_difference"] == pytest.approx(0.04) and 0 < line["kl_difference_stderr"] < 0.06
    assert line["top1_agreement_difference"] == 0
    assert [panel.caption[:7] for panel in table.panels] == ["(a) Clo", "(b) Dif"]
    assert table.panels[1].frame["Variant"].tolist() == ["swiftkv-50-full-model"]
    found[0]["result"]["chats"]["positions"] = [10, 20, 30, 39]
    assert "difference" not in set(made(entry, fidelity=saved(tmp_path, found)).values["row"])


def test_benchmarks_of_many_questions_come_first(tmp_path):
    table = few(tmp_path, n=1000)
    assert [panel.caption[4:13] for panel in table.panels] == ["Benchmark", "Closeness", "Differenc"]
    assert "±" in cell(table, 0, "baseline", "GSM8K")


def test_a_row_is_compared_with_itself_in_bfloat16_or_with_the_model_or_the_last_of_its_part():
    def against(entry):
        found = rows(entry, {})
        return [other and (other.variant, other.kv_cache) for other in (reference(row, found) for row in found)]

    half, last = ("swiftkv-50", "auto"), ("swiftkv-50-across4", "auto")
    assert against(contents.resolve(typed(scale()), "table6")) == [half, None, half, None]
    assert against(contents.resolve(typed(scale()), "table7"))[1::2] == [
        half, ("swiftkv-50-across2", "auto"), ("swiftkv-50-across4", "auto"),
    ]  # fmt: skip
    assert against(contents.resolve(typed(scale()), "tableC1")) == [last, last, last, None]
    assert against(contents.resolve(typed(scale()), "tableD1"))[:2] == [None, None]
    assert against(contents.resolve(typed(scale()), "table2")) == [None] + [("baseline", "auto")] * 7
