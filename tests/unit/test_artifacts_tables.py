"""Tables: what is printed of numbers, gaps and published values, and the forms of a table."""

import html
import json
import re
import shutil
import subprocess

import pandas as pd
import pytest
from tests.programs import ROOT
from tests.unit.artifact_helpers import (
    LLAMA,
    PAPER,
    closeness,
    latency_result,
    made,
    record,
    resolved,
    saved,
    scale,
    score,
    served,
    throughput,
    training,
    typed,
)

from pipeline.artifacts import contents
from pipeline.artifacts.labels import case_label
from pipeline.artifacts.metrics import AT_CHANCE, IN_NOISE, MISSING, OOM, show, show_interval
from pipeline.artifacts.writers import Grid, Table, to_html, to_latex, to_markdown
from pipeline.text import percent
from swiftkv.io import read_json

REASON = "the data set truthfulqa/truthful_qa at revision main could not be had: https://example.org/" + "very/" * 30
QUALITY = [
    {"caption": "scores", "columns": ["prefill_reduction_percent", "kv_cache_reduction_percent", "tasks", "average"]},
    {"caption": "closeness", "columns": ["kl", "start_kl"]},
    {"caption": "differences", "columns": ["kl", "tasks", "average"], "rows": "differences"},
]


def quality():
    variants, tasks = ["baseline", "swiftkv-50"], ["arc-challenge", "winogrande"]
    entry = resolved("table", "table2", models=["small"], variants=variants, tasks=tasks, panels=QUALITY)
    asked = {"metric": "exact_match", "filter": "strict_match", "shots": 0, "chat_template": True, "limit": None}
    scores = [
        score(LLAMA, variant, task, 0.7 - place / 10, questions=[1.0] * (7 - place) + [0.0] * (3 + place),
              **(asked | {key: entry["tasks"][task][key] for key in asked} | {"lm_eval_task": entry["tasks"][task]["task"]}))
        for place, variant in enumerate(variants)
        for task in tasks
    ]  # fmt: skip
    return entry, scores, [closeness(LLAMA, variant, 0.25) for variant in variants]


def text(grid):
    return grid.frame.astype(str).agg(" | ".join, axis=1).tolist()


def test_a_table_of_quality_has_published_rows_gaps_and_paired_differences(tmp_path):
    entry, scores, fidelity = quality()
    published = [PAPER / "table2.csv"]
    table = made(entry, scores=saved(tmp_path, scores), fidelity=saved(tmp_path, fidelity[1:]), published=published)
    first, second, third = map(text, table.grids)
    assert [line.split(" | ")[0] for line in first] == ["baseline", "published", "swiftkv-50", "published"]
    assert first[1].split(" | ")[3:5] == ["82.00", "77.90"] and first[1].split(" | ")[5].startswith("79.95 [")
    assert first[2].split(" | ")[1] == "50% (l = 16)" and "[" in first[2]
    assert [AT_CHANCE in header for header in table.grids[0].frame.columns[3:]] == [False, True, False]
    assert "n/a [" in second[0] and "not measured" in " ".join(table.notes)
    assert third[0].startswith(f"swiftkv-50 | baseline | {IN_NOISE} -10.00") and "(10%)" in third[0]
    assert any(note.startswith("Avg.: mean over ARC-Challenge and Winogrande") for note in table.notes)
    assert {"measured", "arithmetic", "published"} <= set(table.values["source"])


def test_a_float32_cache_is_named_so_and_counted_in_16_bits(tmp_path):
    columns = ["kv_cache_gib", "capacity_ratio"]
    entry = resolved("table", models=["small"], variants=["baseline", "baseline/fp8"], points=["kv-capacity"],
                     panels=[{"columns": columns}])  # fmt: skip
    settings = {"point": "kv-capacity", "dtype": "float32", "merge_all_layers": False}
    records = [
        served(
            "kv_capacity",
            "baseline",
            {"kv_cache_tokens": tokens, "kv_cache_bytes": gib << 30},
            kv_cache=kv_cache,
            settings=settings,
        )
        for kv_cache, tokens, gib in (("auto", 1000, 2), ("fp8", 2000, 1))
    ]
    table = made(entry, serving=saved(tmp_path, records))
    (grid,) = map(text, table.grids)
    assert [re.sub(" +", "", row).split("|")[1:] for row in grid] == [
        ["float32", "2.00", "1.000×"],
        ["FP8", "1.00", "2.000×"],
    ]
    assert any("float32" in note for note in table.notes)


