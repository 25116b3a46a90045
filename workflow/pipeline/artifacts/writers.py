"""A table and its four forms: CSV (the frame), LaTeX with booktabs, Markdown, and a small HTML page for the report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from pipeline.artifacts.metrics import IN_NOISE, MISSING, NONE, OOM
from swiftkv.io import atomic_path

# Typed by hand, as pandas' own escaping leaves characters that pdflatex only knows in math mode.
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "–": "--", "—": "---", "’": "'", "…": r"\ldots{}", "±": r"$\pm$", "×": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$", "≈": r"$\approx$", "→": r"$\rightarrow$", "·": r"$\cdot$",
    "‖": r"$\parallel$", "⁰": "$^0$", "³": "$^3$", "⁹": "$^9$",
    "\N{NO-BREAK SPACE}": "~", "\N{ZERO WIDTH SPACE}": r"\allowbreak{}",
})  # fmt: skip

_UNKNOWN = re.compile("[^\x00-\xff]")  # what pdflatex stops at; a reason or a title may hold anything
_LONG_WORD = re.compile(r"\S{25,}")  # a path or a hash, which TeX would let run over the margin
_LINE = 82  # wide characters of a line of a table over pages, in its small print on a narrow page
_PAGE_LINES = 60  # of printed cells; more do not fit on a page with title and notes
_CELL, _HEADER = 44, 20  # characters of a line of a cell and of a header in LaTeX

_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_PAGE.filters["lines"] = lambda text: Markup("<br>").join(escape(line) for line in str(text).split("\n"))
STYLE = """\
.scroll { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid; border-bottom: 2px solid; }
th, td { padding: 0.2em 0.7em; text-align: left; vertical-align: top; }
thead th { border-bottom: 1px solid; vertical-align: bottom; }
tbody th { font-style: italic; font-weight: normal; }
tr.rule > * { border-top: 1px solid; } .number { text-align: right; white-space: nowrap; }
.noise { color: #767676; }
.notes { max-width: 60em; font-size: 0.9em; overflow-wrap: anywhere; }
"""
_HTML = _PAGE.from_string("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ table.title }}</title>
<style>
body { font: 14px/1.4 sans-serif; margin: 1.5em; color: #111; }
h1 { font-size: 1.2em; } h2 { font-size: 1em; margin: 1.5em 0 0.4em; }
{{ style }}</style>
</head>
<body>
<h1>{{ table.title }}</h1>
{% for grid in table.grids %}
{% if grid.caption %}
<h2>{{ grid.caption }}</h2>
{% endif %}
<div class="scroll"><table>
<thead><tr>
{%- for column in grid.frame.columns %}<th{{ of_cell(grid, column) }}>{{ column | lines }}</th>{% endfor -%}
</tr></thead>
<tbody>
{% for row in grid.frame.values %}
{% set number = loop.index0 %}
{% set heading = grid.headings.get(number) %}
{% if heading %}
<tr{{ classes(rule=number) }}><th colspan="{{ grid.frame.columns | length }}">{{ heading }}</th></tr>
{% endif %}
<tr{{ classes(rule=number in grid.rules and not heading, below=number in grid.below) }}>
{%- for cell in row %}<td{{ of_cell(grid, grid.frame.columns[loop.index0], cell) }}>{{ cell | lines }}</td>{% endfor -%}
</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% if table.notes %}
<div class="notes">
{% for note in table.notes %}
<p>{{ note }}</p>
{% endfor %}
</div>
{% endif %}
</body>
</html>
""")


class Grid(NamedTuple):
    """One printed grid: strings under headers that may hold line breaks.

    `rules` are rows with a line above; `headings` are titles over the whole width, by the row they stand above; `below` are
    rows that belong to the one above them.
    """

    frame: pd.DataFrame
    caption: str | None = None
    rules: tuple[int, ...] = ()
    headings: Mapping[int, str] = {}
    below: tuple[int, ...] = ()


class Column(NamedTuple):
    """A printed column: its header, and the cell of a row."""

    header: str
    cell: Callable[[Any], str]


def print_grid(shown: Sequence[Column], rows: Iterable[Any], **more: Any) -> Grid:
    """Return a grid with the shown columns' cells of each row."""
    return Grid(pd.DataFrame([{column.header: column.cell(row) for column in shown} for row in rows]), **more)


@dataclass(frozen=True)
class Table:
    """A table: `values` (the CSV, one row a number), the printed `grids` and the notes below.

    `label` is the LaTeX label without its "tab:" prefix.
    """

    label: str
    title: str
    values: pd.DataFrame
    grids: Sequence[Grid]
    notes: Sequence[str] = ()


