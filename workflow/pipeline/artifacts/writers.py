"""A table and its four forms: CSV (the frame), LaTeX with booktabs, Markdown, and a small HTML page for the report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from pipeline.artifacts.metrics import AT_CHANCE, IN_NOISE, MISSING, NONE, OOM
from swiftkv.io import write_text

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
_NUMBER = re.compile(rf"{MISSING}|{OOM}|[\d.,±+–×%\s\[\](){IN_NOISE}-]")
_CELL, _HEADER = 44, 20  # characters of a line of a cell and of a header in LaTeX
_BEGIN = r"""% Needs \usepackage{booktabs,graphicx}.
\begingroup\makeatletter\def\@captype{table}\makeatother
\setbox1\vbox{\sloppy\centering\small"""
_FIT = r"""\ifdim\wd0>\linewidth\sbox0{\resizebox{\linewidth}{!}{\usebox0}}\fi
\ifdim\dimexpr\ht0+\dp0>.9\textheight\sbox0{\resizebox*{!}{.9\textheight}{\usebox0}}\fi
\usebox0"""
_END = r"""}
\ifdim\dimexpr\ht1+\dp1>.95\textheight\unvbox1\else\begin{table}\box1\end{table}\fi
\endgroup
"""

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
{% set numeric = grid.numeric %}
<thead><tr>
{%- for column in grid.frame %}<th{{ " class=number" if numeric[loop.index0] }}>{{ column | lines }}</th>{% endfor -%}
</tr></thead>
<tbody>
{% for row in grid.frame.values %}
{% set heading = grid.headings[loop.index0] %}
{% set rule = " class=rule" if loop.index0 in grid.rules else "" %}
{% if heading %}
<tr{{ rule }}><th colspan="{{ row | length }}">{{ heading }}</th></tr>
{% endif %}
<tr{{ rule if not heading }}>
{%- for cell in row %}
{% set gray = noise in (cell | string)[:1] or chance in grid.frame.columns[loop.index0] %}
<td class="{{ "number" if numeric[loop.index0] }}{{ " noise" if gray }}">{{ cell | lines }}</td>
{%- endfor -%}
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

    `rules` are rows with a line above; `headings` are titles over the whole width, by the row they stand above.
    """

    frame: pd.DataFrame
    caption: str | None = None
    rules: Collection[int] = ()
    headings: Mapping[int, str] = {}

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, also where some are missing or out of memory; those are aligned to the right."""
        return [
            not any(_NUMBER.sub("", str(cell)) for cell in cells) and not set(cells) <= {NONE, ""}
            for _, cells in self.frame.items()
        ]


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
        return [f"{self.mark(text)} {text}" for text in self.texts]


def to_csv(table: Table) -> str:
    """The values, empty where missing, with a header line."""
    return table.values.to_csv(index=False, lineterminator="\n")


def to_latex(table: Table) -> str:
    """A table that needs \\usepackage{booktabs,graphicx}.

    It floats, unless it is longer than a page: then pages break between its grids. A grid that is larger than a page is
    scaled down.
    """
    lines = [_BEGIN, rf"\caption{{{_latex_line(table.title)}}}\label{{tab:{table.label}}}"]
    for grid in table.grids:
        lines.append(rf"\par\medskip {_latex_line(grid.caption or '')}\par\smallskip")
        lines += [r"\sbox0{%", _tabular(grid) + "%", "}", _FIT]
    lines.append(r"\par\medskip\raggedright\footnotesize")
    lines += [rf"{_latex_line(note)}\par" for note in table.notes]
    return "\n".join([*lines, _END])


def _tabular(grid: Grid) -> str:
    columns = "".join("r" if numeric else "l" for numeric in grid.numeric)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines.append(_latex_row(grid.frame.columns, _HEADER, "[b]{@{}c@{}}"))
    for number, row in enumerate(grid.frame.to_numpy()):
        if number == 0 or number in grid.rules or number in grid.headings:
            lines.append(r"\midrule")
        if number in grid.headings:
            lines.append(rf"\multicolumn{{{len(columns)}}}{{@{{}}l}}{{\textit{{{_latex(grid.headings[number])}}}}} \\")
        lines.append(_latex_row(row, _CELL, "[t]{@{}l@{}}"))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_row(cells: Iterable[object], width: int, alignment: str) -> str:
    """The cells of a row, each broken into lines of so many characters."""
    broken = []
    for cell in cells:
        lines = [_latex(part) for line in str(cell).split("\n") for part in textwrap.wrap(line, width) or [""]]
        stacked = rf"\begin{{tabular}}{alignment}" + r"\\".join(lines) + r"\end{tabular}"
        broken.append(stacked if len(lines) > 1 else lines[0])
    return " & ".join(broken) + r" \\"


def _latex(text: str) -> str:
    return _UNKNOWN.sub(lambda match: rf"\texttt{{U+{ord(match[0]):04X}}}", text.translate(_LATEX))


def _latex_line(text: str) -> str:
    """Running text, in which long words may be broken."""
    return _latex(_LONG_WORD.sub(lambda word: re.sub(r"([/_.:,=-]|\w{12})", "\\1\N{ZERO WIDTH SPACE}", word[0]), text))


def to_markdown(table: Table) -> str:
    """A heading, the grids as pipe tables, and the notes as a list."""
    parts = [f"## {table.title}"]
    for grid in table.grids:
        if grid.caption:
            parts.append(f"**{grid.caption}**")
        rows = []
        for number, row in enumerate(grid.frame.to_numpy().tolist()):
            if number in grid.headings:
                rows.append([f"*{grid.headings[number]}*", *[""] * (len(row) - 1)])
            rows.append(row)
        frame = pd.DataFrame(rows, columns=grid.frame.columns).map(_markdown).rename(columns=_markdown)
        aligned = ["right" if numeric else "left" for numeric in grid.numeric]
        parts.append(frame.to_markdown(index=False, disable_numparse=True, colalign=aligned))
    if table.notes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _markdown(text: object) -> str:
    return str(text).replace("|", r"\|").replace("<", "&lt;").replace("\n", "<br>")


def to_html(table: Table) -> str:
    """One page that needs nothing else: the title, the grids and the notes."""
    return _HTML.render(table=table, style=Markup(STYLE), noise=IN_NOISE, chance=AT_CHANCE)


def read_html(page: str) -> tuple[str, str]:
    """Return the title, and the grids with the notes, of a page of `to_html`; both are HTML."""
    title, _, body = page.partition("<body>\n<h1>")[2].partition("</h1>\n")
    return title, body.rpartition("</body>")[0]


_WRITERS = {"csv": to_csv, "tex": to_latex, "md": to_markdown, "html": to_html}


def write_table(table: Table, outputs: Mapping[str, Path]) -> None:
    """Write forms of a table (csv, tex, md, html), each whole or not at all."""
    for form, path in outputs.items():
        write_text(path, _WRITERS[form](table))
