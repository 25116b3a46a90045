"""Tables and figures of the shipped reference run have the numbers that are kept beside this test.

`python -m tests.unit.test_artifacts_redraw` keeps those of results/reference/local anew.
"""

import csv
import io
import json
import lzma
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.unit.artifact_helpers import ROOT

from pipeline.artifacts.frame import COLUMNS
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.report import read_artifacts, write_tables
from pipeline.run.compare import folder, verdicts
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import GALLERY, REDRAWN, TABLES, redraw

KEPT = Path(__file__).parents[1] / "golden/redrawn.json.xz"
COMPARED = (*COLUMNS[: COLUMNS.index("text")], "status")


FIGURES = {}  # by path


def draw(figure, place, **_):
    """Stand in for writing a figure."""
    FIGURES[Path(place).name] = figure
    Path(place).write_text("drawn")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of all artifacts; figures are drawn, but not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("redrawn"))
        patch.setattr(Figure, "savefig", draw)
        config = read_config(read_profile("local"))
        assert not [why for _, why in redraw(config, folder(ROOT, config)) if why]
        return (REDRAWN / "local").absolute()


@pytest.fixture(scope="module")
def redrawn(place):
    """The rows of each CSV by its path below the results."""
    return tables(place)


def tables(place):
    """The rows of every CSV of the frame in a folder."""
    texts = {str(file.relative_to(place)): file.read_text() for file in sorted(place.rglob("*.csv"))}
    return {name: list(csv.DictReader(io.StringIO(text))) for name, text in texts.items() if ",metric," in text}


def lines_of(rows):
    """Return the keys and numbers of rows, a line each, sorted."""
    return sorted("|".join(row[column] for column in COMPARED) for row in rows)


def close(one, other):
    """Return True if two cells are equal up to the order of additions on another processor."""
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=1e-12)
    except ValueError:
        return False


def test_numbers_are_those_that_are_kept(redrawn):
    kept = json.loads(lzma.decompress(KEPT.read_bytes()))
    assert kept.keys() == redrawn.keys() and sum(map(len, kept.values())) > 2500
    for name, lines in kept.items():
        now = lines_of(redrawn[name])
        assert len(now) == len(lines), name
        for line, before in zip(now, lines, strict=True):
            assert all(map(close, line.split("|"), before.split("|"))), (name, line, before)


def test_the_gallery_s_tables_are_those_of_the_shipped_records(place, tmp_path):
    write_tables(read_artifacts(place), tmp_path / TABLES)
    text = (tmp_path / TABLES).read_text(encoding="utf-8")
    assert text == (ROOT / GALLERY / TABLES).read_text(encoding="utf-8")
    for name in ("table1", "table2", "table4", "table5", "table6", "table7", "tableB1", "tableC1", "tableD1"):
        _, _, part = text.partition(f'<a id="{name}">')
        part = part.partition("<a id=")[0]
        published = read_csv(ROOT / f"resources/paper/{name}.csv")
        rows = [{cell.strip() for cell in line.split("|")} for line in part.splitlines() if line.startswith("|")]
        assert all(
            any({*row.values()} - {row["source"], row.get("note")} <= cells for cells in rows) for row in published
        )


def test_verdicts_and_their_reasons_are_those_that_are_shipped(place):
    now, shipped = (verdicts(folder) for folder in (place, ROOT / "resources/reference/local"))
    assert now.keys() == shipped.keys()
    for name, line in now.items():  # a reason names every way in which the case is not the stated one
        assert [line["verdict"], line["reason"]] == [shipped[name]["verdict"], shipped[name]["reason"]], name


def test_the_readme_has_the_numbers_of_the_records(redrawn):
    def number(table, variant, metric, against=""):
        rows = (
            row
            for row in redrawn[table]
            if (row["variant"], row["metric"], row["against"]) == (variant, metric, against)
        )
        return float(next(rows)["value"])

    def cells(variant, tuned):
        speed, limit = (number("figures/headline.csv", variant, metric) for metric in ("speedup", "speedup_limit"))
        kept = [number("figures/headline.csv", name, "passage_kept_percent") for name in (variant, tuned)]
        lost = number("tables/panel.csv", "baseline", "average", against=variant)
        return [f"{speed:.2f}× (possible: {limit:.2f}×)", *(f"{share:.0f} %" for share in kept), f"{lost:.0f} points"]

    lines = (ROOT / "README.md").read_text().partition("| SmolLM2-135M")[2].splitlines()[2:6]
    shown = [line.strip("|").split("|")[2:] for line in lines]
    for column, variants in enumerate((("swiftkv-33", "swiftkv-33-tuned"), ("swiftkv-50", "swiftkv-50-tuned"))):
        assert [row[column].strip() for row in shown] == cells(*variants)
    lost = number("figures/depth.csv", "shipped", "average", against="baseline")
    assert f"about {-lost:.0f} point of accuracy is lost" in (ROOT / "README.md").read_text()


def test_every_number_says_where_it_is_from(redrawn):
    for name, table in redrawn.items():
        for row in table:
            measured = row["source"] == "measured" and row["status"] == "ok"
            assert not measured or row["file"], (name, row["metric"])
            ends = [float(row[end]) for end in ("low", "value", "high") if row[end]]
            assert len(ends) < 3 or ends == sorted(ends), (name, row["metric"], ends)


def test_figures_can_be_read_at_the_width_of_a_page(place):
    figures = {id(figure): figure for figure in FIGURES.values()}.values()
    assert len(figures) > 10
    for figure in figures:
        figure.draw_without_rendering()
        title = figure.legends[0].get_title().get_text()
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert min(box.x0, box.y0) > -0.05 and box.x1 < width + 0.05 and box.y1 < height + 0.05, title
        small = [text for text in figure.findobj(Text) if text.get_text() and text.get_fontsize() < 8]
        assert not small and "SmolLM2" not in title, (title, small)


if __name__ == "__main__":
    drawn = {name: lines_of(rows) for name, rows in tables(ROOT / REDRAWN / "local").items()}
    KEPT.write_bytes(lzma.compress(json.dumps(drawn).encode(), preset=9 | lzma.PRESET_EXTREME))
