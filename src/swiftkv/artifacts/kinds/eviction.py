"""Closeness to the teacher by the share of the KV cache that is left: trained SwiftKV beside caches that drop tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swiftkv.artifacts.columns import Column, grid, measured, models, table
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.records import Record, read_records
from swiftkv.artifacts.scored import CLOSENESS, closeness_columns, rows
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.artifacts.text import variant_label

_PARTS = {
    "trained": "SwiftKV, trained",
    "window": "window: the first tokens and the latest, not trained",
    "attention": "attention: the latest tokens and those that received most attention, not trained",
}


def make(entry: Entry, files: Files) -> Table:
    """One row a share of the cache, the largest first: of each variant, and of each policy of dropping tokens."""
    records, footnotes = read_records(entry, files.get("eviction", ()), "eviction"), Footnotes()
    lines = [
        {
            **row.head,
            "part": _PARTS["trained"],
            "cache_percent": None if row.cache_reduction is None else 100 * (1 - row.cache_reduction),
            "prefill_reduction_percent": 100 * row.prefill_reduction,
            **row.close(),
            "_label": variant_label(row.spec),
        }
        for row in rows(entry, files)
    ]
    lines.sort(key=lambda line: -(line["cache_percent"] or 0))
    for policy in ("window", "attention"):
        for model in entry["models"]:
            record = records.find(model["name"], "baseline")
            lines += [
                _line(model, record, cache) for cache in record.value("caches") or () if cache["policy"] == policy
            ]
            if not record.ok:
                lines.append(_line(model, record, {"policy": policy}))
    columns = [
        *models(lines),
        Column("Cache", "_label"),
        Column("Cache left,\n%", "cache_percent", ".1f"),
        Column("Prefill\nreduction, %", "prefill_reduction_percent", ".1f"),
        *closeness_columns(),
    ]
    settings = entry["settings"]["eviction"]
    notes = [
        f"Closeness to the unchanged model on the same {settings['documents']} held-out chats, each cut at "
        f"{settings['max_length']:,} tokens; standard errors over chats. What drops tokens does so from the first token on, the "
        "prompt's included, so every position is as if decoded; its share is that of a chat's end.",
        f"Window: the first {settings['sinks']} tokens stay, positions are those in the chat (after StreamingLLM, Xiao et al., "
        "2024). Attention: half of the cache is for the latest tokens; by KV head and layer (after H2O, Zhang et al., 2023). "
        "Both are written from the description and skip no prefill.",
        *entry.get("notes", []),
    ]
    return table(entry, lines, [grid(lines, columns, footnotes)], notes, footnotes)


def _line(model: Mapping[str, str], record: Record, cache: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV: one cache that drops tokens; without a measurement it has the reason."""
    cells: dict[str, Any] = {"_fidelity": record.why}
    for measure, (scale, _, _) in CLOSENESS.items():
        cells |= measured(measure, cache.get(measure), scale)
    share = cache.get("share")
    return {
        "model": model["name"],
        "title": model["title"],
        "part": _PARTS[cache["policy"]],
        "variant": cache["policy"],
        "kv_cache": "auto",
        "cache_percent": 100 * cache["held"] if "held" in cache else None,
        "prefill_reduction_percent": 0.0,
        **cells,
        "_label": cache["policy"] if share is None else f"{cache['policy']}, {100 * share:g} %",
    }


KIND = ArtifactKind("table", ("models", "variants"), ("fidelity", "eviction"), make, scored=True)
