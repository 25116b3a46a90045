"""What a long prompt still gives over l: families without training, trained variants, and SimScore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pandas as pd

from pipeline.artifacts import Entry, Files, Row
from pipeline.artifacts.drawing import PAGE, Drawing, draw_curve, handle, look, new_figure
from pipeline.artifacts.frame import TEXTS, cells, interval, known_tasks, row, saved_bits
from pipeline.artifacts.labels import OWN, PAPER_RECIPE, heading
from pipeline.artifacts.metrics import METRICS, percent
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Record
from pipeline.config.settings import FAMILIES
from pipeline.statistics import bootstrapped_ratio, rank_correlation

LOWEST = -0.6  # of the axis: below, nothing is left to tell apart


def make(entry: Entry, files: Files) -> Drawing:
    """A panel a task with the share kept over l; below them, by layer, SimScore."""
    numbers = Numbers(entry, files)
    readings = [record for record in numbers.records if record.measure == "reading"]
    rows, scores = map(numbers.of, ("kept", "simscore"))
    numbers.add(differences(readings))
    flops = numbers.of("prompt_flops_percent").drop_duplicates("at").sort_values("at")
    layers = rows["at"].max()  # the unchanged model has all layers
    rows = rows.assign(curve=[_curve(entry, name) for name in rows["variant"]])
    tasks, names = (rows[column].unique() for column in ("point", "curve"))
    rows = rows[rows["at"] < layers].sort_values("at")
    squad = rows[rows["point"] == "squad"]
    numbers.add(correlations(squad, scores, entry["share"]))
    handles = [handle(name, **look(name).line) for name in names]
    handles.append(handle("SimScore (Eq. 1)", color="black"))
    notes = [*_notes(numbers, squad, layers), *numbers.notes]
    figure = new_figure(PAGE, 4.1, heading(entry), handles, notes)
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[3, 2])
    strip = figure.add_subplot(grid[-1, :])
    for place, task in enumerate(tasks):
        axis = figure.add_subplot(grid[0, place])
        axis.axhline(0, color="0.6", linewidth=0.6)
        axis.axhline(entry["share"], color="0.6", linewidth=0.6, linestyle=":")
        for name in names:
            curve = rows[(rows["curve"] == name) & (rows["point"] == task)]
            draw_curve(axis, curve, look(name))
            if name in FAMILIES:
                best = lasting(curve, entry["share"])[:1]
                axis.plot(best["at"], best["value"], "o", color=look(name).color, markerfacecolor="none", markersize=8)
        axis.set(
            title=TEXTS[task],
            xlabel="Layers that prompts run, $l$ (above: FLOPs)",
            ylabel=METRICS["kept"].header,
            xlim=(flops["at"].min() - 0.5, layers + 0.5),
            ylim=(LOWEST, 1.25),
        )
        axis.set_xticks(flops["at"][::2])
        axis.secondary_xaxis("top").set_xticks(flops["at"][::2], [f"{value:.0f}%" for value in flops["value"][::2]])
    strip.plot(scores["at"], scores["value"], color="black")
    family = entry["families"][-1]
    draw_curve(strip, squad[squad["variant"] == family], look(family))
    strip.set(title=f"SimScore by layer, SQuAD in chats by $l$ ({family})", xlabel="$l$", xlim=(0, layers))
    return Drawing(figure, numbers.data)


def _curve(entry: Entry, variant: str) -> str:
    """The curve of a family, or of the recipe and the way in which a variant is trained."""
    if variant in FAMILIES:
        return variant
    recipe = entry["recipes"].get(variant)
    name = {None: variant, PAPER_RECIPE: "trained, paper's recipe"}.get(recipe, f"trained, {recipe}")
    spec = next(specs[variant] for specs in entry["specs"].values())
    return f"{name}, {OWN}" if spec.get("own_key_values") else name


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


def _notes(numbers: Numbers, squad: pd.DataFrame, layers: float) -> Iterator[str]:
    """The smallest l of each curve from which on it keeps the entry's share of SQuAD, and the correlations."""
    share, found = numbers.entry["share"], []
    for name, curve in squad.groupby("curve", sort=False):
        least = lasting(curve, share)["at"].min()
        found.append(
            f"{name}: " + ("none" if pd.isna(least) else f"{least:g} ({percent(1 - least / layers)} fewer layers)")
        )
    yield (
        f"Smallest l measured that keeps {percent(share)} of SQuAD in chats: {'; '.join(found)}. Rings are "
        "without training, so upper bounds: trained variants may keep as much at a smaller l."
    )
    ranks = numbers.of("simscore_correlation")
    words = [f"{row.value:+.2f} ({row.variant}, {row.n:g} l up to {row.at:g})" for row in ranks.itertuples()]
    yield f"Spearman's rank correlation of SimScore and what is kept of SQuAD in chats: {', '.join(words)}."


def differences(records: Sequence[Record]) -> Iterator[Row]:
    """How much more of the same items one record keeps than another at the same l."""
    for first, second in permutations(records, 2):
        model, *members = first.result["members"]
        pairs = [
            (one, other) for one in members for other in second.result["members"] if one["layer"] == other["layer"]
        ]
        alike = [task for task, items in known_tasks(first).items() if second.result["tasks"].get(task) == items]
        for (member, other), task in product(pairs, alike):
            apart = saved_bits(model, member, task) - saved_bits(model, other, task)
            more = {"against": second.variant, "point": task, "at": member["layer"], "n": len(apart)}
            yield row(first, "kept", bootstrapped_ratio(apart, saved_bits(model, model, task)), **more)
