"""Tables and figures of the shipped reference run have the numbers that they had."""

import csv
import io
import json
import lzma
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tests.proof import kit

from pipeline.run.compare import folder
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import REDRAWN, redraw

# The list of artifacts is another, and the demo's records were measured anew.
CHANGED = {"tables/contents.csv", "tables/demo.csv", "tables/demo_quality.csv"}
GONE = {"roofline_speedup_limit", "fraction_of_roofline"}  # columns
KEPT = json.loads(lzma.decompress(kit.DATA.read_bytes()))["csv"]


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory):
    """The text of each CSV by its path below the results; figures are drawn, but not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("redrawn"))
        patch.setattr(Figure, "savefig", lambda figure, place, **_: Path(place).write_text("drawn"))
        config = read_config(kit.ROOT, read_profile("local", kit.ROOT))
        why = {file: said for file, said in redraw(config, folder(kit.ROOT, config)) if said}
        assert not why
        place = (REDRAWN / "local").absolute()
        return {str(file.relative_to(place)): file.read_bytes().decode() for file in place.rglob("*.csv")}


def lines(text):
    """The lines of a CSV without the columns that are gone."""
    return [{name: cell for name, cell in row.items() if name not in GONE} for row in csv.DictReader(io.StringIO(text))]


def test_numbers_are_those_of_before(redrawn):
    names = (KEPT.keys() & redrawn.keys()) - CHANGED
    assert len(names) >= 30
    differing = {
        name: kit.tables(KEPT[name], redrawn[name]) for name in names if lines(KEPT[name]) != lines(redrawn[name])
    }
    assert differing == {}
