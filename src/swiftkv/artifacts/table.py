"""A table and its three forms: CSV (numbers), LaTeX with booktabs, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from swiftkv.records import atomic_path

# Typed by hand, as pandas' own escaping leaves characters that pdflatex only knows in math mode.
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "–": "--", "—": "---", "’": "'", "…": r"\ldots{}", "±": r"$\pm$", "×": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\rightarrow$", "·": r"$\cdot$",
    "‖": r"$\parallel$", "⁰": "$^0$", "³": "$^3$", "⁹": "$^9$",
    "\N{NO-BREAK SPACE}": "~",
})  # fmt: skip

_UNKNOWN = re.compile("[^\x00-\xff]")  # what pdflatex stops at; a reason or a title may hold anything


@dataclass(frozen=True)
class Panel:
    """One printed grid: strings under headers that may hold line breaks; `rules` are rows with a line above."""

    frame: pd.DataFrame
    caption: str | None = None
    rules: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table: `values` (the CSV, one row a case), `panels` (what is printed) and the notes below.

    `label` is the LaTeX label without its "tab:" prefix.
    """

    label: str
    title: str
    values: pd.DataFrame
    panels: Sequence[Panel]
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
    """A floating table that needs \\usepackage{booktabs,graphicx}.

    A grid wider than the line is scaled down to it; without graphicx it keeps its width.
    """
    lines = [
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\begin{table}",
        r"\providecommand{\resizebox}[3]{#3}",
        r"\centering\small",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\label{{tab:{table.label}}}",
    ]
    for panel in table.panels:
        if panel.caption:
            lines.append(rf"\par\medskip {_latex(panel.caption)}\par\smallskip")
        lines += [
            r"\sbox0{%",
            _tabular(panel) + "%",
            r"}",
            r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
        ]
    if table.notes:
        lines += [r"\par\medskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
        lines += [rf"{_latex(note)}\par" for note in table.notes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table}", ""])


def to_markdown(table: Table) -> str:
    """A heading, the grids as pipe tables, and the notes as a list."""
    parts = [f"## {table.title}"]
    for panel in table.panels:
        if panel.caption:
            parts.append(f"**{panel.caption}**")
        frame = panel.frame.map(_markdown).rename(columns=_markdown)
        aligned = ["left" if column in _text_columns(panel.frame) else "right" for column in panel.frame.columns]
        parts.append(frame.to_markdown(index=False, disable_numparse=True, colalign=aligned))
    if table.notes:
        parts.append("\n".join(f"- {_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def write_table(table: Table, csv: str | Path, tex: str | Path, markdown: str | Path) -> None:
    """Write the three forms, each whole or not at all."""
    for path, text in ((csv, to_csv(table)), (tex, to_latex(table)), (markdown, to_markdown(table))):
        with atomic_path(path) as scratch:
            scratch.write_text(text)


def _tabular(panel: Panel) -> str:
    text = _text_columns(panel.frame)
    columns = "".join("l" if column in text else "r" for column in panel.frame.columns)
    frame = panel.frame.map(_latex).rename(columns=_latex)
    lines = frame.style.hide(axis="index").to_latex(hrules=True, column_format=columns).strip().split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(r"\midrule")) + 1
    for row in sorted(panel.rules, reverse=True):
        lines.insert(first + row, r"\midrule")
    return "\n".join(lines)


def _text_columns(frame: pd.DataFrame) -> set[str]:
    """Columns whose cells are words; numbers, marked as missing or not, are aligned to the right."""
    numeric = set("0123456789.,±-+–× %na/[]\N{NO-BREAK SPACE}")
    return {column for column in frame.columns if any(set(str(cell)) - numeric for cell in frame[column])}


def _latex(text: str) -> str:
    lines = [_UNKNOWN.sub(_code_point, line.translate(_LATEX)) for line in str(text).split("\n")]
    if len(lines) == 1:
        return lines[0]
    return r"\begin{tabular}[b]{@{}c@{}}" + r"\\".join(lines) + r"\end{tabular}"


def _code_point(match: re.Match[str]) -> str:
    return rf"\texttt{{U+{ord(match[0]):04X}}}"


def _markdown(text: str) -> str:
    return str(text).replace("|", r"\|").replace("\n", "<br>")
