"""Similarity curves, and the wiring from a spec: the CSV is what was measured or follows, equal input gives equal bytes."""

import pandas as pd
from artifact_helpers import LLAMA, scale, typed
from artifact_helpers import record as any_record
from matplotlib.figure import Figure
from tests.unit.serving_helpers import values_csv

from pipeline.artifacts import contents
from pipeline.artifacts.drawing import Drawing, look, write_figure
from pipeline.artifacts.kinds import similarity
from swiftkv.io import write_json

LAYERS = {"one": 4, "two": 6, "big": 9}


def measured(name):
    """A made-up similarity record."""
    layers = range(LAYERS[name])
    pairwise = [[1.0 if i == j else 0.9 - 0.1 * abs(i - j) + 0.01 * min(i, j) for j in layers] for i in layers]
    simscore = [sum(row[layer + 1 :]) / len(row[layer + 1 :]) for layer, row in enumerate(pairwise[:-1])]
    result = {"num_hidden_layers": len(layers), "simscore": simscore, "pairwise": pairwise}
    result |= {"simscore_stderr": [0.01] * len(simscore)}
    return any_record("similarity", LLAMA, "baseline", result) | {"model": {"name": name, "title": name.title()}}


def described(names):
    return [{"name": name, "title": name.title(), "published": name} for name in names]


def drawn(folder, small, large=(), without=(), published=(), **more):
    """What the kind draws of records of all these models but those in `without`."""
    entry = {"name": "curves", "label": "paper's Figure 0", "title": "similarity of inputs", "models": described(small)}
    entry |= {"large_models": described(large), "similar_models": described([*small, *large])}
    entry |= {"no_similarity": dict.fromkeys(without, "it cannot be loaded"), **more}
    paths = [folder / f"{name}.json" for name in (*small, *large) if name not in without]
    for path in paths:
        write_json(path, measured(path.stem))
    return similarity.make(entry, {"similarity": paths, "published": list(published)})


def test_published_scores_stand_beside_the_papers_model_only(tmp_path):
    lines = [("curves", name, "simscore", "", 0.61, 0.61, "0.61", {"layer": 2}) for name in ("two", "not here")]
    bound = ("curves", "two", "simscore", "", 0.5, "", "above 0.5", {"layer": 3})
    made = drawn(tmp_path, ["one", "two"], published=values_csv(tmp_path, *lines, bound))
    stated = made.data.dropna(subset="simscore_published")
    assert stated[["model", "layer", "simscore_published"]].values.tolist() == [["two", 2, 0.61]]
    star = made.figure.axes[0].lines[-1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([100 / 3], [0.61])


def test_equal_input_gives_equal_bytes(tmp_path):
    written = []
    for number in range(2):
        paths = {form: tmp_path / f"{number}.{form}" for form in ("pdf", "png", "csv")}
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([1, 2], [2, 1], label="one")
        write_figure(Drawing(figure, pd.DataFrame({"x": [1, 2]})), paths)
        written.append([path.read_bytes() for path in paths.values()])
    assert written[0] == written[1] and written[0][2] == b"x\n1\n2\n"
    assert b"CreationDate" not in written[0][0] and b"Software" not in written[0][1]


def test_variants_of_one_figure_differ_in_color():
    for name in ("", "one-gpu", "local", "smoke"):
        config = typed(scale(name))
        for artifact in contents.names(config, "figure"):
            variants = {variant for variant, _ in contents.resolve(config, artifact).get("cases", [])}
            if "points" in config["artifacts"][artifact]:
                assert len({look(variant).color for variant in variants}) == len(variants), (name, artifact)