def test_differences_of_answers_are_paired(tmp_path):
    panels = [{"columns": ["exact_match"], "rows": "differences"}]
    variants = {"baseline": [1, 1, 0], "swiftkv-50": [0, 1, 0]}
    entry = resolved("table", models=["small"], variants=[*variants], points=["passages"], panels=panels)
    records = []
    for variant, right in variants.items():
        answers = {"text": [f"by {variant}", "b", ""], "exact_match": right, "contained": right, "f1": [0.5, 1, 0]}
        result = {"asked": [["?", "a", "b"], ["!", "c"], [".", "d"]], "answers": answers, "samples_ms": [5]}
        records.append(record("answer", LLAMA, variant, result, settings={"point": "passages"}, engine={}, cost={}))
    (differences,) = made(entry, serving=saved(tmp_path, records)).grids
    assert "≈ -33\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}143" in text(differences)[0]


def test_a_task_that_could_not_be_asked_says_why_and_is_in_no_average(tmp_path):
    entry, scores, fidelity = quality()
    gone = score(LLAMA, "swiftkv-50", "winogrande", 0.5, reason=REASON)
    gone["settings"] = scores[-1]["settings"]
    table = made(entry, scores=saved(tmp_path, [*scores[:-1], gone]), fidelity=saved(tmp_path, fidelity))
    assert any(REASON in note for note in table.notes)
    assert "Avg.: mean over ARC-Challenge." in table.notes


def test_a_part_that_no_model_plays_is_there_with_its_reason():
    parts = [{"title": role, "models": [role], "variants": ["baseline"]} for role in ("moe", "small")]
    table = made(resolved("table", scale_name="local", parts=parts, panels=[{"columns": ["kl"]}]))
    assert text(table.grids[0])[0].endswith("n/a [1]")
    assert "no model of this scale plays this role" in table.notes[-2]


def test_speeds_stand_beside_limits_and_out_of_memory_is_said(tmp_path):
    panels = [{"caption": name, "columns": [name], "rows": "points"} for name in ("tokens_per_second", "speedup")]
    points, variants = ["memory-80gib", "memory-20gib"], ["baseline", "swiftkv-50"]
    entry = resolved("table", models=["small"], variants=variants, points=points, panels=panels)
    speeds = zip(variants, (2e4, 3e4), strict=True)
    records = [throughput(variant, points[0], speed) for variant, speed in speeds]
    records.append(throughput("baseline", points[1], None, reason="no memory"))
    table = made(entry, serving=saved(tmp_path, records), published=[PAPER / "table5.csv"])
    speeds, gains = map(text, table.grids)
    assert speeds == [
        "80 GB | 20,000 | 30,000",
        "published | 22,900 | 31,000",
        "20 GB | OOM [1] | n/a [2]",
        "published | 10,800 | 12,200",
    ]
    assert gains[0] == "80 GB | 1.00× | 1.50× (limit 1.80×)"


def test_each_point_has_its_own_rates_and_several_are_told_apart(tmp_path):
    points = {"first-4k": [0.5], "first-8k": [0.1, 0.25]}
    panels = [{"columns": ["ttft_median_ms"]}]
    entry = resolved("table", models=["small"], variants=["baseline"], points=list(points), panels=panels)
    records = []
    for point, rates in points.items():
        settings = {"point": point, "request_rates": entry["points"][point]["request_rates"]}
        records.append(record("latency", LLAMA, "baseline", latency_result(rates), settings=settings))
    (grid,) = made(entry, serving=saved(tmp_path, records)).grids
    conditions = [[line for line in column.split("\n") if "requests/s" in line] for column in grid.frame.columns[1:]]
    assert conditions == [[], ["0.1 requests/s"], ["0.25 requests/s"]]
    assert MISSING not in text(grid)[0]


def test_trainings_stand_beside_what_the_sources_state(tmp_path):
    panels = [{"columns": ["training_hours", "training_hardware"]}, {"rows": "statements"}]
    entry = resolved("table", "training_cost", models=["small"], variants=["swiftkv-50"], panels=panels)
    records = saved(tmp_path, [training(LLAMA, "swiftkv-50", gpus=8)])
    first, second = map(text, made(entry, training=records, published=[PAPER / "values.csv"]).grids)
    assert first == ["50% SingleInputKV | 2.00 | 8 × NVIDIA H100 80GB HBM3"]
    assert any("less than 3 hours" in line for line in second)


def test_labels_have_the_recipe_where_two_recipes_meet():
    words = {"baseline": "Baseline", "swiftkv-50": "50% SingleInputKV"}
    both = {"swiftkv-50": "50% SingleInputKV, paper's recipe", "swiftkv-50-tuned": "50% SingleInputKV, tuned"}
    for expected in (words, both):
        entry = resolved("table", models=["small"], variants=list(expected), panels=[{"columns": ["kl"]}])
        assert {variant: case_label(entry, variant) for variant in expected} == expected


