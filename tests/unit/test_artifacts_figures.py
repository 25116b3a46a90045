"""Similarity curves, and the wiring from a spec: the CSV is what was measured or follows, equal input gives equal bytes."""

import copy
from pathlib import Path

import pandas as pd
import pytest
from artifact_helpers import LLAMA, scale, typed
from artifact_helpers import record as any_record
from matplotlib.figure import Figure
from tests.unit.serving_helpers import entry as serving_entry
from tests.unit.serving_helpers import make, record, values_csv

from pipeline.artifacts import contents
from pipeline.artifacts.drawing import Drawing, look, write_figure
from pipeline.artifacts.kinds import similarity, wiring
from swiftkv.errors import UserError
from swiftkv.io import write_json

LAYERS = {"one": 4, "two": 6, "three": 5, "big": 9}


def measured(name):
    """A made-up similarity record."""
    layers = range(LAYERS[name])
    pairwise = [[1.0 if i == j else 0.9 - 0.1 * abs(i - j) + 0.01 * min(i, j) for j in layers] for i in layers]
    simscore = [sum(row[layer + 1 :]) / len(row[layer + 1 :]) for layer, row in enumerate(pairwise[:-1])]
    result = {"num_hidden_layers": len(layers), "simscore": simscore, "pairwise": pairwise}
    return any_record("similarity", LLAMA, "baseline", result) | {"model": {"name": name, "title": name.title()}}


def described(names):
    return [{"name": name, "title": name.title(), "published": name} for name in names]


def drawn(folder, small, large=(), without=None, published=(), **more):
    """What the kind draws of records of all these models but those in `without` (name: reason)."""
    entry = {"name": "curves", "label": "paper's Figure 0", "title": "similarity of inputs", "models": described(small)}
    entry |= {"large_models": described(large), "similar_models": described([*small, *large])}
    entry |= {"no_similarity": without or {}, **more}
    paths = [folder / f"{name}.json" for name in (*small, *large) if name not in (without or {})]
    for path in paths:
        write_json(path, measured(path.stem))
    return similarity.make(entry, {"similarity": paths, "published": list(published)})


def test_curves_are_the_scores(tmp_path):
    made = drawn(tmp_path, ["one", "two"])
    axis = made.figure.axes[0]
    lines = [line for line in axis.lines if line.get_marker() != "None"]
    for line, name in zip(lines, ("one", "two"), strict=True):
        assert list(line.get_ydata()) == measured(name)["result"]["simscore"]
        assert list(line.get_xdata()) == [100 * layer / LAYERS[name] for layer in range(LAYERS[name] - 1)]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["One ($L$ = 4)", "Two ($L$ = 6)"]
    assert made.figure.get_suptitle().replace("\n", " ") == "Similarity of inputs (paper's Figure 0)"
    assert list(made.data["layer"]) == [0, 1, 2, 0, 1, 2, 3, 4] and set(made.data["panel"]) == {"simscore"}


def test_one_model_its_text_and_errors_are_named_and_no_marker_is_cut(tmp_path):
    full = measured("one")
    full |= {"settings": {"documents": 50, "max_length": 512, "seed": 42}}
    full |= {"data": {"chats": "train.jsonl", "sources": ["boolq", "coqa", "medqa", "piqa", "sciq"]}}
    full["result"] |= {"documents": 50, "tokens": 9106, "simscore_stderr": [0.01, 0.02, 0.03]}
    write_json(tmp_path / "full.json", full)
    entry = {
        "name": "curves",
        "label": "paper's Figure 0",
        "title": "similarity of inputs",
        "models": described(["one"]),
    }
    entry |= {
        "large_models": [],
        "similar_models": entry["models"],
        "no_similarity": {},
        "notes": ["said in the entry"],
    }
    made = similarity.make(entry, {"similarity": [tmp_path / "full.json"]})
    assert made.figure.get_suptitle().replace("\n", " ") == "One: similarity of inputs (paper's Figure 0)"
    below = made.figure.get_supxlabel().replace("\n", " ")
    assert "said in the entry" in below
    axis, scores = made.figure.axes[0], full["result"]["simscore"]
    heights = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert min(abs(heights - (scores[0] - 0.02))) < 1e-9 and min(abs(heights - (scores[2] + 0.06))) < 1e-9
    assert list(made.data["simscore_stderr"]) == [0.01, 0.02, 0.03]
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    assert left < 0 and right > 100 and low < 0 and high > 1


