"""The contents page has all of the paper's and the blog post's; every entry is made of made-up measurements of its settings."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from snakemake.utils import update_config
from tests.conftest import refused
from tests.programs import ROOT, read_yaml
from tests.unit import artifact_helpers as helpers
from tests.unit.artifact_helpers import PAPER, SMOL, made, typed

from pipeline.artifacts import contents
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.records import checked_records
from pipeline.measure import run
from swiftkv.io import read_json, write_json

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
    return helpers.scale(request.param)


@pytest.fixture
def config():
    return helpers.scale()


@pytest.mark.parametrize("source", ["paper", "blog"])
def test_every_table_and_figure_is_there_once(config, source):
    found = [entry["item"] for entry in config["artifacts"].values() if entry["source"] == source]
    assert len(set(found)) == len(found)
    assert set(found) - PARTS == ITEMS[source]
    # Published tables stand beside the artifact of their name.
    shown = {name: set(entry.get("published", [])) for name, entry in config["artifacts"].items()}
    assert set.union(*shown.values()) == {file.stem for file in PAPER.glob("*.csv")}
    assert all(stems - {"values"} <= {name} for name, stems in shown.items())


def test_a_small_model_can_play_every_role_alone_as_the_page_says(config):
    page = (ROOT / "docs/adding/model.md").read_text()
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "\nroles:" in text)
    said = yaml.safe_load(block)
    mine = config["models"]["llama-3.2-1b"] | said["models"]["mine"]
    assert set(said["roles"]) < set(config["roles"])
    for role in config["roles"]:
        changed = config | {"stand_ins": said["stand_ins"], "models": config["models"] | {"mine": mine}}
        changed["roles"] = config["roles"] | {role: "mine"}
        contents.check_artifacts(typed(changed))
        for name in contents.names(typed(changed)):
            assert contents.input_files(typed(changed), name) is not None


def test_an_own_model_leaves_out_variants_that_are_read_from_a_checkpoint_it_lacks():
    config = helpers.scale("local")
    config["models"]["mine"] = {key: value for key, value in config["models"][SMOL].items() if key != "checkpoints"}
    assert ["shipped", "auto"] in rows_of(contents.resolve(typed(config), "demo_result"))
    config["roles"]["small"] = "mine"
    contents.check_artifacts(typed(config))
    assert ["shipped", "auto"] not in rows_of(contents.resolve(typed(config), "demo_result"))
    assert not any("shipped" in path for path in contents.input_files(typed(config), "demo_result")["reading"])


def rows_of(entry):
    return [case for part in entry["parts"] for case in part["cases"]]


def test_made_up_weights_are_served_and_not_scored():
    config = typed(helpers.scale("one-gpu"))
    needed = {
        path
        for name in contents.names(config)
        for paths in contents.input_files(config, name).values()
        for path in paths
    }
    measured = {path for path in needed if path.startswith("results/") and not path.endswith(".csv")}
    assert measured and all("/serving/" in path for path in measured)


def test_the_page_lists_every_entry_and_has_nothing_made(scale):
    assert contents.input_files(typed(scale), "contents") == {}
    table = made(contents.resolve(typed(scale), "contents"))
    lines = table.values.set_index("name")
    assert list(lines.index) == list(scale["artifacts"])
    here = set(contents.names(typed(scale)))
    assert {name for name in lines.index if lines.loc[name, "made"]} == here
    for name, line in lines.iterrows():
        assert [pd.isna(line["reason"]), pd.notna(line["files"])] == [name in here] * 2, name
    assert sum(len(grid.frame) for grid in table.grids) == len(lines)


@pytest.mark.parametrize(
    "change, message",
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
    with refused(message) as error:
        contents.check_artifacts(typed(config))
    assert "artifacts.table2" in str(error.value)


@pytest.mark.parametrize(
    "name, scale_name, shown",
    [
        ("table3", "local", "table2"),
        ("figureA1", "local", "figure2_left"),
        ("blog_table5", "", None),  # beside the blog's own values
    ],
)
def test_what_repeats_the_records_of_another_artifact_is_not_made(name, scale_name, shown):
    config = typed(helpers.scale(scale_name))
    assert contents.repeated(config, name) == shown
    assert (name in contents.names(config)) == (shown is None)
    if shown:
        with refused(f"{name} .*{shown}"):
            contents.check_made(config, name)


SHIPPED = {
    "throughput": "batch-2k",
    "latency": "interactive-512",
    "forward_time": "forward",
    "kv_capacity": "kv-capacity",
}


def score(config, model, variant, kv_cache, task):
    asked = config["tasks"][task]
    names = ("metric", "filter", "shots", "limit", "chat_template", "fewshot_as_multiturn")
    settings = {key: asked[key] for key in names} | {"lm_eval_task": asked["task"]}
    questions = [0.0, 1.0] * 50
    return helpers.score(model, variant, task, 0.5, kv_cache=kv_cache, questions=questions, config=config, **settings)


def similarity(config, model):
    return helpers.record("similarity", model, "baseline", helpers.shipped("similarity/*.json"), config=config)


def reading(config, model, variant):
    """A family is made up of the unchanged model's record."""
    known, result = variant if variant in config["variants"] else "baseline", helpers.reading_result(32, 16)
    return helpers.record("reading", model, known, result, config=config) | {"variant": variant}


def training(config, model, variant):
    gpus = config["models"][model]["gpus"]["distill"]
    result = helpers.training(helpers.SMOL, "swiftkv-50", gpus=gpus)["result"]
    return helpers.record("training", model, variant, result, config=config)


def early_exit(config, model, variant):
    result = helpers.shipped("early_exit/*/*.json")
    return helpers.record("early_exit", model, variant, result, settings=config["early_exit"], config=config)