@pytest.mark.parametrize("name", ["table1", "blog_table2"])
def test_flops_tables_equal_the_published_ones(name, tmp_path):
    entry = contents.resolve(typed(scale()), name)
    large = ROOT / "resources/architectures/llama-3.1-70b.json"
    table = made(entry, dimensions=[large], published=[PAPER / f"{name}.csv"])
    printed = table.grids[0].frame.set_index("Variant").map(lambda cell: float(cell.rstrip("%")))
    assert [variant.startswith("published") for variant in printed.index] == [False, True] * len(entry["cases"])
    assert (printed[::2].to_numpy() == printed[1::2].to_numpy()).all()
    config = tmp_path / "config.json"  # the config.json itself
    config.write_text(json.dumps(read_json(large)["config"]))
    own = made(entry, dimensions=[config], published=[PAPER / f"{name}.csv"])
    assert own.grids[0].frame.equals(table.grids[0].frame)


def test_numbers():
    assert [percent(value) for value in (0.46875, 16 / 30, 0)] == ["46.875%", "53.3%", "0%"]
    assert (show(0.0199, "s2"), show(9.96, "s2"), show(1.256, ".2f|×")) == ("0.020", "10", "1.26×")
    for ends, written in (((1.0, 1.5), "1.25 ± 0.25"), ((1.1, 1.5), "1.25 [1.10, 1.50]"), ((None, None), "1.25")):
        assert show_interval(1.25, *ends, ".2f").replace("\N{NO-BREAK SPACE}", " ") == written


# Forms


def odd_table():
    """Everything that LaTeX, Markdown and HTML read as a command."""
    odd = pd.DataFrame({"a_b\n%": [f"{MISSING} [1]", "$x & y_z|<b>"], "c": ["1", "2"], "d": [f"{OOM} [1]", "w" * 90]})
    grid = Grid(odd, "x_y & <i>", (1,), {0: "(a) 50 % & more_of <it>", 1: "(b) " + "long title " * 9})
    notes = ["5 > 3 | “a” → ‖ ± × … 漢", "sha256:" + "0123456789abcdef" * 16, "/a_path/with-dashes" * 20]
    return Table(odd, [grid, grid], notes, r"100% of a_b & c #1 {~^\} <u>", "odd")


@pytest.fixture
def tables(tmp_path):
    entry, scores, fidelity = quality()
    published = [PAPER / "table2.csv"]
    made_up = made(entry, scores=saved(tmp_path, scores), fidelity=saved(tmp_path, fidelity), published=published)
    cell = "≈ +0.108 ± 0.020 [45, 59]".replace(" ", "\N{NO-BREAK SPACE}")  # as scores and differences are written
    frame = pd.DataFrame([["swiftkv-50-across16", *[cell] * 8]] * 60, columns=["Variant", *map(str, range(8))])
    return [made_up, odd_table(), Table(frame, [Grid(frame, "(a) scores")] * 3)]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_within_its_margins(tables, tmp_path):
    inputs = []
    for number, table in enumerate(tables):
        (tmp_path / f"{number}.tex").write_text(to_latex(table))
        inputs.append(rf"\input{{{number}}}\clearpage")
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx}"
    (tmp_path / "all.tex").write_text(rf"{packages}\begin{{document}}{''.join(inputs)}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert run.returncode == 0, run.stdout[-2000:]
    points = [float(found) for found in re.findall(r"Overfull \\hbox \((\d+\.\d+)pt too wide\)", run.stdout)]
    assert max(points, default=0) <= 1, run.stdout
    assert "Float too large" not in run.stdout, run.stdout


def test_html_and_markdown_have_every_cell(tables):
    for table in tables:
        page = to_html(table)
        lines = re.findall("<tr.*?</tr>", page, flags=re.DOTALL)
        rows = [[html.unescape(cell) for cell in re.findall("<td[^>]*>(.*?)</td>", line)] for line in lines]
        headings = [html.unescape(title) for title in re.findall("<th colspan[^>]*>(.*?)</th>", page)]
        assert [row for row in rows if row] == [row for grid in table.grids for row in grid.frame.to_numpy().tolist()]
        assert headings == [title for grid in table.grids for title in grid.headings.values()]
        assert all(part in html.unescape(page) for part in (table.title, *table.notes))
        for grid in table.grids:
            lines = [line for line in to_markdown(Table(table.values, [grid])).split("\n") if line[:1] == "|"]
            assert len(lines) == len(grid.frame) + len(grid.headings) + 2
            assert {line.replace(r"\|", "").count("|") for line in lines} == {len(grid.frame.columns) + 1}


def test_the_wiring_has_a_box_for_every_layer_and_cache():
    entry = resolved("wiring", models=["small"], variants=["baseline", "swiftkv-50-across4"])
    plain, shared = made(entry).figure.axes
    assert len(plain.patches) == 3 * 32 and len(shared.patches) == 2 * 32 + 16 + 16 / 4