def test_published_scores_stand_beside_the_papers_model_only(tmp_path):
    lines = [
        ("curves", name, "simscore", "", 0.61, 0.61, "0.61 at layer 2", {"layer": 2}) for name in ("two", "not here")
    ]
    bound = ("curves", "two", "simscore", "", 0.5, "", "above 0.5", {"layer": 3})
    made = drawn(tmp_path, ["one", "two"], published=values_csv(tmp_path, *lines, bound))
    stated = made.data.dropna(subset="simscore_published")
    assert stated[["model", "layer", "simscore_published"]].values.tolist() == [["two", 2, 0.61]]
    star = made.figure.axes[0].lines[-1]
    assert (list(star.get_xdata()), list(star.get_ydata()), star.get_label()) == ([100 / 3], [0.61], "published (Two)")


@pytest.mark.parametrize(("small", "large"), [(["one"], []), (["one", "two"], []), (["one", "two", "three"], ["big"])])
def test_every_matrix_is_there(tmp_path, small, large):
    made = drawn(tmp_path, small, large, matrices=True)
    images = [axis.images[0] for area in made.figure.subfigs for axis in area.axes if axis.images]
    shown = [measured(name)["result"]["pairwise"] for name in [*small, *large]]
    assert [image.get_array().tolist() for image in images] == shown
    pairs = made.data[made.data["panel"] == "pairwise"]
    assert len(pairs) == sum(LAYERS[name] ** 2 for name in [*small, *large])


def test_a_model_without_a_measurement_is_named_with_the_reason(tmp_path):
    made = drawn(tmp_path, ["one", "two"], without={"two": "it cannot be loaded"}, matrices=True)
    axes = [axis for area in made.figure.subfigs for axis in area.axes]
    legend = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert legend[1] == "Two: n/a (it cannot be loaded)" and set(made.data["model"]) == {"one"}


def test_roles_are_resolved_without_doubles_and_empty_ones():
    config = scale()
    config["roles"] |= {"other": LLAMA, "middle": "mistral-7b", "nobody": None}

    def similar(**changes):
        changed = copy.deepcopy(config)
        changed["artifacts"] = {"curves": config["artifacts"]["figureA1"] | {"models": ["small"]} | changes}
        return contents.resolve(typed(changed), "curves"), contents.needs(typed(changed), "curves")["similarity"]

    entry, needed = similar(large_models=["nobody", "other", "large", "small", "middle"])
    assert [model["name"] for model in entry["large_models"]] == ["llama-3.1-70b", "mistral-7b"]
    assert needed == [f"results/similarity/{name}.json" for name in (LLAMA, "llama-3.1-70b", "mistral-7b")]
    assert entry["no_similarity"] == {} and similar(large_models=[])[0]["large_models"] == []
    config["models"]["llama-3.1-70b"]["unavailable"] = {"quality": "too large"}
    entry, needed = similar(large_models=["large"])
    assert entry["no_similarity"] == {"llama-3.1-70b": "too large"} and needed == [f"results/similarity/{LLAMA}.json"]
    config["artifacts"]["figureA1"]["large_models"] = ["misspelt"]
    with pytest.raises(UserError, match="artifacts.figureA1: 'misspelt' is neither a role nor a model"):
        contents.check(typed(config))


def test_equal_input_gives_equal_bytes(tmp_path):
    written = []
    for number in range(2):
        paths = {form: tmp_path / f"{number}.{form}" for form in ("pdf", "png", "csv")}
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([1, 2], [2, 1], label="one")
        write_figure(Drawing(figure, pd.DataFrame({"x": [1, 2]})), paths)
        written.append([path.read_bytes() for path in paths.values()])
    assert written[0] == written[1] and all(written[0])
    assert b"CreationDate" not in written[0][0] and b"Software" not in written[0][1]
    assert written[0][2] == b"x\n1\n2\n"


