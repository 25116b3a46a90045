"""What a long prompt still gives over l: families without training, trained variants, and the heads that read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pandas as pd

from pipeline.artifacts.drawing import PAGE, Drawing, draw_curve, handle, look, new_figure
from pipeline.artifacts.frame import Row, row, saved_bits
from pipeline.artifacts.labels import OWN, PAPER_RECIPE, heading
from pipeline.artifacts.metrics import METRICS, percent
from pipeline.artifacts.published import Entry, Files, Numbers
from pipeline.artifacts.records import Record
from pipeline.config.settings import FAMILIES
from pipeline.statistics import bootstrapped_ratio
from swiftkv.errors import UserError

TITLES = {
    "squad": "SQuAD, in chats",
    "among": "SQuAD, among three other passages",
    "induction": "Induction, {} words",
    "retrieval": "Made-up facts, {} tokens",
}
HEADS = {
    "previous_token_head": ("0.75", "to the token before"),
    "induction_head": ("#EECC66", "to what followed before"),
}
LOWEST = -0.6  # of the axis: below, nothing is left to tell apart


def make(entry: Entry, files: Files) -> Drawing:
    """A panel a task: the share kept over l, with FLOPs of a prompt above; bars are the attention of the heads that read."""
    numbers = Numbers(entry, files)
    if not numbers.records:
        raise UserError(f"{entry['name']} has nothing to draw: its model is not measured at this scale")
    metrics = dict(iter(numbers.rows.groupby("metric")))
    numbers.add(differences(numbers.records))
    rows, flops = metrics["kept"], metrics["prompt_flops_percent"].drop_duplicates("at").sort_values("at")
    rows = rows.assign(curve=[_curve(entry, variant) for variant in rows["variant"]])
    tasks, names = (list(dict.fromkeys(rows[column])) for column in ("point", "curve"))
    layers, height = int(rows["at"].max()), -(-len(tasks) // 2)  # the unchanged model has all layers
    handles = [handle(name, **look(name).line) for name in names]
    handles += [handle(f"attention {words}", box=True, color=color) for color, words in HEADS.values()]
    notes = [*_smallest(entry, rows, layers), *numbers.notes]
    figure = new_figure(PAGE, 0.6 + 2.3 * height, heading(entry), handles, notes)
    axes = figure.subplots(height, 2, squeeze=False, sharey=True).flat
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    for axis, task in zip(axes, tasks, strict=False):
        axis.axhline(0, color="0.6", linewidth=0.6)
        axis.axhline(entry["share"], color="0.6", linewidth=0.6, linestyle=":")
        for number, (metric, (color, _)) in enumerate(HEADS.items()):
            bars = metrics[metric].drop_duplicates("at")
            axis.bar(bars["at"] + 0.3 + 0.4 * number, bars["value"], 0.4, color=color, zorder=0)
        for name in names:
            shown = (rows["curve"] == name) & (rows["point"] == task) & (rows["at"] < layers)
            curve = rows[shown].sort_values("at")
            draw_curve(axis, curve, look(name))
            best = lasting(curve, entry["share"])[:1]
            axis.plot(best["at"], best["value"], "o", color=look(name).color, markerfacecolor="none", markersize=8)
        kind, _, size = task.partition("-")
        axis.set(
            title=TITLES[kind].format(size), ylabel=f"{METRICS['kept'].header}\n(bars: attention)", ylim=(LOWEST, 1.25)
        )
        axis.set(xlabel="Layers that prompts run, $l$ (above: FLOPs)", xlim=(flops["at"].min() - 0.5, layers + 0.5))
        axis.set_xticks(flops["at"][::2])
        axis.secondary_xaxis("top").set_xticks(flops["at"][::2], [f"{value:.0f}%" for value in flops["value"][::2]])
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


def _smallest(entry: Entry, rows: pd.DataFrame, layers: int) -> Iterator[str]:
    """The smallest l of each family from which on it keeps the stated share of SQuAD, and the reduction that it is."""
    squad = rows[(rows["point"] == "squad") & rows["variant"].isin(FAMILIES)]
    for family, curve in squad.groupby("variant"):
        least = lasting(curve, entry["share"])["at"].min()
        saved = f"l = {least:g}, {percent(1 - least / layers)} fewer layers for a prompt" if least < layers else "none"
        yield f"Smallest l measured that keeps {percent(entry['share'])} of SQuAD in chats, {family}: {saved}."


def differences(records: Sequence[Record]) -> Iterator[Row]:
    """How much more of the same items one record keeps than another at the same l."""
    for first, second in permutations(records, 2):
        model, *members = first.result["members"]
        pairs = [
            (one, other) for one in members for other in second.result["members"] if one["layer"] == other["layer"]
        ]
        alike = [task for task, items in first.result["tasks"].items() if second.result["tasks"].get(task) == items]
        for (member, other), task in product(pairs, alike):
            sides = (saved_bits(model, one, task) for one in (member, other))
            apart = [mine - theirs for mine, theirs in zip(*sides, strict=True)]
            more = {"against": second.variant, "point": task, "at": member["layer"], "n": len(apart)}
            yield row(first, "kept", bootstrapped_ratio(apart, saved_bits(model, model, task)), **more)
