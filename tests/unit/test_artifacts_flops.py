"""Table 1 and the blog's Table 2 from a model's dimensions, and how numbers are printed."""

import pytest
from artifact_helpers import PAPER, ROOT, made, scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.text import percent, show, significant, with_error
from swiftkv.errors import UserError
from swiftkv.io import write_json

LARGE = ROOT / "resources/architectures/llama-3.1-70b.json"


@pytest.mark.parametrize("name", ["table1", "blog_table2"])
def test_flops_tables_equal_the_published_ones(name):
    entry = contents.resolve(typed(scale()), name)
    table = made(entry, dimensions=[LARGE], published=[PAPER / f"{name}.csv"])
    printed = table.panels[0].frame.to_dict("records")
    ours, theirs = ([row for row in printed if (row["Model"] == "published") == wanted] for wanted in (False, True))
    assert len(theirs) == len(ours) == len(entry["cases"])
    for rows in zip(ours, theirs, strict=True):
        mine, paper = ({name: float(row[name].rstrip("%")) for name in row if name != "Model"} for row in rows)
        assert mine == paper


def test_dimensions_that_cannot_be_used_are_named(tmp_path):
    entry = contents.resolve(typed(scale()), "table1")
    write_json(tmp_path / "source.json", [1])
    for name in ("source.json", "none.json"):
        with pytest.raises(UserError, match=name):
            made(entry, dimensions=[tmp_path / name])


def test_numbers():
    assert [percent(value) for value in (0.46875, 0.5, 16 / 30, 0, 1 / 3)] == ["46.875%", "50%", "53.3%", "0%", "33.3%"]
    assert (significant(10.737, 2), significant(112.7, 2), significant(0.83886, 2)) == (11, 113, 0.84)
    assert (show(0.0199, 2), show(9.96, 2), show(0, 2)) == ("0.020", "10", "0")
    assert with_error(1.25, None, ".1f") == "1.2"
