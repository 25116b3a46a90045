"""Table 1 and the blog's Table 2: where the FLOPs of a prefill token go, and the limits that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.table import Panel, Table
from swiftkv.artifacts.text import percent, show, significant, variant_label
from swiftkv.cost import GIBI, GIGA

Published = Mapping[tuple[str, ...], Mapping[str, Any]]

_PAPER_CELLS = {"vocab": "Vocab", "kv": "K,V", "qo": "Q,O", "mlp": "MLP", "attention": "Attn."}
_BLOG_CELLS = {"vocab": "Vocab", "q": "Q", "k": "K", "v": "V", "o": "O", "mlp": "MLP", "attention": "Attn."}


def paper_cells(gflops: Mapping[str, float]) -> dict[str, float]:
    """A row of Table 1 as the paper rounds it, without the last column.

    Q, K, V and O are rounded to two significant digits before they are added (11 + 11 = 22, 1.3 + 1.3 = 2.6), every
    cell is rounded again, and the total is the sum of the printed cells.
    """
    rounded = {operation: significant(value, 2) for operation, value in gflops.items()}
    cells = {
        "vocab": rounded["vocab"],
        "kv": significant(rounded["k"] + rounded["v"], 2),
        "qo": significant(rounded["q"] + rounded["o"], 2),
        "mlp": rounded["mlp"],
        "attention": rounded["attention"],
    }
    return {**cells, "total": sum(cells.values())}


def blog_cells(gflops: Mapping[str, float]) -> dict[str, float]:
    """A row of the blog's Table 2: three significant digits, and the sum of the printed cells."""
    cells = {operation: significant(gflops[operation], 3) for operation in _BLOG_CELLS}
    return {**cells, "total": sum(cells.values())}


def table1(record: Mapping[str, Any], published: Published) -> Table:
    """Table 1 from a cost record (`swiftkv.cost.cost_record`): the paper's count, the exact count, the limits.

    Args:
        record: the cost record.
        published: rows of the paper for this model by (variant, sequence length), possibly none. The paper's way of
            rounding is only followed where there are some.
    """
    rows, count_panel, notes = _published_count(
        record, published, paper_cells, _PAPER_CELLS, "(a) Counted as in the paper"
    )
    unit, scale = _unit(record)
    exact, limit_rows = [], []
    for row, cost in zip(rows, record["variants"].values(), strict=True):
        flops, limits, sizes = cost["flops_per_prefill_token"], cost["limits"], cost["kv_bytes_per_token"]
        row |= {f"exact_{operation}_gflops": flops[operation] / GIGA for operation in flops if operation != "vocab"}
        row |= {
            "exact_total_gflops": cost["total_flops_per_prefill_token"] / GIGA,
            "exact_relative_percent": 100 * cost["relative_flops"],
            "kv_bytes_per_token_bfloat16": sizes["bfloat16"],
            "kv_bytes_per_token_fp8": sizes["fp8"],
            "kv_cache_reduction_percent": 100 * cost["spec"]["kv_cache_reduction"] if cost["spec"] else 0.0,
            "prefill_speedup_limit": limits["prefill_speedup"],
            "request_speedup_limit": limits["request_speedup"],
            "kv_capacity_limit_bfloat16": limits["kv_capacity"]["bfloat16"],
            "kv_capacity_limit_fp8": limits["kv_capacity"]["fp8"],
        }
        exact.append({
            "Model": row["label"],
            "K,V": show((flops["k"] + flops["v"]) / scale, 3),
            "Q,O": show((flops["q"] + flops["o"]) / scale, 3),
            "MLP": show(flops["mlp"] / scale, 3),
            "Attn.": show(flops["attention"] / scale, 3),
            "Total": show(cost["total_flops_per_prefill_token"] / scale, 3),
            "Rel.": f"{row['exact_relative_percent']:.1f}%",
        })  # fmt: skip
        limit_rows.append({
            "Model": row["label"],
            "Prefill\nspeed-up": f"{row['prefill_speedup_limit']:.2f}×",
            "Request\nspeed-up": f"{row['request_speedup_limit']:.2f}×",
            "KV cache,\nKiB a token": f"{sizes['bfloat16'] / 1024:,.4g}",
            "KV cache\nreduction": percent(row["kv_cache_reduction_percent"] / 100),
            "KV\ncapacity": f"{row['kv_capacity_limit_bfloat16']:.2f}×",
            "KV capacity\nwith FP8": f"{row['kv_capacity_limit_fp8']:.2f}×",
        })  # fmt: skip
    tokens = f"{record['sequence_length']:,}"
    notes += [
        f"(b) counts only what has to be computed for a prompt of {tokens} tokens: no FLOPs for the embedding look-up, "
        "no logits (the last token's, and its way through the skipped layers, are in the request), causal attention, "
        "everything in units of 10⁹.",
        "(c) are upper bounds: speed-up where compute is the bottleneck, KV capacity where memory is, both against the "
        f"baseline with a bfloat16 cache. A request is {tokens} input and {record['output_tokens']:,} output tokens, "
        "one at a time.",
    ]
    panels = [
        count_panel,
        Panel(pd.DataFrame(exact), f"(b) Exact count: {unit} per prefill token"),
        Panel(pd.DataFrame(limit_rows), "(c) Limits of each variant, by the exact count"),
    ]
    title = f"Breakdown of transformer operations for {_heading(record)} (paper's Table 1)"
    return Table("table1", title, pd.DataFrame(rows), panels, notes)


