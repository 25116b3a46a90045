"""What README.md and docs/gallery show of a reference run, written as its records are kept."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from pipeline.artifacts.report import Artifact, read_artifacts, write_gallery
from swiftkv.errors import UserError
from swiftkv.io import atomic_path

README, GALLERY = Path("README.md"), Path("docs/gallery")
FIGURE, TABLE = "figure3", "speed_and_quality"  # what the README has
BEGIN, END = "<!-- `make reference` writes what follows -->\n", "<!-- until here -->\n"
WIDTH, COLORS = 1200, 128  # of pictures for a screen; a color map needs most of them


def show(results: Path, root: Path) -> str:
    """Write the gallery and the README's part anew from tables and figures that were made; says what was written.

    Args:
        results: folder of the finished run.
        root: folder of the project.

    Raises:
        UserError: the README's figure or table was not made, or its place in README.md is missing.
    """
    made = {artifact.name: artifact for artifact in read_artifacts(results)}
    if lacking := {FIGURE, TABLE} - made.keys():
        raise UserError(f"{results} has no {' and no '.join(sorted(lacking))}, which {README} shows; make it first")
    figures = [artifact for artifact in made.values() if artifact.about["form"] == "figure"]
    with atomic_path(root / GALLERY) as scratch:
        scratch.mkdir()
        for figure in figures:
            _small(figure.file("png"), scratch / f"{figure.name}.png")
        write_gallery(figures, scratch / "README.md")
    text = (root / README).read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{root / README} has no lines {BEGIN.strip()} and {END.strip()}")
    with atomic_path(root / README) as scratch:
        scratch.write_text(f"{before}{begin}{part(made[FIGURE], made[TABLE])}{end}{after}", encoding="utf-8")
    return f"{root / GALLERY}: {len(figures)} figures; {root / README}: {FIGURE} and {TABLE}"


def part(figure: Artifact, table: Artifact) -> str:
    """The README's part: a figure, and the grid of a table with its title."""
    text = table.file("md").read_text(encoding="utf-8")
    title, grid = re.search(r"## (.*)\n\n((?:\|.*\n)+)", re.sub(r" \[\d+\]", "", text)).groups()  # without notes
    picture = f"[![{figure.title}]({GALLERY}/{figure.name}.png)]({GALLERY}/README.md)"
    return f"{picture}\n\n{grid}\n{title}; [all figures]({GALLERY}/README.md).\n"


def _small(picture: Path, output: Path) -> None:
    """Write a picture with fewer pixels and colors."""
    with Image.open(picture) as image:
        width = min(WIDTH, image.width)
        smaller = image.convert("RGB").resize(
            (width, round(image.height * width / image.width)), Image.Resampling.LANCZOS
        )
        smaller.quantize(COLORS).save(output, optimize=True)