def test_forward_times_stand_beside_similarities(tmp_path):
    config = scale()
    config["roles"]["nobody"] = None
    config["artifacts"]["figure2"]["similar_models"] = ["mistral", "nobody"]
    needed = contents.needs(typed(config), "figure2")
    assert needed["similarity"] == ["results/similarity/mistral-7b.json"]
    assert {Path(path).parts[3] for path in needed["serving"]} == {LLAMA}
    entry = serving_entry("forward", {"p": {"batch_tokens": [64]}}, [["baseline", "auto"]])
    entry |= {"similar_models": described(["one"]), "no_similarity": {}}
    write_json(tmp_path / "one.json", measured("one"))
    result = {"batch_tokens": [64], "seconds": {"median": [0.01], "min": [0.01]}, "what": "made up"}
    made = make(
        tmp_path, entry, [record("forward_time", "p", "baseline", "auto", result)], similarity=[tmp_path / "one.json"]
    )
    assert len(made.figure.axes) == 3 and list(made.data["panel"]) == ["simscore"] * 3 + ["forward"]


def wired(total, **variants):
    """The kind's entry for variants given as (l, group size), None for the unchanged model."""
    fields = ("num_key_value_layers", "key_value_group_size")
    specs = {
        name: spec and {"num_hidden_layers": total, **dict(zip(fields, spec, strict=True)), "num_key_value_heads": None}
        for name, spec in variants.items()
    }
    return {
        "name": "figure1", "label": "paper's Figure 1", "title": "wiring", "models": described(["m"]),
        "cases": [[name, "auto"] for name in variants], "specs": {"m": specs}, "num_hidden_layers": {"m": total},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("total", "spec", "computed", "sources", "owners"),
    [
        (4, None, 4, [0, 1, 2, 3], [0, 1, 2, 3]),
        (4, (4, 1), 4, [0, 1, 2, 3], [0, 1, 2, 3]),
        (6, (3, 1), 3, [0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 4, 5]),
        (6, (2, 4), 2, [0, 1, 2, 2, 2, 2], [0, 1, 2, 2, 2, 2]),
        (8, (3, 2), 3, [0, 1, 2, 3, 3, 3, 3, 3], [0, 1, 2, 3, 3, 5, 5, 7]),  # the last group is smaller
    ],
)
def test_wiring_of_every_layer(total, spec, computed, sources, owners):
    made = wiring.make(wired(total, some=spec), {})
    data = made.data
    assert list(data["layer"]) == list(range(total))
    assert list(data["computed_for_prompt"]) == [layer < computed for layer in range(total)]
    assert list(data["kv_from_layer"]) == sources and list(data["cache_owner"]) == owners
    # A box a layer for prompts and for generated tokens, and one a cache.
    assert len(made.figure.axes[0].patches) == 2 * total + len(set(owners))


def test_one_panel_a_variant():
    made = wiring.make(wired(32, baseline=None, half=(16, 1), shared=(16, 4)), {})
    titles = [axis.get_title() for axis in made.figure.axes]
    assert titles == ["Baseline", "50% SingleInputKV", "50% SingleInputKV + 4× AcrossKV"]
    assert "16 of 32 layers; 20 of 32 caches" in made.figure.axes[2].texts[-1].get_text()
    assert made.data.groupby("variant")["cache_owner"].nunique().to_dict() == {"baseline": 32, "half": 32, "shared": 20}


def test_the_layers_of_a_model_are_those_of_the_configuration():
    assert contents.resolve(typed(scale()), "figure1")["num_hidden_layers"] == {LLAMA: 32}
    assert contents.needs(typed(scale()), "figure1") == {}


def test_variants_of_one_figure_differ_in_color():
    for name in ("", "one-gpu", "local", "smoke"):
        config = typed(scale(name))
        for artifact in contents.names(config, "figure"):
            variants = {variant for variant, _ in contents.resolve(config, artifact).get("cases", [])}
            if "points" in config["artifacts"][artifact]:
                assert len({look(variant).color for variant in variants}) == len(variants), (name, artifact)
