"""The contents page against the paper's and the blog post's own lists of tables and figures."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.unit import artifact_helpers
from tests.unit.artifact_helpers import typed

from pipeline.artifacts import contents
from pipeline.artifacts.kinds import KINDS
from swiftkv.errors import UserError

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "resources" / "paper"
ITEMS = {
    "paper": {
        *(f"Figure {number}" for number in ("1", "2", "3", "4", "A.1", "B.1", "D.1")),
        *(f"Table {number}" for number in (*range(1, 8), "B.1", "B.2", "B.3", "B.4", "B.5", "C.1", "D.1", "D.2")),
        "Appendix E.1",
    },
    "blog": {*(f"Figure {number}" for number in range(1, 8)), *(f"Table {number}" for number in range(1, 9))},
}
PARTS = {"Figure 2, left", "training cost"}


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


def test_every_file_of_published_numbers_is_shown(config):
    named = {stem for entry in config["artifacts"].values() for stem in entry.get("published", [])}
    assert named == {file.stem for file in PAPER.glob("*.csv")}


def test_published_tables_stand_beside_the_artifact_of_their_name(config):
    for name, entry in config["artifacts"].items():
        assert set(entry.get("published", [])) - {"values"} <= {name}


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
    config = artifact_helpers.scale("one-gpu")
    needed = {
        path
        for name in contents.names(typed(config))
        for paths in contents.needs(typed(config), name).values()
        for path in paths
    }
    measured = {path for path in needed if path.startswith("results/") and not path.endswith(".csv")}
    assert measured and all("/serving/" in path for path in measured)


def test_the_page_lists_every_entry_and_has_nothing_made(scale):
    assert contents.needs(typed(scale), "contents") == {}
    table = KINDS["contents"].make(contents.resolve(typed(scale), "contents"), {})
    lines = table.values.set_index("name")
    assert list(lines.index) == list(scale["artifacts"])
    made = set(contents.names(typed(scale)))
    assert {name for name in lines.index if lines.loc[name, "made"]} == made
    for name, line in lines.iterrows():
        assert [pd.isna(line["reason"]), pd.notna(line["files"])] == [name in made] * 2, name
    assert sum(len(panel.frame) for panel in table.panels) == len(lines)


def test_the_page_names_the_models_and_files(config):
    lines = KINDS["contents"].make(contents.resolve(typed(config), "contents"), {}).values.set_index("name")
    assert lines.loc["table2", "files"] == "tables/table2.{csv,tex,md,html,json}"
    assert lines.loc["figure3", "files"] == "figures/figure3.{pdf,png,csv,json}"
    assert lines.loc["figure3", "models"] == "small: Llama-3.1-8B-Instruct, large: Llama-3.1-70B-Instruct"
    assert lines.loc["blog_figure2", "reason"] == config["artifacts"]["blog_figure2"]["reason"]
    config["roles"]["small"] = None
    lines = KINDS["contents"].make(contents.resolve(typed(config), "contents"), {}).values.set_index("name")
    assert lines.loc["table2", "reason"] == "no model of this scale plays the role small"
    assert lines.loc["figure3", "models"] == "small: none, large: Llama-3.1-70B-Instruct"
    local = typed(artifact_helpers.scale("local"))
    lines = KINDS["contents"].make(contents.resolve(local, "contents"), {}).values.set_index("name")
    assert lines.loc["figure3", "models"] == "small/large: SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "qualtiy"}, "no kind 'qualtiy' .did you mean 'quality'"),
        ({"variants": "unknown"}, "'unknown' is not defined under sets.variants"),
        ({"variants": ["unknown"]}, "'unknown' is not defined under variants"),
        ({"tasks": "winogrande"}, "under sets.tasks; .*; for one of tasks write .winogrande."),
        ({"caption": ""}, "table2.caption: "),
        ({"item": None}, "item, what the paper calls it, is missing"),
        ({"models": ["unknown"]}, "'unknown' is neither a role"),
        ({"tasks": ["unknown"]}, "'unknown' is not defined under tasks"),
        ({"points": "lengths"}, "no key 'points'"),
        ({"variants": ["baseline/fp16"]}, "there is only /fp8"),
        ({"variants": ["merge-all-layers"]}, "can only be served"),
    ],
)
def test_a_mistake_in_the_page_is_named_with_its_place(config, change, message):
    config["artifacts"]["table2"] |= change
    with pytest.raises(UserError, match=message) as error:
        contents.check(typed(config))
    assert "artifacts.table2" in str(error.value)


def test_speed_beside_quality_needs_both(config):
    config["models"]["llama-3.1-8b"]["unavailable"] = {"quality": "it cannot be scored"}
    assert contents.resolve(typed(config), "figure3")["unmeasured"] == {}
    unmeasured = contents.resolve(typed(config), "speed_and_quality")["unmeasured"]["llama-3.1-8b"]
    assert unmeasured["baseline"] == "it cannot be scored"
    assert not any("llama-3.1-8b" in path for path in contents.needs(typed(config), "speed_and_quality")["scores"])


@pytest.mark.parametrize(
    ("name", "scale_name", "shown"),
    [
        ("table3", "local", "table2"),
        ("figureB1", "local", "figure4"),
        ("blog_figure4", "local", "blog_figure3"),
        ("blog_figure3", "local", None),  # of a whole node, which figure3 is not
        ("figureA1", "local", None),  # it has every pair of layers
        ("blog_table5", "", None),  # beside the blog's own values
    ],
)
def test_what_repeats_the_records_of_another_artifact_is_not_made(name, scale_name, shown):
    config = typed(artifact_helpers.scale(scale_name))
    assert contents.repeated(config, name) == shown
    assert (name in contents.names(config)) == (shown is None)
    if shown:
        with pytest.raises(UserError, match=f"{name} is not made at this scale: {shown} shows the same records"):
            contents.check_made(config, name)
