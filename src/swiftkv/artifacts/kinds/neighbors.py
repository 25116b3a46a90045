"""Similarity of neighboring layers' keys and values over depth: what AcrossKV lets one cache stand for."""

from __future__ import annotations

import pandas as pd

from swiftkv.artifacts.drawing import COLORS, COLUMN, PAGE, Drawing, headline, legend, line_entry, new_figure
from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files
from swiftkv.artifacts.kinds.similarity import read_similarity, similar
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.text import heading
from swiftkv.errors import UserError
from swiftkv.statistics import ERRORS

_STYLES = {"keys": (COLORS[0], "o"), "values": (COLORS[1], "s")}
_LINES = {"cosine": "-", "cka": "--"}


def make(entry: Entry, files: Files) -> Drawing:
    """One panel a model: mean cosine and CKA of layers l and l + 1, of their keys and of their values."""
    records = list(read_similarity(entry, files).values())
    if not records:
        raise UserError(f"{entry['name']} has nothing to draw: no similarity was measured")
    data = pd.concat([_frame(record) for record in records], ignore_index=True)
    figure = new_figure(COLUMN if len(records) == 1 else PAGE, 2.9)
    headline(figure, heading(entry))
    axes = figure.subplots(1, len(records), sharey=True, squeeze=False)[0]
    for axis, record in zip(axes, records, strict=True):
        for of, (color, marker) in _STYLES.items():
            curve = data[(data["model"] == record.model["name"]) & (data["of"] == of)]
            style = {"color": color, "marker": marker, "markevery": max(1, len(curve) // 8)}
            axis.errorbar(curve["layer"], curve["cosine"], yerr=ERRORS * curve["cosine_stderr"].fillna(0), **style)
            axis.plot(curve["layer"], curve["cka"], linestyle=_LINES["cka"], markerfacecolor="white", **style)
        axis.axhline(0, color="0.75", linewidth=0.8, zorder=0)
        axis.set_ylim(top=1.05)
        axis.set_xlabel("Layer $l$ (from 0)")
        if len(records) > 1:
            axis.set_title(record.model["title"])
    axes[0].set_ylabel("Similarity of layers $l$ and $l + 1$")
    handles = [line_entry(of, color=color, marker=marker) for of, (color, marker) in _STYLES.items()]
    handles += [
        line_entry("cosine, same KV head", color="0.3", linestyle=_LINES["cosine"]),
        line_entry("CKA, all heads", color="0.3", linestyle=_LINES["cka"]),
    ]
    measured = [
        f"{record.model['title']}: {record.result['documents']} chats, {record.result['tokens']:,} tokens."
        for record in records
    ]
    missing = [f"{name}: {reason}." for name, reason in entry["no_similarity"].items()]
    notes = [*measured, *missing, f"Error bars: {ERRORS} standard errors over chats.", *entry.get("notes", [])]
    legend(figure, handles, [], notes)
    return Drawing(figure, data)


def _frame(record: Record) -> pd.DataFrame:
    """One row a pair of neighbors: the first of both layers, counted from 0, of its keys and of its values."""
    if (found := record.value("neighbors")) is None:
        raise UserError(
            f"the similarity of {record.model['name']} was measured without keys and values; delete it and run again"
        )
    total = record.result["num_hidden_layers"]
    head = {"model": record.model["name"], "title": record.model["title"], "num_hidden_layers": total}
    rows = [
        {**head, "of": of, "layer": layer, **{name: found[of][name][layer] for name in found[of]}}
        for of in _STYLES
        for layer in range(total - 1)
    ]
    return pd.DataFrame(rows).astype({"cosine_stderr": float})


def _extra(config: Config, entry: Entry) -> dict:
    return similar(config, entry["models"])


KIND = ArtifactKind("figure", ("models",), ("similarity",), make, extra=_extra)
