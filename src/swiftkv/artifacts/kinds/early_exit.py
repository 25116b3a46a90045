"""What early exit does to decoding: how sure and how right its head is, the tokens that leave, and the time they save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv import config as cfg
from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING, Record, read_records
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import heading, mean_and_error, show, variant_label
from swiftkv.errors import UserError


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """Nothing more than the threshold; refuses variants that cannot exit early.

    Raises:
        UserError: a variant has no early exit head, or an FP8 cache.
    """
    for variant, kv_cache in entry["cases"]:
        try:
            cfg.check_early_exit(config, variant)
            if kv_cache != "auto":
                raise UserError(f"early exit of {variant}/{kv_cache} is not measured, only with the model's own cache")
        except UserError as error:
            raise UserError(f"config, at artifacts.{entry['name']}: {error}") from None
    return {"threshold": config["early_exit"]["threshold"]}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """The early exit of every row."""
    return {"early_exit": paths.early_exit(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """One row a model and variant."""
    records = read_records(entry, files.get("early_exit", ()), "early_exit")
    footnotes, values, printed = Footnotes(), [], []
    for model in entry["models"]:
        for variant, _ in entry["cases"]:
            record = records.find(model["name"], variant)
            row = _values(entry, model, variant, record)
            values.append(row)
            head = {"Model": model["title"]} if len(entry["models"]) > 1 else {}
            printed.append(head | _cells(row, record, footnotes))
    sure = f"above {100 * entry['threshold']:g} %"
    notes = [
        f"Sure: positions of held-out chats where the early exit's largest probability is {sure}. Aligned: of those, and of all "
        "positions, the share where it finds the same token most likely as the full model.",
        f"Exited: of the tokens decoded after the first, which prefill predicts, those whose early exit was {sure}; layers l "
        "and above only got their keys and values. Greedy decoding in Hugging Face, one sequence at a time.",
        "Time ratio: seconds a token with early exit over those of the same prompt at full depth without the second head, "
        "mean of the pairs. Same tokens: places where both answers have the same token; one different token changes all "
        "that follows.",
        *entry.get("notes", []),
        *footnotes.lines(),
    ]
    return Table(entry["name"], heading(entry), pd.DataFrame(values), [Panel(pd.DataFrame(printed))], notes)


def _values(entry: Entry, model: Mapping[str, Any], variant: str, record: Record) -> dict[str, Any]:
    """A line of the CSV; shares are in percent, times in milliseconds a token."""
    alignment = record.result.get("alignment", {})
    decoding = record.result.get("decoding", {})
    sure, every = alignment.get("above_threshold") or {}, alignment.get("all") or {}
    seconds = decoding.get("seconds_per_token") or {}
    return {
        "model": model["name"],
        "title": model["title"],
        "variant": variant,
        "kv_cache": "auto",
        "threshold": record.settings["threshold"] if record.ok else None,
        "positions": every.get("positions"),
        "sure_percent": 100 * sure["positions"] / every["positions"] if record.ok else None,
        **_measure("sure_alignment_percent", sure.get("agreement"), 100),
        **_measure("alignment_percent", every.get("agreement"), 100),
        "prompts": decoding.get("prompts"),
        **_measure("exited_percent", decoding.get("exited"), 100),
        **{f"{way}_ms": 1000 * seconds[way] if seconds.get(way) else None for way in ("full_depth", "early_exit")},
        **_measure("time_ratio", decoding.get("time_ratio")),
        **_measure("equal_tokens_percent", decoding.get("equal_tokens"), 100),
        "missing": None if record.ok else record.why,
    }


def _measure(name: str, number: Mapping[str, Any] | None, scale: float = 1) -> dict[str, float | None]:
    """A value and its standard error, as columns."""
    value, error = (number["value"], number["stderr"]) if number else (None, None)
    return {name: None if value is None else scale * value, f"{name}_stderr": None if error is None else scale * error}


def _cells(row: Mapping[str, Any], record: Record, footnotes: Footnotes) -> dict[str, str]:
    def cell(name: str, decimals: int) -> str:
        value = row[name]
        return MISSING if value is None else mean_and_error(value, row[f"{name}_stderr"], decimals)

    label = row["variant"] if row["missing"] else variant_label(record.spec)
    return {
        "Variant": f"{label} {footnotes.mark(row['missing'])}" if row["missing"] else label,
        "Sure\n(%)": MISSING if row["sure_percent"] is None else show(row["sure_percent"], 3),
        "Aligned where\nsure (%)": cell("sure_alignment_percent", 1),
        "Aligned\n(%)": cell("alignment_percent", 1),
        "Exited\n(%)": cell("exited_percent", 1),
        "ms a token,\nfull depth": MISSING if row["full_depth_ms"] is None else show(row["full_depth_ms"], 3),
        "ms a token,\nearly exit": MISSING if row["early_exit_ms"] is None else show(row["early_exit_ms"], 3),
        "Time\nratio": cell("time_ratio", 3),
        "Same\ntokens (%)": cell("equal_tokens_percent", 1),
    }


KIND = Kind("table", ("models", "variants"), needs, make, extra=extra)
