"""How figures look: variants can be told apart, and an interval is never drawn for something else."""

from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.unit.artifact_helpers import ROOT, made, resolved, saved, served

from pipeline.artifacts import contents, curves, derived, reading
from pipeline.artifacts.drawing import LOOKS, label_ends, looks
from pipeline.artifacts.labels import case_label
from pipeline.run.jobs import read_config, read_profile

PROFILES = sorted(folder.name for folder in Path(ROOT, "profiles").iterdir() if folder.is_dir())


def drawn(entry):
    """Return the looks in a resolved entry's figure by what each stands for."""
    lines = derived.lines(entry)
    variants = [line.case.variant for line in lines]
    if entry["kind"] == "curves":
        return curves.part_looks(lines)
    if entry["kind"] == "reading":
        changed = [name for name in variants if name != "baseline"]
        return looks([*entry["families"], *(reading.curve_name(entry, name) for name in changed)])
    return looks(variants)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_variants_of_a_figure_look_the_same(profile, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = read_config(read_profile(profile))
    figures = [name for name in contents.names(config) if contents.kind_of(config, name).form == "figure"]
    assert len(figures) > 5
    for name in figures:
        entry = contents.resolve(config, name)
        styles = drawn(entry)
        assert len({(style.color, style.marker) for style in styles.values()}) == len(styles), name
        if entry["points"] and entry["kind"] != "headline":  # of bars too, which have no markers
            assert len({style.color for style in styles.values()}) == len(styles), name


def test_variants_without_a_look_of_their_own_get_different_ones():
    names = [f"mine-{number}" for number in range(12)] + ["swiftkv-50"]
    styles = looks(names)
    assert len({(style.color, style.marker) for style in styles.values()}) == len(names)
    assert styles["swiftkv-50"] == looks(["swiftkv-50"])["swiftkv-50"]
    assert {style.color for name, style in styles.items() if name in names[:12]}.isdisjoint(
        color for color, _ in LOOKS.values()
    )


def test_a_figure_names_the_layers_that_prompts_skip_and_a_table_has_the_papers_words():
    figure = resolved("throughput", models=["small"], variants=["baseline", "swiftkv-50-across4"], points=["batch-2k"])
    assert case_label(figure, "baseline") == "unchanged model"
    assert case_label(figure, "swiftkv-50-across4") == "prompts skip 16 of 32 layers, 4 share a cache"
    assert case_label(figure | {"form": "table"}, "swiftkv-50-across4") == "50% SingleInputKV + 4× AcrossKV"


def test_a_rate_that_was_not_sustained_is_an_outline_and_no_interval(tmp_path):
    entry = resolved("latency", models=["small"], variants=["baseline", "swiftkv-50"], points=["interactive-2k"])
    records = []
    for variant, low, high in (("baseline", 2, 2.5), ("swiftkv-50", 4, None)):
        result = {"rates": [], "highest_sustained_rate": low, "lowest_unsustained_rate": high}
        point = {"point": "interactive-2k", "request_rates": entry["points"]["interactive-2k"]["request_rates"]}
        records.append(served("latency", variant, result, settings=point))
    axis = made(entry, serving=saved(tmp_path, records)).figure.axes[-1]
    tops = [(bar.get_y(), bar.get_y() + bar.get_height(), bar.get_fill()) for bar in axis.patches]
    assert tops == [(0, 2, True), (2, 2.5, False), (0, 4, True)]
    assert not [each for each in axis.containers if isinstance(each, ErrorbarContainer)]


@pytest.mark.parametrize("least", [0, 0.9])
def test_names_of_curves_lie_apart_beside_the_axes(least):
    axis = Figure(layout="constrained").subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(axis, [(1, least + place / 100, f"curve {place}\nin two lines", "C0") for place in range(5)])
    axis.figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in axis.texts), key=lambda box: box.y0)
    assert len(boxes) == 5 and all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:], strict=False))
    assert boxes[0].y0 > axis.bbox.y0 - 25 and boxes[-1].y1 < axis.bbox.y1 + 25  # pixels
