"""Draw how much a prompt's text lowers the bits of the answer over l: untrained families, trained variants, and SimScore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pandas as pd

from pipeline.artifacts import Entry, Files, Row
from pipeline.artifacts.drawing import Drawing, draw_curve, handle, looks, new_figure
from pipeline.artifacts.frame import TEXTS, cells, interval, known_tasks, row, saved_bits
from pipeline.artifacts.labels import OWN_KEY_VALUES, PAPER_RECIPE
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Record
from pipeline.config.settings import FAMILIES
from pipeline.statistics import bootstrapped_ratio, rank_correlation
from pipeline.text import percent

LOWEST = -60  # percent, of the axis: below, nothing is left to tell apart
_RING = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}


def make(entry: Entry, files: Files) -> Drawing:
    """A panel a task with the share kept over l; below them, by layer, SimScore."""
    numbers = Numbers(entry, files)
    readings = [record for record in numbers.records if record.measure == "reading"]
    rows, scores = map(numbers.of, ("kept", "simscore"))
    numbers.add(differences(readings))
    flops = numbers.of("prompt_flops_percent").drop_duplicates("at").sort_values("at")
    layers = rows["at"].max()  # the unchanged model has all layers
    rows = rows.assign(curve=[curve_name(entry, name) for name in rows["variant"]])
    rows = rows[rows["at"] < layers].sort_values("at")
    tasks, styles = rows["point"].unique(), looks(rows.sort_values("at")["curve"])
    points = [name for name, style in styles.items() if not style.joined]  # side by side, as several are of one l
    squad = rows[rows["point"] == "squad"]
    numbers.add(correlations(squad, scores, entry["share"]))
    handles = [
        handle(f"{name}, untrained" if name in FAMILIES else name, **style.line) for name, style in styles.items()
    ]
    handles.append(handle(f"the first l that keeps {percent(entry['share'])}", **_RING, color="0.4"))
    notes = [
        "Kept: of what a passage tells the unchanged model; 0: as without it. Bands and bars: 95% intervals. "
        "Rings are without training: a trained variant may keep as much at a smaller l.",
        *numbers.notes,
    ]
    figure = new_figure(4.8, entry, handles, notes)
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[3, 1])
    strip = figure.add_subplot(grid[-1, :])
    for place, task in enumerate(tasks):
        axis = figure.add_subplot(grid[0, place])
        axis.axhline(0, color="0.6", linewidth=0.6)
        axis.axhline(100 * entry["share"], color="0.6", linewidth=0.6, linestyle=":")
        for name, style in styles.items():
            curve = rows[(rows["curve"] == name) & (rows["point"] == task)]
            curve = curve.assign(**{key: 100 * curve[key] for key in ("value", "low", "high")})
            if name in points:
                curve = curve.assign(at=curve["at"] + 0.5 * (points.index(name) - (len(points) - 1) / 2))
            draw_curve(axis, curve, style)
            if name in FAMILIES:
                best = lasting(curve, 100 * entry["share"])[:1]
                axis.plot(best["at"], best["value"], color=style.color, **_RING)
        axis.set(
            title=TEXTS[task],
            xlabel="Layers that prompts run, $l$\n(in brackets: FLOPs of a prompt)",
            ylabel="Kept of a passage (%)" if place == 0 else "",
            xlim=(flops["at"].min() - 0.5, layers + 0.5),
            ylim=(LOWEST, 110),
        )
        shown = flops[flops["at"] % 4 == 0]
        axis.set_xticks(shown["at"], [f"{row.at:g}\n({row.value:.0f}%)" for row in shown.itertuples()])
    strip.plot(scores["at"], scores["value"], color="black")
    strip.set(title="Similarity of layer inputs", xlabel="Layer", ylabel="SimScore", xlim=(0, layers), ylim=(0, 1.05))
    return Drawing(figure, numbers.data)


def curve_name(entry: Entry, variant: str) -> str:
    """Return the name of the curve of a family, or of the recipe and the way in which a variant is trained."""
    if variant in FAMILIES:
        return variant
    recipe = entry["recipes"].get(variant)
    name = {None: variant, PAPER_RECIPE: "trained, paper's recipe", "tuned": "trained, our recipe"}.get(
        recipe, f"trained, {recipe}"
    )
    spec = next(specs[variant] for specs in entry["specs"].values())
    return f"{name}, {OWN_KEY_VALUES}" if spec.get("own_key_values") else name


def lasting(curve: pd.DataFrame, share: float) -> pd.DataFrame:
    """The points of a curve over l that keep the share, and all measured points above them too; sorted by l."""
    curve = curve.sort_values("at")
    below = curve.loc[curve["value"] < share, "at"].max()
    return curve if pd.isna(below) else curve[curve["at"] > below]


def correlations(squad: pd.DataFrame, scores: pd.DataFrame, share: float) -> Iterator[Row]:
    """Spearman's rank correlation of SimScore and what a family keeps, over all l, and up to the smallest l that keeps `share`.

    `at` is the largest l.
    """
    both = squad[squad["variant"].isin(FAMILIES)].merge(scores, on="at", suffixes=("", "_scored"))
    for variant, curve in both.groupby("variant", sort=False):
        for most in pd.Series([lasting(curve, share)["at"].min(), curve["at"].max()]).dropna().unique():
            if len(part := curve[curve["at"] <= most]) < 3:
                continue
            sides = ([interval(row, side) for _, row in part.iterrows()] for side in ("", "_scored"))
            known = part.iloc[0][["model", "variant", "point", "kv_cache", "conditions", "file"]]
            yield cells("simscore_correlation", rank_correlation(*sides), at=most, n=len(part), **known)


def differences(records: Sequence[Record]) -> Iterator[Row]:
    """Yield how much more of the same items one record keeps than another at the same l."""
    for first, second in permutations(records, 2):
        model, *members = first.result["members"]
        pairs = [
            (one, other) for one in members for other in second.result["members"] if one["layer"] == other["layer"]
        ]
        same_items = [task for task, items in known_tasks(first).items() if second.result["tasks"].get(task) == items]
        for (member, other), task in product(pairs, same_items):
            apart = saved_bits(model, member, task) - saved_bits(model, other, task)
            more = {"against": second.variant, "point": task, "at": member["layer"], "n": len(apart)}
            yield row(first, "kept", bootstrapped_ratio(apart, saved_bits(model, model, task)), **more)
