"""Tables and figures of the shipped reference run have the numbers that they had."""

import json
import lzma
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tests.proof import kit

from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference import folder
from pipeline.run.reference.redraw import REDRAWN, redraw

# The list of artifacts is another, and the demo's records were measured anew.
CHANGED = {"tables/contents.csv", "tables/demo.csv", "tables/demo_quality.csv"}
KEPT = json.loads(lzma.decompress(kit.DATA.read_bytes()))["csv"]


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory):
    """The text of each CSV by its path below the results; figures are drawn, but not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("redrawn"))
        patch.setattr(Figure, "savefig", lambda figure, place, **_: Path(place).write_text("drawn"))
        config = read_config(kit.ROOT, read_profile("local", kit.ROOT))
        why = {file: said for file, said in redraw(config, folder.folder(kit.ROOT, config)) if said}
        assert not why
        place = (REDRAWN / "local").absolute()
        return {str(file.relative_to(place)): file.read_bytes().decode() for file in place.rglob("*.csv")}


def test_numbers_are_those_of_before(redrawn):
    """Columns may come and go; of those that both have, every cell is equal."""
    names = (KEPT.keys() & redrawn.keys()) - CHANGED
    assert len(names) >= 30
    verdicts = {name: kit.compared(KEPT[name], redrawn[name], kit.tables) for name in names}
    assert {name: verdict for name, verdict in verdicts.items() if verdict.startswith("differs")} == {}
