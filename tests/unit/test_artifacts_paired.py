"""Quality tables of few questions: intervals, what is within noise, and paired differences."""

from artifact_helpers import SMOL, closeness, made, resolved, saved, score

from pipeline.statistics import mean_and_stderr


def local(**raw):
    raw = {"models": ["small"], "variants": ["baseline", "swiftkv-50"], "tasks": ["winogrande", "gsm8k"]} | raw
    return resolved("quality", scale_name="local", **{key: value for key, value in raw.items() if value is not None})


def answered(variant, task, right, n):
    """A score of `n` questions, of which the first are right."""
    values = [1.0] * right + [0.0] * (n - right)
    mean, stderr = mean_and_stderr(values)
    return score(SMOL, variant, task, mean, stderr=stderr, questions=values)


def few(tmp_path, n=100):
    """Winogrande at chance in both rows, GSM8K at 20 and 5 of 100."""
    right = {"winogrande": (52, 47), "gsm8k": (20, 5)}
    found = [
        answered(variant, task, counts[row] * n // 100, n)
        for task, counts in right.items()
        for row, variant in enumerate(["baseline", "swiftkv-50"])
    ]
    close = [closeness(SMOL, "baseline", 0.0), closeness(SMOL, "swiftkv-50", 0.2)]
    return made(local(), scores=saved(tmp_path, found), fidelity=saved(tmp_path, close))


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