def blog_table2(record: Mapping[str, Any], published: Published) -> Table:
    """The blog's Table 2 (FLOPs split over Q, K, V and O) from a cost record; arguments as in `table1`."""
    rows, panel, notes = _published_count(record, published, blog_cells, _BLOG_CELLS, "Counted as in the blog")
    title = f"Prefill compute by operation for {_heading(record)} (blog's Table 2)"
    return Table("blog_table2", title, pd.DataFrame(rows), [panel], notes)


def _published_count(record, published: Published, count, titles: Mapping[str, str], caption: str):
    """CSV rows, printed panel and notes of a table counted as in the paper, published rows below ours."""
    as_printed = bool(published)
    if not as_printed:
        count = _unrounded(titles)
    unit, scale = _unit(record)
    base = count(_baseline(record)["published_gflops"])["total"]
    rows, printed, rules = [], [], []
    for variant, cost in record["variants"].items():
        cells = count(cost["published_gflops"])
        relative = 100 * cells["total"] / base
        theirs = published.get((variant, str(record["sequence_length"])))
        row = {
            "model": record["model"],
            "title": record["title"],
            "variant": variant,
            "label": variant_label(cost["spec"]),
            "sequence_length": record["sequence_length"],
            **{f"{name}_gflops": round(value, 9) for name, value in cells.items()},
            "relative_percent": round(relative, 3),
        }
        if as_printed:
            row |= {f"{name}_unrounded_gflops": value for name, value in cost["published_gflops"].items()}
            printed_names = (*titles, "total", "relative_percent")
            row |= {f"{name}_published": theirs[name] if theirs else None for name in printed_names}
        rows.append(row)
        if as_printed and printed:
            rules.append(len(printed))
        digits = 2 if as_printed and count is paper_cells else 3
        printed.append({
            "Model": row["label"],
            **{title: show(cells[name] * GIGA / scale, digits) for name, title in titles.items()},
            "Total": show(cells["total"] * GIGA / scale, 3),
            "Rel.": f"{relative:.1f}%",
        })  # fmt: skip
        if theirs:
            printed.append({
                "Model": "published",
                **{title: f"{theirs[name]:.12g}" for name, title in titles.items()},
                "Total": f"{theirs['total']:.12g}",
                "Rel.": f"{theirs['relative_percent']:.1f}%",
            })  # fmt: skip
    notes = [_counting_note(record)]
    if as_printed:
        notes.append(_rounding_note(record, count))
    return rows, Panel(pd.DataFrame(printed), f"{caption}: {unit} per prefill token", tuple(rules)), notes


def _unrounded(titles: Mapping[str, str]):
    """Cells of a table without the paper's intermediate rounding."""

    def cells(gflops: Mapping[str, float]) -> dict[str, float]:
        joined = {**gflops, "kv": gflops["k"] + gflops["v"], "qo": gflops["q"] + gflops["o"]}
        return {**{name: joined[name] for name in titles}, "total": sum(gflops.values())}

    return cells


def _unit(record: Mapping[str, Any]) -> tuple[str, int]:
    """The printed unit and its size in FLOPs."""
    small = sum(_baseline(record)["published_gflops"].values()) < 1
    return ("MFLOPs", 10**6) if small else ("GFLOPs", GIGA)


def _baseline(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The unchanged model's cost; the first variant's where the table has no baseline."""
    costs = list(record["variants"].values())
    return next((cost for cost in costs if cost["spec"] is None), costs[0])


def _heading(record: Mapping[str, Any]) -> str:
    return f"{record['title']}, {record['sequence_length']:,} tokens"


def _counting_note(record: Mapping[str, Any]) -> str:
    arch, gflops = record["architecture"], _baseline(record)["published_gflops"]
    unit, scale = _unit(record)
    vocab, counted = arch["vocab_size"], arch["published_vocab_size"]
    wide = "" if vocab == counted else f", with the {vocab:,} entries counted as {counted // 1024}K = {counted:,}"
    head, attention = 2 * vocab * arch["hidden_size"] / scale, gflops["attention"] / scale
    return (
        "The paper's count, found by working back from its numbers: Vocab is embedding and output head, each 2 V d "
        f"FLOPs for every token{wide} (the head alone with V = {vocab:,} is {show(head, 3)} {unit}); attention is "
        "causal, S/2 positions on average, and divided by 2³⁰ where all else is divided by 10⁹ (with 10⁹ the "
        f"baseline's is {show(attention * GIBI, 4)}, not {show(attention * GIGA, 4)} {unit})."
    )


def _rounding_note(record: Mapping[str, Any], count) -> str:
    """How the paper rounds, and what that does to the totals."""
    rule = {
        paper_cells: "Q, K, V and O are rounded to two digits before they are added (11 + 11 = 22, 1.3 + 1.3 = 2.6)",
        blog_cells: "cells have three digits",
    }[count]
    baseline = _baseline(record)["published_gflops"]
    exact_base, base = sum(baseline.values()), count(baseline)["total"]
    parts = []
    for cost in record["variants"].values():
        exact, cells = sum(cost["published_gflops"].values()), count(cost["published_gflops"])["total"]
        parts.append(
            f"{variant_label(cost['spec'])} {show(exact, 5)} ({100 * exact / exact_base:.2f}%), printed as "
            f"{show(cells, 3)} ({100 * cells / base:.1f}%)"
        )
    return (
        f"Rounding as published: {rule}, and Total and Rel. come from the printed cells. Without rounding: "
        f"{'; '.join(parts)}. This is why the paper has 302 GFLOPs and 51.0% (4.3 + 2.6 + 22 + 113 + 160 = 301.9) "
        "where the blog has 301 GFLOPs and 51.1% (4.29 + 10.7 + 1.34 + 1.34 + 10.7 + 113 + 160 = 301.37)."
    )
