"""Figures: published scores beside measured ones, bytes of equal input, and colors."""

import pandas as pd
from artifact_helpers import LLAMA, record, scale, typed
from matplotlib.figure import Figure
from tests.unit.serving_helpers import values_csv

from pipeline.artifacts import contents
from pipeline.artifacts.drawing import Drawing, look, write_figure
from pipeline.artifacts.kinds import similarity
from swiftkv.io import write_json


def test_published_scores_stand_beside_the_papers_model_only(tmp_path):
    models = [{"name": name, "title": name.title(), "published": name} for name in ("one", "two")]
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for model, path in zip(models, paths, strict=True):
        result = {"num_hidden_layers": 3, "simscore": [0.4, 0.5, 0.6], "pairwise": [[1.0] * 3] * 3}
        write_json(path, record("similarity", LLAMA, "baseline", result) | {"model": model})
    lines = [("curves", name, "simscore", "", 0.61, 0.61, "0.61", {"layer": 2}) for name in ("two", "not here")]
    bound = ("curves", "two", "simscore", "", 0.5, "", "above 0.5", {"layer": 1})
    entry = {"name": "curves", "label": "paper's Figure 0", "title": "similarity of inputs", "models": models}
    entry |= {"large_models": [], "similar_models": models, "no_similarity": {}}
    made = similarity.make(entry, {"similarity": paths, "published": values_csv(tmp_path, *lines, bound)})
    stated = made.data.dropna(subset="simscore_published")
    assert stated[["model", "layer", "simscore_published"]].values.tolist() == [["two", 2, 0.61]]
    star = made.figure.axes[0].lines[-1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([200 / 3], [0.61])


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
            if "points" in config.entries[artifact]:
                assert len({look(variant).color for variant in variants}) == len(variants), (name, artifact)
