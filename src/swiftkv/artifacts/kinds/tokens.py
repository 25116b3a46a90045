"""Quality by training tokens: KL to the teacher and top-1 agreement of trainings of different lengths."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts.columns import measured
from swiftkv.artifacts.drawing import COLUMN, DASHES, Drawing, headline, legend, line_entry, log_ticks, look, new_figure
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.records import MISSING, read_published, read_records
from swiftkv.artifacts.text import enumeration, heading, variant_label
from swiftkv.errors import UserError

_COLUMNS = (
    "model", "title", "variant", "kv_cache", "label", "tokens",
    "kl", "kl_stderr", "top1_agreement", "top1_agreement_stderr", "missing",
)  # fmt: skip
_START = "before training"


def make(entry: Entry, files: Files) -> Drawing:
    """Two axes, KL (log) and top-1 agreement, over training tokens; one curve a model and rewiring, from its start."""
    data = _frame(entry, files)
    drawn = data[data["missing"].isna()]
    if drawn.empty:
        raise UserError(f"{entry['name']} has no point to draw: {data['missing'].iloc[0]}")
    published = _published(entry, files)
    notes = entry.get("notes", [])
    figure = new_figure(COLUMN, 4.0, notes)
    headline(figure, heading(entry))
    upper, lower = figure.subplots(2, 1, sharex=True)
    handles, models = [], [model["name"] for model in entry["models"]]
    for label, unsorted in drawn.groupby("label", sort=False):
        curve = unsorted.sort_values("tokens")
        variant = look(curve["variant"].iloc[-1])  # the longest training gives the curve its look
        dashes = DASHES[models.index(curve["model"].iloc[0]) % len(DASHES)]
        style = {"color": variant.color, "marker": variant.marker, "linestyle": dashes}
        for axis, measure in ((upper, "kl"), (lower, "top1_agreement")):
            error = curve[f"{measure}_stderr"].fillna(0)
            axis.errorbar(curve["tokens"], curve[measure], yerr=error, capsize=2, **style)
        handles.append(line_entry(label, **style))
    for tokens in published:
        for axis in (upper, lower):
            axis.axvline(tokens, color="0.4", linestyle=(0, (1, 2)), linewidth=1)
        upper.annotate(
            _short(tokens), (tokens, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=7
        )
    _axes(upper, lower, drawn)
    missing = data[data["missing"].notna()]
    absent = [f"{row.variant}: {MISSING} ({row.missing})" for row in missing.itertuples()]
    stated = [f"training tokens {enumeration([_short(tokens) for tokens in published])} (dotted)"] if published else []
    legend(figure, handles, stated, [*notes, *absent])
    return Drawing(figure, data)


def _frame(entry: Entry, files: Files) -> pd.DataFrame:
    """What is drawn: one row a training, and one a curve for the rewired model before training (0 tokens)."""
    fidelity = read_records(entry, files.get("fidelity", ()), "fidelity")
    training = read_records(entry, files.get("training", ()), "training")
    rows: list[dict[str, Any]] = []
    started = set()
    for model in entry["models"]:
        for variant, kv_cache in entry["cases"]:
            close, trained = fidelity.find(model["name"], variant, kv_cache), training.find(model["name"], variant)
            head = {"model": model["name"], "title": model["title"], "variant": variant, "kv_cache": kv_cache}
            if missing := [record.why for record in (close, trained) if not record.ok]:
                rows.append({**head, "missing": missing[0]})
                continue
            name = f"{model['title']}, " if len(entry["models"]) > 1 else ""
            start_from = trained.settings["start"]
            head["label"] = f"{name}{variant_label(close.spec)}, {start_from} start"
            trainings = [({"tokens": trained.result["tokens"]}, close.result)]
            if close.result["start"] and head["label"] not in started:
                started.add(head["label"])
                trainings.insert(0, ({"variant": _START, "tokens": 0}, close.result["start"]))
            for training_of, result in trainings:
                agreement = measured("top1_agreement", result["top1_agreement"], 100)
                rows.append(head | training_of | measured("kl", result["kl"]) | agreement)
    return pd.DataFrame(rows, columns=_COLUMNS)


def _published(entry: Entry, files: Files) -> list[float]:
    """The training tokens the sources state for the models that ran; they do not agree."""
    ran = {model["published"] for model in entry["models"]}
    stated = {
        row["low"]
        for row in read_published(files.get("published", ()))
        if row["item"] in ("training_cost", entry["name"])
        and row["quantity"] == "training_tokens"
        and row["model"] in ran
    }
    return sorted(tokens for tokens in stated if tokens)


def _axes(upper, lower, drawn: pd.DataFrame) -> None:
    upper.set_yscale("log")
    log_ticks(upper.yaxis, subs=(1, 1.5, 2, 3, 5, 7), numticks=20)
    upper.set_ylabel("KL to teacher\n(nats a token)")
    lower.set_ylabel("Top-1 agreement (%)")
    lower.set_xlabel("Training tokens (0: before training)")
    lower.xaxis.set_major_formatter(lambda value, _: _short(value))
    for axis in (upper, lower):
        axis.grid(axis="y", color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)


def _short(tokens: float) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if abs(tokens) >= size:
            return f"{tokens / size:.4g}{letter}"
    return f"{tokens:g}"


KIND = ArtifactKind("figure", ("models", "variants"), ("fidelity", "training"), make)
