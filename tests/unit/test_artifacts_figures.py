"""Figures 2 (left) and A.1: the CSV is what was measured, and equal input gives equal bytes."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from swiftkv.artifacts.figures import figure2_left, figureA1, write_figure
from swiftkv.artifacts.inputs import read_similarities
from swiftkv.errors import UserError
from swiftkv.records import write_json

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


def similarity(name, layers):
    pairwise = [
        [1.0 if i == j else 0.9 - 0.1 * abs(i - j) + 0.01 * min(i, j) for j in range(layers)] for i in range(layers)
    ]
    simscore = [sum(row[layer + 1 :]) / (layers - 1 - layer) for layer, row in enumerate(pairwise[:-1])]
    return {
        "model": name,
        "title": name.title(),
        "num_hidden_layers": layers,
        "simscore": simscore,
        "pairwise": pairwise,
    }


def write(folder, figure, data):
    folder.mkdir()
    paths = [folder / f"figure.{kind}" for kind in ("pdf", "png", "csv")]
    write_figure(figure, data, *paths)
    return paths


def test_figure2_plots_the_scores(tmp_path):
    records = [similarity("one", 4), similarity("two", 6)]
    figure, data = figure2_left(records)
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    for line, record in zip(lines, records, strict=True):
        layers = record["num_hidden_layers"]
        assert list(line.get_ydata()) == record["simscore"]
        assert list(line.get_xdata()) == [100 * layer / layers for layer in range(layers - 1)]
    assert {text.get_text().split(" ")[0] for text in figure.axes[0].get_legend().get_texts()} == {"One", "Two"}
    csv_path = write(tmp_path / "out", figure, data)[2]
    with open(csv_path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["simscore"]) for row in rows] == records[0]["simscore"] + records[1]["simscore"]
    assert [int(row["layer"]) for row in rows] == [0, 1, 2, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("small", "large", "heatmaps"), [(["one"], [], 1), (["one", "two"], [], 2), (["one", "two", "three"], ["big"], 4)]
)
def test_figureA1_has_every_matrix(small, large, heatmaps):
    layers = {"one": 4, "two": 6, "three": 5, "big": 9}
    records = {name: similarity(name, count) for name, count in layers.items()}
    figure, data = figureA1([records[name] for name in small], [records[name] for name in large])
    axes = [axis for area in figure.subfigs for axis in area.axes]
    images = [axis.images[0] for axis in axes if axis.images]
    assert len(images) == heatmaps
    for image, name in zip(images, [*small, *large], strict=True):
        assert image.get_array().tolist() == records[name]["pairwise"]
    assert len([axis for axis in axes if axis.lines]) == (2 if large else 1)
    pairs = data[data["panel"] == "pairwise"]
    assert len(pairs) == sum(layers[name] ** 2 for name in [*small, *large])
    one = pairs[pairs["model"] == "one"].set_index(["layer", "other_layer"])["similarity"]
    assert all(one[i, j] == records["one"]["pairwise"][i][j] for i in range(4) for j in range(4))


@pytest.mark.parametrize("make", [figure2_left, figureA1])
def test_equal_input_gives_equal_bytes(tmp_path, make):
    records = [similarity("one", 4), similarity("two", 6)]
    first = write(tmp_path / "first", *make(records))
    second = write(tmp_path / "second", *make(records))
    for one, two in zip(first, second, strict=True):
        assert one.stat().st_size > 0
        assert one.read_bytes() == two.read_bytes()
    assert b"CreationDate" not in first[0].read_bytes()
    assert b"Software" not in first[1].read_bytes()


@pytest.mark.parametrize("name", ["figure2_left", "figureA1"])
def test_scripts(tmp_path, name):
    record = tmp_path / "similarity.json"
    write_json(record, similarity("one", 4))
    outputs = [f"--output-{kind}={tmp_path / 'figure'}.{kind}" for kind in ("pdf", "png", "csv")]
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--similarity", str(record), *outputs]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all((tmp_path / f"figure.{kind}").stat().st_size for kind in ("pdf", "png", "csv"))
    record.write_text("{}")
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("error: ") and run.stderr.count("\n") == 1


def test_wrong_file_is_named(tmp_path):
    write_json(tmp_path / "x.json", {"model": "x"})
    with pytest.raises(UserError, match="x.json is not a similarity record"):
        read_similarities([tmp_path / "x.json"])
