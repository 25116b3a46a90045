"""Where the FLOPs of a prefill token go, and the limits that follow: Table 1 and the blog's Table 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import Record, read_published
from swiftkv.artifacts.table import Panel, Table
from swiftkv.artifacts.text import heading, percent, show, significant, variant_label
from swiftkv.cost import GIBI, GIGA, cost_record
from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.section import Whole

OUTPUT_TOKENS = 256  # of the request limit; what the paper's serving measurements generate

_PAPER_TITLES = {"vocab": "Vocab", "kv": "K,V", "qo": "Q,O", "mlp": "MLP", "attention": "Attn."}
_BLOG_TITLES = {"vocab": "Vocab", "q": "Q", "k": "K", "v": "V", "o": "O", "mlp": "MLP", "attention": "Attn."}

Cells = Callable[[Mapping[str, float]], dict[str, float]]


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
    cells = {operation: significant(gflops[operation], 3) for operation in _BLOG_TITLES}
    return {**cells, "total": sum(cells.values())}


@dataclass(frozen=True)
class _Count:
    """How a source counts and rounds: its columns, digits, and the rule in words."""

    titles: Mapping[str, str]
    cells: Cells
    digits: int
    rule: str


_COUNTS = {
    "paper": _Count(
        _PAPER_TITLES,
        paper_cells,
        2,
        "Q, K, V and O are rounded to two digits before they are added (11 + 11 = 22, 1.3 + 1.3 = 2.6)",
    ),
    "blog": _Count(_BLOG_TITLES, blog_cells, 3, "cells have three digits"),
}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """The model's dimensions."""
    return {"dimensions": paths.dimensions(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """The count of the source; for the paper's also the exact count and the limits.

    The source's way of rounding is only followed where the model and length are its own.

    Raises:
        UserError: the dimensions cannot be read, or the model has no cost model.
    """
    record, shortened = _cost(entry, files)
    published = {
        row["variant"]: row
        for row in read_published(files.get("published", ()))
        if (row["model"], row["sequence_length"]) == (entry["models"][0]["published"], record["sequence_length"])
    }
    count = _COUNTS[entry["count"]]
    values, panel, notes = _counted(entry, record, count, published)
    panels = [panel]
    if entry["count"] == "paper":
        panels += _exact(record, values)
        notes += _exact_notes(record)
    title = f"{heading(entry)}, {record['sequence_length']:,} tokens"
    return Table(entry["name"], title, pd.DataFrame(values), panels, [*entry.get("notes", []), *notes, *shortened])


def _cost(entry: Entry, files: Files) -> tuple[dict[str, Any], list[str]]:
    """The cost record, and a note where the model is made for fewer tokens than asked for."""
    (path,) = files["dimensions"]
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{path} holds no model configuration: it has no `config`")
    model, length, notes = entry["models"][0], entry["sequence_length"], []
    longest = content["config"].get("max_position_embeddings")
    if longest and longest < length:
        notes.append(
            f"{model['title']} takes {longest:,} tokens at most, so not {length:,} as in the {entry['source']}."
        )
        length = longest
    specs = {variant: entry["specs"][model["name"]][variant] for variant, _ in entry["cases"]}
    record = cost_record(model["name"], model["title"], content["config"], specs, length, OUTPUT_TOKENS)
    return record, notes


def _counted(
    entry: Entry, record: Record, count: _Count, published: Mapping[str, Record]
) -> tuple[list[dict[str, Any]], Panel, list[str]]:
    """CSV rows, printed panel and notes of the source's count, published rows below ours."""
    cells_of = count.cells if published else _unrounded(count.titles)
    digits = count.digits if published else 3
    unit, scale = _unit(record)
    base = cells_of(_baseline(record)["published_gflops"])["total"]
    values, printed, rules = [], [], []
    for variant, cost in record["variants"].items():
        cells, theirs = cells_of(cost["published_gflops"]), published.get(variant)
        relative = 100 * cells["total"] / base
        row = {
            "model": record["model"],
            "title": record["title"],
            "variant": variant,
            "label": variant_label(cost["spec"]),
            "sequence_length": record["sequence_length"],
            **{f"{name}_gflops": round(value, 9) for name, value in cells.items()},
            "relative_percent": round(relative, 3),
        }
        if published:
            row |= {f"{name}_unrounded_gflops": value for name, value in cost["published_gflops"].items()}
            columns = (*count.titles, "total", "relative_percent")
            row |= {f"{name}_published": theirs[name] if theirs else None for name in columns}
            rules += [len(printed)] if printed else []
        values.append(row)
        printed.append({
            "Model": row["label"],
            **{title: show(cells[name] * GIGA / scale, digits) for name, title in count.titles.items()},
            "Total": show(cells["total"] * GIGA / scale, 3),
            "Rel.": f"{relative:.1f}%",
        })  # fmt: skip
        if theirs:
            printed.append({
                "Model": "published",
                **{title: f"{theirs[name]:.12g}" for name, title in count.titles.items()},
                "Total": f"{theirs['total']:.12g}",
                "Rel.": f"{theirs['relative_percent']:.1f}%",
            })  # fmt: skip
    letter = "(a) " if entry["count"] == "paper" else ""
    caption = f"{letter}Counted as in the {entry['count']}: {unit} per prefill token"
    notes = [_counting_note(record)]
    if published:
        sources = {row["source"] for row in published.values()}
        remarks = {row["note"] for row in published.values() if row.get("note")}
        notes += [_rounding_note(record, count), f"published: {'; '.join([*sorted(sources), *sorted(remarks)])}."]
    return values, Panel(pd.DataFrame(printed), caption, tuple(rules)), notes


def _exact(record: Record, values: list[dict[str, Any]]) -> list[Panel]:
    """The panels of the exact count and of the limits; their numbers are added to the CSV rows."""
    unit, scale = _unit(record)
    exact, limit_rows = [], []
    for row, cost in zip(values, record["variants"].values(), strict=True):
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
    return [
        Panel(pd.DataFrame(exact), f"(b) Exact count: {unit} per prefill token"),
        Panel(pd.DataFrame(limit_rows), "(c) Limits of each variant, by the exact count"),
    ]


def _unrounded(titles: Mapping[str, str]) -> Cells:
    """Cells of a table without the source's intermediate rounding."""

    def cells(gflops: Mapping[str, float]) -> dict[str, float]:
        joined = {**gflops, "kv": gflops["k"] + gflops["v"], "qo": gflops["q"] + gflops["o"]}
        return {**{name: joined[name] for name in titles}, "total": sum(gflops.values())}

    return cells


def _unit(record: Record) -> tuple[str, int]:
    """The printed unit and its size in FLOPs."""
    small = sum(_baseline(record)["published_gflops"].values()) < 1
    return ("MFLOPs", 10**6) if small else ("GFLOPs", GIGA)


def _baseline(record: Record) -> Mapping[str, Any]:
    """The unchanged model's cost; the first variant's where the table has no baseline."""
    costs = list(record["variants"].values())
    return next((cost for cost in costs if cost["spec"] is None), costs[0])


def _counting_note(record: Record) -> str:
    """How the paper counts."""
    unit, scale = _unit(record)
    arch, gflops = record["architecture"], _baseline(record)["published_gflops"]
    vocab, counted = arch["vocab_size"], arch["published_vocab_size"]
    wide = "" if vocab == counted else f", with the {vocab:,} entries counted as {counted // 1024}K = {counted:,}"
    head, attention = 2 * vocab * arch["hidden_size"] / scale, gflops["attention"] / scale
    return (
        "The paper's count, found by working back from its numbers: Vocab is embedding and output head, each 2 V d "
        f"FLOPs for every token{wide} (the head alone with V = {vocab:,} is {show(head, 3)} {unit}); attention is "
        "causal, S/2 positions on average, and divided by 2³⁰ where all else is divided by 10⁹ (with 10⁹ the "
        f"baseline's is {show(attention * GIBI, 4)}, not {show(attention * GIGA, 4)} {unit})."
    )


def _rounding_note(record: Record, count: _Count) -> str:
    """How the source rounds, and what that does to the totals."""
    baseline = _baseline(record)["published_gflops"]
    exact_base, base = sum(baseline.values()), count.cells(baseline)["total"]
    parts = []
    for cost in record["variants"].values():
        exact, cells = sum(cost["published_gflops"].values()), count.cells(cost["published_gflops"])["total"]
        parts.append(
            f"{variant_label(cost['spec'])} {show(exact, 5)} ({100 * exact / exact_base:.2f}%), printed as "
            f"{show(cells, 3)} ({100 * cells / base:.1f}%)"
        )
    return (
        f"Rounding as published: {count.rule}, and Total and Rel. come from the printed cells. Without rounding: "
        f"{'; '.join(parts)}. This is why the paper has 302 GFLOPs and 51.0% (4.3 + 2.6 + 22 + 113 + 160 = 301.9) "
        "where the blog has 301 GFLOPs and 51.1% (4.29 + 10.7 + 1.34 + 1.34 + 10.7 + 113 + 160 = 301.37)."
    )


def _exact_notes(record: Record) -> list[str]:
    tokens = f"{record['sequence_length']:,}"
    return [
        f"(b) counts only what has to be computed for a prompt of {tokens} tokens: no FLOPs for the embedding look-up, "
        "no logits (the last token's, and its way through the skipped layers, are in the request), causal attention, "
        "everything in units of 10⁹.",
        "(c) are upper bounds: speed-up where compute is the bottleneck, KV capacity where memory is, both against the "
        f"baseline with a bfloat16 cache. A request is {tokens} input and {record['output_tokens']:,} output tokens, "
        "one at a time.",
    ]


KIND = Kind(
    "table",
    ("models", "variants"),
    needs,
    make,
    own={"count": Literal["paper", "blog"], "sequence_length": Whole},
    exactly={"models": 1},
)
