"""The contents page against the paper's and the blog post's own lists of tables and figures."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.unit import artifact_helpers
from tests.unit.artifact_helpers import made, typed

from pipeline.artifacts import contents
from swiftkv.errors import UserError

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "resources" / "paper"
ITEMS = {
    "paper": {
        *(f"Figure {number}" for number in ("1", "2, left", "2, right", "3", "4", "A.1", "B.1", "D.1")),
        *(f"Table {number}" for number in (*range(1, 8), "B.1", "B.2", "B.3", "B.4", "B.5", "C.1", "D.1", "D.2")),
        "Appendix E.1",
    },
    "blog": {*(f"Figure {number}" for number in range(1, 8)), *(f"Table {number}" for number in range(1, 9))},
}
PARTS = {"training cost"}


@pytest.fixture(scope="module", params=["", "local", "smoke"], ids=["paper", "local", "smoke"])
def scale(request):
    return artifact_helpers.scale(request.param)


@pytest.fixture
def config():
    return artifact_helpers.scale()


@pytest.mark.parametrize("source", ["paper", "blog"])
def test_every_table_and_figure_is_there_once(config, source):
    found = [entry["item"] for entry in config["artifacts"].values() if entry["source"] == source]
    assert len(set(found)) == len(found)
    assert set(found) - PARTS == ITEMS[source]


def test_published_tables_stand_beside_the_artifact_of_their_name(config):
    shown = {name: set(entry.get("published", [])) for name, entry in config["artifacts"].items()}
    assert set.union(*shown.values()) == {file.stem for file in PAPER.glob("*.csv")}
    assert all(stems - {"values"} <= {name} for name, stems in shown.items())


def test_the_contents_page_is_right_at_every_scale(scale):
    contents.check(typed(scale))
    for name in contents.names(typed(scale)):
        assert contents.needs(typed(scale), name) is not None


def test_a_small_model_can_play_every_role_alone_as_the_page_says(config):
    page = (ROOT / "docs/adding/model.md").read_text()
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "\nroles:" in text)
    said = yaml.safe_load(block)
    readme = re.findall(r"```yaml\n(models:.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    mine = yaml.safe_load(readme[0])["models"]["mine"] | said["models"]["mine"]
    assert set(said["roles"]) < set(config["roles"])
    for role in config["roles"].keys() - {"released"}:  # which has a checkpoint that others trained
        changed = config | {"stand_ins": said["stand_ins"], "models": config["models"] | {"mine": mine}}
        changed["roles"] = config["roles"] | {role: "mine"}
        contents.check(typed(changed))
        for name in contents.names(typed(changed)):
            assert contents.needs(typed(changed), name) is not None


def test_made_up_weights_are_served_and_not_scored():
    config = typed(artifact_helpers.scale("one-gpu"))
    needed = {
        path for name in contents.names(config) for paths in contents.needs(config, name).values() for path in paths
    }
    measured = {path for path in needed if path.startswith("results/") and not path.endswith(".csv")}
    assert measured and all("/serving/" in path for path in measured)


def test_the_page_lists_every_entry_and_has_nothing_made(scale):
    assert contents.needs(typed(scale), "contents") == {}
    table = made(contents.resolve(typed(scale), "contents"))
    lines = table.values.set_index("name")
    assert list(lines.index) == list(scale["artifacts"])
    here = set(contents.names(typed(scale)))
    assert {name for name in lines.index if lines.loc[name, "made"]} == here
    for name, line in lines.iterrows():
        assert [pd.isna(line["reason"]), pd.notna(line["files"])] == [name in here] * 2, name
    assert sum(len(grid.frame) for grid in table.grids) == len(lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tabel"}, "'tabel'.*'table'"),
        ({"panels": [{"columns": ["top_agreement"]}]}, "'top_agreement'.*'top1_agreement'"),
        ({"variants": "unknown"}, "sets.variants"),
        ({"tasks": "winogrande"}, "winogrande"),
        ({"item": None}, "item"),
        ({"models": ["unknown"]}, "'unknown'"),
        ({"points": "lenghts"}, "sets.points"),
        ({"variants": ["baseline/fp16"]}, "/fp8"),
        ({"variants": ["merge-all-layers"]}, "merge-all-layers"),
    ],
)
def test_a_mistake_in_the_page_is_named_with_its_place(config, change, message):
    config["artifacts"]["table2"] |= change
    with pytest.raises(UserError, match=message) as error:
        contents.check(typed(config))
    assert "artifacts.table2" in str(error.value)


@pytest.mark.parametrize(
    ("name", "scale_name", "shown"),
    [
        ("table3", "local", "table2"),
        ("figureB1", "local", "figure4"),
        ("blog_figure4", "local", "figure3"),
        ("figureA1", "local", None),  # it has every pair of layers
        ("blog_table5", "", None),  # beside the blog's own values
    ],
)
def test_what_repeats_the_records_of_another_artifact_is_not_made(name, scale_name, shown):
    config = typed(artifact_helpers.scale(scale_name))
    assert contents.repeated(config, name) == shown
    assert (name in contents.names(config)) == (shown is None)
    if shown:
        with pytest.raises(UserError, match=f"{name} .*{shown}"):
            contents.check_made(config, name)