ANSWERED = {  # by no model of the shipped run
    "asked": [["?", "a"]], "answers": {"text": ["b"], "exact_match": [0], "contained": [0], "f1": [0.5]},
    "first_token_ms": 5.0, "samples_ms": [5.0],
}  # fmt: skip


def serving(config, point, model, variant, kv_cache):
    asked, gpus = typed(config).point(point), config["models"][model]["gpus"]["serve"]
    settings = {
        "point": point,
        "tensor_parallel_size": max(1, gpus),
        "quantization": config["models"][model].get("quantization"),
        **run.recorded_settings(run.read_point(point, asked, gpus=gpus, threads=2)),
    }
    if asked["measure"] == "answer":
        result = ANSWERED
    else:
        result = helpers.shipped(f"serving/{SHIPPED.get(asked['measure'], asked['measure'])}/*/baseline/*.json")
    engine = {"vllm": "0.32.0", "compilation": "eager", "kv_cache_tokens": 1000}
    cost = {"request_speedup_limit": 1.5, "prefill_speedup_limit": 1.9, "capacity_limit": 1.3}
    return helpers.record(
        asked["measure"], model, variant, result, kv_cache=kv_cache, settings=settings, config=config, engine=engine,
        cost=cost,
    )  # fmt: skip


MAKERS = {
    "scores": score,
    "fidelity": lambda config, *which: helpers.closeness(*which[:2], 0.5, kv_cache=which[2], config=config),
    "similarity": similarity,
    "reading": reading,
    "training": training,
    "early_exit": early_exit,
    "serving": serving,
}


def provide(config, path):
    """Make up the measurement file that a kind asks for; another artifact's CSV is there already."""
    where = Path(path).relative_to(config["pathvars"]["results"]).with_suffix("").parts
    if where[0] in MAKERS:
        write_json(path, MAKERS[where[0]](config, *where[1:]))
    elif where[0] == "models":
        dimensions = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
        layers = config["models"][where[1]]["num_hidden_layers"]
        write_json(path, {"name": where[1], "config": dimensions | {"num_hidden_layers": layers}})
    else:
        assert where[0] in ("tables", "figures") and Path(path).exists(), path


def test_every_entry_of_the_papers_scale_is_made(tmp_path, monkeypatch):
    """Figures are drawn, but not written."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Figure, "savefig", lambda figure, place, **_: Path(place).write_text("drawn"))
    whole = helpers.scale()
    whole["pathvars"] = {key: str(tmp_path / key) for key in whole["pathvars"]}
    config, results = typed(whole), tmp_path / "results"
    contents.check_artifacts(config)
    made = contents.names(config)
    assert len(made) >= 35
    for artifact in [each for each in made if each != "claims"] + ["claims"]:  # it reads the others
        entry = json.loads(json.dumps(contents.resolve(config, artifact)))
        needed = contents.input_files(config, artifact)
        for path in (path for paths in needed.values() for path in paths if not path.startswith("resources/")):
            if not Path(path).exists():
                provide(whole, path)
        outputs = {form: results / f"{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]}
        make_artifact(entry, needed, list(outputs.values()))
        for path in outputs.values():
            assert path.stat().st_size > 0, path
        if entry["form"] == "table":
            text = outputs["md"].read_text()
            for model in entry["models"]:
                assert model["title"] in text, (artifact, model["title"])


@pytest.mark.parametrize(
    "artifact, change, key",
    [
        ("figure3", {"serving": {"points": {"batch-2k": {"input_tokens": 64}}}}, "input_tokens"),
        ("kv_capacity", {"serving": {"seed": 7}}, "seed"),
        ("figure2", {"variants": {"swiftkv-50": {"acrosskv": 2}}}, "spec"),
        ("tableB1", {"tasks": {"gsm8k": {"limit": 9}}}, "limit"),
        ("recipes", {"fidelity": {"seed": 7}}, "seed"),
        ("early_exit", {"early_exit": {"threshold": 0.5}}, "threshold"),
    ],
)
def test_records_of_other_settings_are_refused(tmp_path, artifact, change, key):
    config = helpers.scale("smoke")
    config["pathvars"] = {key: str(tmp_path / key) for key in config["pathvars"]}
    before = typed(config)
    needed = contents.input_files(before, artifact)
    for path in (path for paths in needed.values() for path in paths if not path.startswith("resources/")):
        provide(config, path)
    checked_records(json.loads(json.dumps(contents.resolve(before, artifact))), needed)
    update_config(config, change)
    with refused(rf"{tmp_path}/\S+\.json was measured with {key} .*{artifact} shows {key} "):
        checked_records(contents.resolve(typed(config), artifact), needed)


def test_config_yaml_has_what_the_paper_and_the_blog_show_and_nothing_else():
    config = typed(helpers.scale())
    shown = {"models": set(), "variants": set(), "recipes": set(), "tasks": set(), "points": set()}
    for entry in (entry for entry in config.entries.values() if entry["source"] != "ours"):
        for part in entry.get("parts", [entry]):
            shown["models"] |= {config.roles[role] for role in part.get("models", [])}
            shown["variants"] |= {variant for variant, _ in contents.cases(config, part.get("variants", []))}
        for section in ("tasks", "points"):
            shown[section] |= set(contents.members(config, section, entry.get(section, [])))
    shown["recipes"] = {config.variants[name].recipe for name in shown["variants"]} - {None}
    paper, ours = (read_yaml(ROOT / name) for name in ("config.yaml", "config/beyond.yaml"))
    for section, names in shown.items():
        stated, added = (one["serving"][section] if section == "points" else one[section] for one in (paper, ours))
        assert stated.keys() == names and not names & (added.keys() - stated.keys()), section
