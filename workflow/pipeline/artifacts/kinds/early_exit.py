"""What early exit does to decoding: how sure and how right its head is, the tokens that leave, and the time they save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.artifacts.columns import Column, grid, measured, models, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import Record, read_records
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits, variant_label
from swiftkv.errors import UserError


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """Nothing more than the threshold; refuses variants without an early exit head, or with an FP8 cache."""
    for variant, kv_cache in entry["cases"]:
        try:
            config.check_early_exit(variant)
            if kv_cache != "auto":
                raise UserError(f"early exit of {variant}/{kv_cache} is not measured, only with the model's own cache")
        except UserError as error:
            raise UserError(f"config, at artifacts.{entry['name']}: {error}") from None
    return {"threshold": config.early_exit.threshold}


def make(entry: Entry, files: Files) -> Table:
    """One row a model and variant."""
    records = read_records(entry, files.get("early_exit", ()), "early_exit")
    footnotes = Footnotes()
    lines = [
        _line(model, records.find(model["name"], variant)) for model in entry["models"] for variant, _ in entry["cases"]
    ]
    columns = [
        *models(lines),
        Column(
            "Variant", lambda line: line["_label"] + (f" {footnotes.mark(line['missing'])}" if line["missing"] else "")
        ),
        Column("Sure\n(%)", "sure_percent", digits(3)),
        Column("Aligned where\nsure (%)", "sure_alignment_percent", ".1f"),
        Column("Aligned\n(%)", "alignment_percent", ".1f"),
        Column("Exited\n(%)", "exited_percent", ".1f"),
        Column("ms a token,\nfull depth", "full_depth_ms", digits(3)),
        Column("ms a token,\nearly exit", "early_exit_ms", digits(3)),
        Column("Time\nratio", "time_ratio", ".3f"),
        Column("Same\ntokens (%)", "equal_tokens_percent", ".1f"),
    ]
    panel = grid(lines, columns, footnotes)
    return table(entry, lines, [panel], entry.get("notes", []), footnotes)


def _line(model: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """A line of the CSV; shares are in percent, times in milliseconds a token."""
    alignment, decoding = (record.value(part) or {} for part in ("alignment", "decoding"))
    sure, every = alignment.get("above_threshold") or {}, alignment.get("all") or {}
    seconds = decoding.get("seconds_per_token") or {}
    return {
        "model": model["name"],
        "title": model["title"],
        "variant": record.variant,
        "kv_cache": "auto",
        "threshold": record.settings["threshold"] if record.ok else None,
        "positions": every.get("positions"),
        "sure_percent": 100 * sure["positions"] / every["positions"] if record.ok else None,
        **measured("sure_alignment_percent", sure.get("agreement"), 100),
        **measured("alignment_percent", every.get("agreement"), 100),
        "prompts": decoding.get("prompts"),
        **measured("exited_percent", decoding.get("exited"), 100),
        **{f"{way}_ms": 1000 * seconds[way] if seconds.get(way) else None for way in ("full_depth", "early_exit")},
        **measured("time_ratio", decoding.get("time_ratio")),
        **measured("equal_tokens_percent", decoding.get("equal_tokens"), 100),
        "missing": None if record.ok else record.why,
        "_label": variant_label(record.spec) if record.ok else record.variant,
    }


KIND = ArtifactKind("table", ("models", "variants"), ("early_exit",), make, extra=extra)
