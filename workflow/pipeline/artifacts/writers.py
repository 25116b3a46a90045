"""A table and its printed forms: LaTeX with booktabs, Markdown, and a small HTML page for the report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        """Return for each column whether it holds numbers, some of which may be missing; they are aligned to the right."""
        return [
            not any(_NUMBER.sub("", str(cell)) for cell in cells) and not set(cells) <= {NONE, ""}
            for _, cells in self.frame.items()
        ]


class Table(NamedTuple):
    """A table: `values` (the CSV, one row a number), the printed `grids` and the notes below.

    `title` is that of its entry, unless it has one of its own; `label` is the LaTeX label without its "tab:" prefix.
    """

    values: pd.DataFrame
    grids: Sequence[Grid]
    notes: Sequence[str] = ()
    title: str = ""
    label: str = ""


class Footnotes(dict[str, int]):
    """Remarks on single cells, and their numbers; the same text gets the same number."""

    def mark(self, text: str) -> str:
        """Return the mark, such as "[2]", that stands for `text`."""
        return f"[{self.setdefault(text, len(self) + 1)}]"

    def lines(self) -> list[str]:
        """Return the remarks with their marks, in order."""
        return [f"[{number}] {text}" for text, number in self.items()]


def _latex(text: str) -> str:
    return _UNKNOWN.sub(lambda match: rf"\texttt{{U+{ord(match[0]):04X}}}", text.translate(_LATEX))


def _running_text(text: str) -> str:
    """Escape text for LaTeX so that long words may be broken."""
    return _latex(_LONG_WORD.sub(lambda word: re.sub(r"([/_.:,=-]|\w{12})", "\\1\N{ZERO WIDTH SPACE}", word[0]), text))


def _latex_row(cells: Iterable[object], width: int, alignment: str) -> str:
    """Write the cells of a row, each broken into lines of at most `width` characters."""
    broken = []
    for cell in cells:
        lines = [_latex(part) for line in str(cell).split("\n") for part in textwrap.wrap(line, width) or [""]]
        stacked = rf"\begin{{tabular}}{alignment}" + r"\\".join(lines) + r"\end{tabular}"
        broken.append(stacked if len(lines) > 1 else lines[0])
    return " & ".join(broken) + r" \\"


def _markdown(text: object) -> str:
    return str(text).replace("|", r"\|").replace("<", "&lt;").replace("\n", "<br>")


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(["html"]),
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "lines": lambda text: escape(text).replace("\n", Markup("<br>")),
    "latex": _latex,
    "running": _running_text,
    "cells": _latex_row,
}
_TEX = TEMPLATES.overlay("<%", "%>", "<<", ">>", keep_trailing_newline=True)  # braces are TeX's own


def to_latex(table: Table) -> str:
    """Return a table that needs \\usepackage{booktabs,graphicx}.

    It floats, unless it is longer than a page: then pages break between its grids. A grid that is larger than a page is
    scaled down.
    """
    return _TEX.get_template("table.tex").render(table=table)


def to_markdown(table: Table) -> str:
    """Return a heading, the grids as pipe tables, and the notes as a list."""
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


def to_html(table: Table) -> str:
    """Return one page that needs nothing else: the title, the grids and the notes."""
    return TEMPLATES.get_template("table.html").render(table=table, in_noise=IN_NOISE, at_chance=AT_CHANCE)


def read_html(page: str) -> str:
    """Return the grids and notes of a page of `to_html` as HTML."""
    return page.partition("</h1>\n")[2].rpartition("</body>")[0]


def write_table(table: Table, outputs: Mapping[str, Path]) -> None:
    """Write a table as "tex", "md" and "html"."""
    for form, text_of in (("tex", to_latex), ("md", to_markdown), ("html", to_html)):
        write_text(outputs[form], text_of(table))
