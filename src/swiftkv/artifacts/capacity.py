"""Tokens that fit into the KV cache, by variant and KV-cache format: the paper's memory claim, as vLLM reports it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts.inputs import Record
from swiftkv.artifacts.serving import (
    BASELINE,
    MISSING,
    Case,
    Serving,
    absent,
    case_label,
    check_comparable,
    heading,
    limit,
    ratio,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import show
from swiftkv.errors import UserError

_FORMATS = {"auto": "as weights", "fp8": "FP8"}


def kv_capacity(serving: Serving) -> Table:
    """KV tokens of every case, against the baseline's, and the ratio that layers, groups and bytes allow.

    `serving.points` has one point. The ratio is taken at equal cache memory: the budgets differ a little where the
    weights do.

    Raises:
        UserError: several points, or records of different hardware or engines.
    """
    if len(serving.points) != 1:
        raise UserError(f"kv_capacity shows one serving point, not {len(serving.points)}")
    footnotes, values, printed, rules = Footnotes(), [], [], []
    for model in serving.models:
        check_comparable(serving.of(model), "kv_capacity")
        if printed:
            rules.append(len(printed))
        baseline = serving.find(serving.points[0], model, BASELINE)
        for case in serving.cases:
            record = serving.find(serving.points[0], model, case)
            row = _values(serving, model, case, record, baseline)
            values.append(row)
            tokens, size = row["kv_cache_tokens"], row["kv_cache_bytes"]
            reason = "not measured" if record is None else record.get("reason")
            empty = absent(record) + (f" {footnotes.mark(reason)}" if reason and tokens is None else "")
            printed.append({
                **({"Model": serving.title(model)} if len(serving.models) > 1 else {}),
                "Variant": case_label(record).removesuffix(" (FP8 KV)") if record else case.variant,
                "KV format": _FORMATS[case.kv_cache],
                "KV tokens": f"{tokens:,}" if tokens else empty,
                "KV memory,\nGiB": show(size / 2**30, 3) if size else MISSING,
                "KiB a token": f"{row['kv_bytes_per_token'] / 1024:,.4g}" if row["kv_bytes_per_token"] else MISSING,
                "Against\nbaseline": _times(row["capacity_ratio"]),
                "Cost model\nallows": _times(row["capacity_ratio_limit"]),
            })  # fmt: skip
    title = f"{heading(serving)}: tokens that fit into the KV cache"
    notes = [
        "KV tokens are vLLM's own count. Against baseline is the ratio of tokens for one byte of cache: variants with "
        "more weights leave a little less memory to the cache. vLLM rounds to whole blocks.",
        "Cost model allows: layers that keep a cache of their own (l, one for each AcrossKV group, one for "
        "Merge-all-Layers) against the model's L, and one byte a number with FP8 against two.",
    ]
    return Table("kv_capacity", title, pd.DataFrame(values), [Panel(pd.DataFrame(printed), None, tuple(rules))],
                 [*notes, *footnotes.lines()])  # fmt: skip


def _values(serving: Serving, model: str, case: Case, record: Record | None, baseline: Record | None) -> dict[str, Any]:
    """A line of the CSV: one model and case."""
    tokens, size = _measured(record)
    base_tokens, base_size = _measured(baseline)
    if size and base_size:
        gain = ratio(tokens / size, base_tokens / base_size)
    else:
        gain = ratio(tokens, base_tokens)
    bound = limit(record, "capacity_limit")
    return {
        "model": model,
        "title": serving.title(model),
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "status": record["status"] if record else "missing",
        "reason": record.get("reason") if record else None,
        "weights": record.get("weights") if record else None,
        "kv_cache_tokens": tokens,
        "kv_cache_bytes": size,
        "kv_bytes_per_token": ratio(size, tokens),
        "capacity_ratio": gain,
        "capacity_ratio_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
    }


def _measured(record: Record | None) -> tuple[int | None, int | None]:
    if record is None or record["status"] != "ok":
        return None, None
    return record["result"]["kv_cache_tokens"], record["result"].get("kv_cache_bytes")


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}×"