@dataclass
class Footnotes:
    """Numbered remarks on single cells; the same text gets the same number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The mark, such as "[2]", that stands for `text`."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        """The remarks with their marks, in order."""
        return [f"[{number}] {text}" for number, text in enumerate(self.texts, 1)]


def to_csv(table: Table) -> str:
    """The values, empty where missing, with a header line."""
    return table.values.to_csv(index=False, lineterminator="\n")


def to_latex(table: Table) -> str:
    """A floating table that needs \\usepackage{booktabs,graphicx}, or one over pages where it is longer than a page.

    A grid wider than the line is scaled down to it; without graphicx it keeps its width. Over pages its cells are
    wrapped instead, and array and longtable are needed too.
    """
    if sum(map(_printed_lines, table.grids)) > _PAGE_LINES:
        return _to_longtable(table)
    lines = [
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\begin{table}",
        r"\providecommand{\resizebox}[3]{#3}",
        r"\sloppy\centering\small",
        rf"\caption{{{_latex_line(table.title)}}}",
        rf"\label{{tab:{table.label}}}",
    ]
    for grid in table.grids:
        if grid.caption:
            lines.append(rf"\par\medskip {_latex_line(grid.caption)}\par\smallskip")
        lines += [
            r"\sbox0{%",
            _tabular(grid) + "%",
            r"}",
            r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        ]
    if table.notes:
        lines += [r"\par\medskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
        lines += [rf"{_latex_line(note)}\par" for note in table.notes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}", ""])


def _to_longtable(table: Table) -> str:
    lines = [r"% Needs \usepackage{array,booktabs,longtable}.", r"{\scriptsize\sloppy\setlength{\tabcolsep}{3pt}"]
    title = rf"\caption{{{_latex_line(table.title)}}}\label{{tab:{table.label}}}\\"
    for number, grid in enumerate(table.grids):
        frame = grid.frame.map(_latex_wrapped).rename(columns=_latex_wrapped)
        columns = "".join(
            r">{\raggedright\arraybackslash}p{\dimexpr " f"{share:.4f}" r"\linewidth-2\tabcolsep\relax}"
            for share in _shares(grid.frame)
        )
        text = frame.style.hide(axis="index").to_latex(environment="longtable", hrules=True, column_format=columns)
        if grid.caption:
            heading = rf"\multicolumn{{{len(frame.columns)}}}{{l}}{{\textbf{{{_latex_line(grid.caption)}}}}} \\"
            text = text.replace(r"\toprule", heading + "\n" + r"\toprule", 1)
        if number == 0:
            begin = rf"\begin{{longtable}}{{{columns}}}"
            text = text.replace(begin, begin + "\n" + title, 1)
        else:  # one table, however many grids it has
            lines.append(r"\addtocounter{table}{-1}")
        lines.append(text)
    lines += [rf"\par\noindent {_latex_line(note)}\par" for note in table.notes]
    return "\n".join([*lines, "}", ""])


def _shares(frame: pd.DataFrame) -> list[float]:
    """Shares of the line for the columns of a table over pages: as long as its lines, as wide as its longest word."""
    lines, words = [], []
    for column in frame.columns:
        text = [str(cell) for cell in (column, *frame[column])]
        lines.append(min(_CELL, max(len(line) for cell in text for line in cell.split("\n"))))
        words.append(
            max((len(word) for cell in text for word in re.split(r"[\s/_:={}-]+|[.,](?=[A-Za-z{])", cell)), default=1)
        )
    least = [(word + 2) / _LINE for word in words]
    spare = max(0.0, 1 - sum(least))
    wanted = [max(0.0, line / sum(lines) - share) for line, share in zip(lines, least, strict=True)]
    shares = [share + spare * more / (sum(wanted) or 1) for share, more in zip(least, wanted, strict=True)]
    return [share / sum(shares) for share in shares]


def _printed_lines(grid: Grid) -> int:
    """Lines a grid takes when its cells are wrapped for LaTeX."""
    return sum(max(len(textwrap.wrap(str(cell), _CELL)) or 1 for cell in row) for row in grid.frame.to_numpy()) + 4


def to_markdown(table: Table) -> str:
    """A heading, the grids as pipe tables, and the notes as a list."""
    parts = [f"## {table.title}"]
    for grid in table.grids:
        if grid.caption:
            parts.append(f"**{grid.caption}**")
        columns, text = list(grid.frame.columns), _text_columns(grid.frame)
        aligned = ["left" if column in text else "right" for column in columns]
        rows = []
        for number, row in enumerate(grid.frame.map(_markdown).to_numpy().tolist()):
            if number in grid.headings:
                rows.append([f"*{_markdown(grid.headings[number])}*", *[""] * (len(columns) - 1)])
            rows.append(row)
        frame = pd.DataFrame(rows, columns=[_markdown(column) for column in columns])
        parts.append(frame.to_markdown(index=False, disable_numparse=True, colalign=aligned))
    if table.notes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def to_html(table: Table) -> str:
    """One page that needs nothing else: the title, the grids and the notes."""
    words = {id(grid): _text_columns(grid.frame) for grid in table.grids}

    def classes(**names: object) -> Markup:
        shown = " ".join(name for name, there in names.items() if there)
        return Markup(f' class="{shown}"' if shown else "")

    def of_cell(grid: Grid, column: str, cell: str = "") -> Markup:
        return classes(number=column not in words[id(grid)], noise=str(cell).startswith(IN_NOISE))

    return _HTML.render(table=table, classes=classes, of_cell=of_cell, style=Markup(STYLE))


def read_html(page: str) -> tuple[str, str]:
    """Return the title, and the grids with the notes, of a page of `to_html`; both are HTML."""
    title, _, body = page.partition("<body>\n<h1>")[2].partition("</h1>\n")
    return title, body.rpartition("</body>")[0]


_WRITERS = {"csv": to_csv, "tex": to_latex, "md": to_markdown, "html": to_html}


def write_table(table: Table, outputs: Mapping[str, str | Path]) -> None:
    """Write forms of a table (csv, tex, md, html), each whole or not at all."""
    for form, path in outputs.items():
        with atomic_path(path) as scratch:
            scratch.write_text(_WRITERS[form](table))


def _tabular(grid: Grid) -> str:
    text = _text_columns(grid.frame)
    columns = "".join("l" if column in text else "r" for column in grid.frame.columns)
    frame = grid.frame.map(_latex_cell).rename(columns=_latex_header)
    lines = frame.style.hide(axis="index").to_latex(hrules=True, column_format=columns).strip().split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(r"\midrule")) + 1
    for row in sorted({*grid.rules, *grid.headings}, reverse=True):
        added = [r"\midrule"] if row else []
        if row in grid.headings:
            added.append(rf"\multicolumn{{{len(columns)}}}{{@{{}}l}}{{\textit{{{_latex(grid.headings[row])}}}}} \\")
        lines[first + row : first + row] = added
    return "\n".join(lines)


def _text_columns(frame: pd.DataFrame) -> set[str]:
    """Columns whose cells are words; numbers, also where some are missing or out of memory, are aligned to the right."""
    numeric = set(f"0123456789.,±-+–×% [](){IN_NOISE}\N{NO-BREAK SPACE}")

    def words(cell: str) -> bool:
        return bool(set(str(cell).replace(MISSING, "").replace(OOM, "")) - numeric)

    return {column for column in frame.columns if any(map(words, frame[column])) or set(frame[column]) <= {NONE, ""}}


def _latex(text: str) -> str:
    return _UNKNOWN.sub(lambda match: rf"\texttt{{U+{ord(match[0]):04X}}}", str(text).translate(_LATEX))


def _latex_line(text: str) -> str:
    """Running text, in which long words may be broken."""
    return _latex(
        _LONG_WORD.sub(lambda match: re.sub(r"([/_.:,=-]|\w{12})", "\\1\N{ZERO WIDTH SPACE}", match[0]), str(text))
    )


def _latex_wrapped(text: str) -> str:
    """A cell of a column that wraps by itself, also inside names."""
    breakable = re.sub(r"(?<!±)\N{NO-BREAK SPACE}", " ", str(text))
    breakable = re.sub(r"(?<=[/_:={}-])(?=\S)|(?<=[.,])(?=[A-Za-z{])", "\N{ZERO WIDTH SPACE}", breakable)
    return r"\newline ".join(map(_latex_line, breakable.split("\n")))


def _latex_header(text: str) -> str:
    lines = [part for line in str(text).split("\n") for part in textwrap.wrap(line, _HEADER) or [""]]
    return _stacked(lines, "[b]{@{}c@{}}")


def _latex_cell(text: str) -> str:
    return _stacked(textwrap.wrap(str(text), _CELL) or [""], "[t]{@{}l@{}}")


def _stacked(lines: Sequence[str], alignment: str) -> str:
    if len(lines) == 1:
        return _latex(lines[0])
    return rf"\begin{{tabular}}{alignment}" + r"\\".join(map(_latex, lines)) + r"\end{tabular}"


def _markdown(text: str) -> str:
    return str(text).replace("|", r"\|").replace("<", "&lt;").replace("\n", "<br>")
