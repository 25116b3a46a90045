"""The forms of a table: LaTeX that compiles and stays within its margins, Markdown, HTML and CSV."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pandas as pd
import pytest
from artifact_helpers import LLAMA, PAPER, closeness, made, saved, scale, score, training, typed

from pipeline.artifacts import columns, contents
from pipeline.artifacts.columns import Column, grid, measured, models
from pipeline.artifacts.records import MISSING, OOM
from pipeline.artifacts.table import Footnotes, Panel, Table, to_html, to_latex, to_markdown

REASON = "the data set truthfulqa/truthful_qa at revision main could not be had: https://example.org/" + "very/" * 30


def scored(entry):
    """Every score and fidelity record an entry shows, but for one task that no hub has."""
    parts = entry.get("parts") or [{"models": [model["name"] for model in entry["models"]], "cases": entry["cases"]}]
    rows = {(model, *case): None for part in parts for model in part["models"] for case in part["cases"]}
    scores = [
        score(model, variant, task, 0.5, kv_cache=kv_cache, reason=REASON if task == "truthfulqa" else None)
        for model, variant, kv_cache in rows
        for task in entry.get("tasks", {})
    ]
    return scores, [closeness(model, variant, 0.25, kv_cache=kv_cache) for model, variant, kv_cache in rows]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Every table of these kinds at the paper's scale."""
    folder, found, config = tmp_path_factory.mktemp("records"), [], typed(scale())
    for name, raw in config.entries.items():
        if raw["kind"] not in ("quality", "summary", "tasks", "training") or contents.left_out(config, name):
            continue
        entry = contents.resolve(config, name)
        files = {"published": [PAPER / f"{stem}.csv" for stem in raw.get("published", ())]}
        if raw["kind"] == "training":
            files["training"] = saved(folder, [training(LLAMA, "swiftkv-50", gpus=8)])
        else:
            scores, fidelity = scored(entry)
            files["scores"] = saved(folder, scores)
            files |= {"fidelity": saved(folder, fidelity)} if raw["kind"] == "quality" else {}
        found.append(made(entry, **files))
    return [*found, odd_table()]


def odd_table():
    """Everything that LaTeX, Markdown and HTML read as a command."""
    odd = pd.DataFrame({"a_b\n%": [f"{MISSING} [1]", "$x & y_z|<b>"], "c": ["1", "2"], "d": [f"{OOM} [1]", "w" * 90]})
    panel = Panel(odd, "x_y & <i>", (1,), {0: "(a) 50 % & more_of <it>", 1: "(b) " + "long title " * 9})
    notes = ["5 > 3 | “a” → ‖ ± × … 漢", "sha256:" + "0123456789abcdef" * 16, "/a_path/with-dashes" * 20]
    return Table("odd", r"100% of a_b & c #1 {~^\} <u>", odd, [panel, panel], notes)


def long_table():
    cell = "≈ +0.108 ± 0.020 [45, 59]".replace(" ", "\N{NO-BREAK SPACE}")  # as scores and differences are written
    frame = pd.DataFrame([["swiftkv-50-across16", *[cell] * 8]] * 60, columns=["Variant", *map(str, range(8))])
    return Table("long", "Long", frame, [Panel(frame, "(a) scores")], [])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,graphicx", "array,booktabs,longtable"])
def test_latex_compiles_within_its_margins(tables, tmp_path, packages):
    shown = {"booktabs": tables[-1:], "booktabs,graphicx": tables}.get(packages, [long_table()])
    inputs = []
    for number, table in enumerate(shown):
        text = to_latex(table)
        assert rf"\label{{tab:{table.label}}}" in text and ("longtable" in packages) == ("longtable" in text)
        (tmp_path / f"{number}.tex").write_text(text)
        inputs.append(rf"\typeout{{table {number} {table.label}}}\input{{{number}}}\clearpage")
    document = rf"\documentclass{{article}}\usepackage{{{packages}}}\begin{{document}}{''.join(inputs)}\end{{document}}"
    (tmp_path / "all.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert run.returncode == 0, run.stdout[-2000:]
    if packages != "booktabs":
        points = [float(found) for found in re.findall(r"Overfull \\hbox \((\d+\.\d+)pt too wide\)", run.stdout)]
        assert max(points, default=0) <= 1, run.stdout
        assert not (wide := re.findall(r"Float too large for page by .*", run.stdout)), wide


class Grids(HTMLParser):
    """The cells of every row of a page, and whether all tags are closed."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        if tag in ("meta", "br"):
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_html_and_markdown_have_every_cell(tables):
    for table in tables:
        page = Grids()
        page.feed(to_html(table))
        printed = [row for panel in table.panels for row in panel.frame.to_numpy().tolist()]
        headings = [title for panel in table.panels for title in panel.headings.values()]
        assert not page.open and [row for row in page.rows if row in printed] == printed
        assert [row[0] for row in page.rows if len(row) == 1] == headings
        assert all(text in page.text for text in (table.title, *table.notes))
        assert "http" not in re.sub(r"https://example[^<]*", "", to_html(table))  # nothing is fetched
        for panel in table.panels:
            grid = [line for line in to_markdown(Table("x", "x", table.values, [panel])).split("\n") if line[:1] == "|"]
            assert len(grid) == len(panel.frame) + len(panel.headings) + 2
            assert {line.replace(r"\|", "").count("|") for line in grid} == {len(panel.frame.columns) + 1}


LINES = [
    {"model": "a", "title": "A", "speed": 1.25, "speed_stderr": 0.5, "hours": 1},
    {"model": "a", "title": "A", "speed": None, "hours": None, "_why": "no hub", "_below": ("published", "cut")},
    {"model": "b", "title": "B", "speed": None, "hours": 2, "_why": "no memory", "status": "oom"},
]
COLUMNS = [Column("Speed", "speed", "+.1f", why="_why", below=lambda line: "7"), Column("Hours", "hours", str)]


def test_a_column_prints_values_errors_gaps_with_their_reasons_and_a_second_line():
    footnotes = Footnotes()
    panel = grid(LINES, [*models(LINES), *COLUMNS], footnotes, "caption")
    assert panel.frame.to_numpy().tolist() == [
        ["A", "+1.2\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.5", "1"],
        ["A", "n/a [1]", "n/a"],
        ["published [2]", "7", ""],
        ["B", "OOM [3]", "2"],
    ]
    assert footnotes.texts == ["no hub", "cut", "no memory"] and footnotes.mark("cut") == "[2]"
    entry = {"name": "x", "models": [{"title": "A"}], "title": "speed", "label": "Table 1"}
    values = columns.table(entry, LINES, [], [], Footnotes()).values
    assert list(values) == ["model", "title", "speed", "speed_stderr", "hours", "status"]
    assert measured("x", {"value": 0.5, "stderr": 0.1}, 100) == {"x": 50, "x_stderr": 10}
    assert measured("x", None) == {"x": None, "x_stderr": None}
