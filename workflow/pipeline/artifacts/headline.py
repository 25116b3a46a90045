"""Draw speed against quality: the first figure that a reader sees."""

from __future__ import annotations

from pipeline.artifacts import Entry, Files
from pipeline.artifacts.derived import lines
from pipeline.artifacts.drawing import Drawing, looks, new_figure
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Case


def make(entry: Entry, files: Files) -> Drawing:
    """Draw how much of a passage variants can still use over their speed-up.

    A trained variant is drawn at the speed of the one in `served` that computes the same. Each point is labelled by what it
    keeps and by its part, each group of points by the layers that prompts skip.
    """
    numbers, (model,), (point,) = Numbers(entry, files), entry["models"], entry["points"]
    specs, total = entry["specs"][model["name"]], entry["num_hidden_layers"]
    figure = new_figure(3.6, entry, notes=["Whiskers: 95% intervals.", *numbers.notes])
    axis = figure.add_subplot()
    axis.plot(1, 100, "o", color="0.3", markersize=6)
    axis.annotate("unchanged model", (1, 100), (7, -3), textcoords="offset points", color="0.3")
    speeds = {
        specs[name]["num_key_value_layers"]: numbers.value(Case(model["name"], name, "auto"), "speedup", point)
        for name in entry["served"]
        if specs.get(name)
    }
    lowest: dict[int, float] = {}
    shown = [line for line in lines(entry) if specs[line.case.variant]]
    styles = looks(line.case.variant for line in shown)
    for case, part in shown:
        kept, style = numbers.find(case, "passage_kept_percent"), styles[case.variant]
        layers = specs[case.variant]["num_key_value_layers"]
        if not kept or kept["value"] is None or not (speed := speeds.get(layers)):
            continue
        value = kept["value"]
        reach = [[value - kept["low"]], [kept["high"] - value]]
        axis.errorbar(speed, value, reach, fmt=style.marker, color=style.color, markersize=7, capsize=2)
        axis.annotate(f"{value:.0f} %  {part}", (speed, value), (9, -3), textcoords="offset points", color=style.color)
        lowest[layers] = min(kept["low"], lowest.get(layers, 100))
    for layers, low in lowest.items():
        words = f"prompts skip\n{total - layers} of {total} layers:\n{speeds[layers]:.2f}× as fast"
        axis.annotate(
            words, (speeds[layers], low), (0, -8), textcoords="offset points", ha="center", va="top", weight="bold"
        )
    axis.set(
        xlim=(0.95, max([1.5, *(speed for speed in speeds.values() if speed)]) + 0.75), ylim=(-34, 106), yticks=range(0, 101, 20),
        xlabel=f"Throughput at {entry['points'][point]['input_tokens']:,} input tokens, times the unchanged model's",
        ylabel="Of a passage in the prompt,\nthe model can still use (%)",
    )  # fmt: skip
    axis.xaxis.set_major_formatter("{x:g}×")
    return Drawing(figure, numbers.data)
