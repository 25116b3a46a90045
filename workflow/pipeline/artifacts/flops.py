"""FLOPs per prefill token by operation, and the speed-up limits that follow: Table 1 and the blog's Table 2.

The published tables count FLOPs in another way than `swiftkv.cost`, inferred from their numbers for Llama-3.1-70B at 128K
tokens: embedding and head cost 2 V d FLOPs each for every token; "128K" (V = 128,256) is 131,072; attention is divided by
2^30, everything else by 10^9, so it is 160 and not 172. Where model and length are the source's, its cells are rounded to
two (paper) or three digits (blog), and the total is the sum of the rounded cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.frame import Row, frame
from pipeline.artifacts.labels import heading, variant_label
from pipeline.artifacts.metrics import NONE, percent, show, significant
from pipeline.artifacts.published import number, read_csv
from pipeline.artifacts.records import in_project
from pipeline.artifacts.tables import Column, print_grid
from pipeline.artifacts.writers import Table
from pipeline.statistics import exact
from swiftkv.cost import GIBI, GIGA, KV_DTYPE_BYTES, Dimensions, kv_bytes_per_token, prefill_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

OUTPUT_TOKENS = 256  # of the request limit; what the paper's serving measurements generate
# Operations of each source with their headers, and its significant digits.
COUNTS = {
    "paper": ({"vocab": "Vocab", "kv": "K,V", "qo": "Q,O", "mlp": "MLP", "attention": "Attn."}, 2),
    "blog": (
        {"vocab": "Vocab", "q": "Q", "k": "K", "v": "V", "o": "O", "mlp": "MLP", "attention": "Attn."},
        3,
    ),
}
_EXACT = {"q": "Q", "k": "K", "v": "V", "o": "O", "mlp": "MLP", "attention": "Attn.", "total": "Total"}
_LIMITS = {
    "prefill_speedup_limit": ("Prefill\nspeed-up", ".2f|×"),
    "request_speedup_limit": ("Request\nspeed-up", ".2f|×"),
    "kv_kib_per_token": ("KV cache,\nKiB a token", ",.4g"),
    "kv_capacity_limit_bfloat16": ("KV\ncapacity", ".2f|×"),
    "kv_capacity_limit_fp8": ("KV capacity\nwith FP8", ".2f|×"),
}


def published_gflops(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """GFLOPs per prefill token by operation, counted as the sources do (see the module's docstring)."""
    flops = prefill_flops(arch, spec, tokens)
    layers = arch.num_hidden_layers if spec is None else spec.num_key_value_layers
    # The causal mean over S positions is (S + 1) / 2; the sources count S / 2.
    surplus = layers * arch.pair_flops / 2
    gflops = {operation: count / tokens / GIGA for operation, count in flops.items()}
    vocabulary = arch.vocab_size if arch.vocab_size % 1024 == 0 else round(arch.vocab_size / 1000) * 1024
    gflops["vocab"] = 4 * vocabulary * arch.hidden_size / GIGA
    gflops["attention"] = (flops["attention"] / tokens - surplus) / GIBI
    return gflops


def counted(gflops: Mapping[str, float], source: str, *, rounded: bool) -> dict[str, float]:
    """A row of a source's table by operation, with its total."""
    operations, digits = COUNTS[source]

    def cut(value: float) -> float:
        return significant(value, digits) if rounded else value

    cells = {operation: cut(value) for operation, value in gflops.items()}
    cells |= {"kv": cut(cells["k"] + cells["v"]), "qo": cut(cells["q"] + cells["o"])}
    cells = {operation: cells[operation] for operation in operations}
    return {**cells, "total": sum(cells.values())}


def limits(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """The exact count in GFLOPs per prefill token, and the limits of a variant."""
    flops, base = prefill_flops(arch, spec, tokens), prefill_flops(arch, None, tokens)
    found = {f"exact_{operation}_gflops": count / tokens / GIGA for operation, count in flops.items()}
    del found["exact_vocab_gflops"]
    sizes = {dtype: kv_bytes_per_token(arch, spec, dtype) for dtype in KV_DTYPE_BYTES}
    most = speedup_limits(arch, spec, tokens, OUTPUT_TOKENS)
    return found | {
        "exact_total_gflops": sum(flops.values()) / tokens / GIGA,
        "exact_relative_percent": 100 * sum(flops.values()) / sum(base.values()),
        "kv_kib_per_token": sizes["bfloat16"] / 1024,
        "kv_cache_reduction_percent": 100 * spec.kv_cache_reduction(arch.num_key_value_heads) if spec else 0.0,
        "prefill_speedup_limit": most["prefill_speedup"],
        "request_speedup_limit": most["request_speedup"],
        **{f"kv_capacity_limit_{dtype}": kv_bytes_per_token(arch, None) / size for dtype, size in sizes.items()},
    }


def make(entry: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Table:
    """The count of the source; of the paper's also the exact count and the limits."""
    (model,), source = entry["models"], entry["count"]
    arch, length, dimensions = _dimensions(files["dimensions"][0], entry["sequence_length"])
    theirs = {
        line["variant"]: (line, in_project(file))
        for file in files.get("published", ())
        for line in read_csv(file)
        if (line["model"], number(line["sequence_length"])) == (model["published"], length)
    }
    cells: dict[tuple[str, str, str], Row] = {}
    for row in _rows(entry, arch, length, theirs, dimensions):
        cells[row["source"], row["variant"], row["metric"]] = row
    variants = [variant for variant, _ in entry["cases"]]
    titles = {variant: variant_label(entry["specs"][model["name"]][variant]) for variant in variants}

    def cell(row: tuple[str, str], metric: str, form: str, scale: float = 1) -> str:
        found = cells.get((*row, metric))
        return "" if found is None else found["text"] or show(found["value"] * scale, form)

    small = cells["arithmetic", variants[0], "total_gflops"]["value"] < 1
    unit, scale = ("MFLOPs", 1000) if small else ("GFLOPs", 1)
    name = Column("Model", lambda row: "published" if row[0] == "published" else titles[row[1]])
    rows = [row for variant in variants for row in (("arithmetic", variant), ("published", variant))]
    rows = [row for row in rows if row[0] == "arithmetic" or row[1] in theirs]
    digits = COUNTS[source][1] if theirs else 3
    columns = [name, *_amounts(cell, COUNTS[source][0], "{}_gflops", f"s{digits}", scale)]
    columns += _amounts(cell, {"total": "Total"}, "{}_gflops", "s3", scale)
    columns.append(Column("Rel.", lambda row: cell(row, "relative_percent", ".1f|%")))
    below = tuple(place for place, row in enumerate(rows) if row[0] == "published")
    grids = [print_grid(columns, rows, caption=f"Counted as in the {source}: {unit} per prefill token", below=below)]
    if source == "paper":
        ours = [("arithmetic", variant) for variant in variants]
        exactly = [name, *_amounts(cell, _EXACT, "exact_{}_gflops", "s3", scale)]
        exactly.append(Column("Rel.", lambda row: cell(row, "exact_relative_percent", ".1f|%")))
        grids.append(print_grid(exactly, ours, caption=f"Exact count: {unit} per prefill token"))
        most = [name]
        for metric, (header, form) in _LIMITS.items():
            most.append(Column(header, lambda row, metric=metric, form=form: cell(row, metric, form)))
        saved = Column("KV cache\nreduction", lambda row: _saved(cells[*row, "kv_cache_reduction_percent"]["value"]))
        grids.append(print_grid([*most, saved], ours, caption="Limits of each variant, by the exact count"))
        grids = [grid._replace(caption=f"({'abc'[place]}) {grid.caption}") for place, grid in enumerate(grids)]
    title = f"{heading(entry)}, {length:,} tokens"
    return Table(entry["name"], title, frame(cells.values()), grids, entry.get("notes", []))


def _amounts(cell, titles: Mapping[str, str], metric: str, form: str, scale: float) -> list[Column]:
    names = {metric.format(operation): title for operation, title in titles.items()}
    return [Column(title, lambda row, name=name: cell(row, name, form, scale)) for name, title in names.items()]


def _saved(value: float) -> str:
    return percent(value / 100) if value else NONE


def _dimensions(path: Path, length: int) -> tuple[Dimensions, int, str]:
    """Read a model's dimensions; the length is at most the one it is made for. Raises a `UserError` for any other file."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{path} holds no model configuration: it has no `config`")
    config = content["config"]
    length = min(length, config.get("max_position_embeddings") or length)
    return Dimensions.from_config(config), length, in_project(path)


def _rows(
    entry: Mapping[str, Any], arch: Dimensions, length: int, theirs: Mapping[str, tuple[Any, str]], dimensions: str
) -> Iterator[Row]:
    """A row an operation and variant, ours by arithmetic and the published ones; `at` is the length of the prompt."""
    (model,), source = entry["models"], entry["count"]
    known = {"model": model["name"], "kv_cache": "auto", "at": length, "status": "ok"}
    base = None
    for variant, _ in entry["cases"]:
        fields = entry["specs"][model["name"]][variant]
        try:
            spec = SwiftKVSpec(**fields) if fields else None
            gflops = published_gflops(arch, spec, length)
        except (TypeError, ValueError) as error:
            raise UserError(f"variant {variant} of {model['title']}: {error}") from None
        cells = counted(gflops, source, rounded=bool(theirs))
        base = cells["total"] if base is None or spec is None else base
        values = {f"{operation}_gflops": round(value, 9) for operation, value in cells.items()}
        values |= {"relative_percent": round(100 * cells["total"] / base, 3)}
        values |= limits(arch, spec, length) if source == "paper" else {}
        mine = known | {"variant": variant, "source": "arithmetic", "file": dimensions}
        for metric, value in values.items():
            unit = "GFLOP/token" if metric.endswith("gflops") else ""
            yield mine | {"metric": metric, **exact(value)._asdict(), "unit": unit, "text": ""}
        if variant in theirs:
            line, file = theirs[variant]
            for operation in (*COUNTS[source][0], "total", "relative_percent"):
                metric = operation if operation == "relative_percent" else f"{operation}_gflops"
                text = line[operation] + ("%" if operation == "relative_percent" else "")
                published = {"metric": metric, "value": number(line[operation]), "text": text}
                yield known | {"variant": variant, "source": "published", "file": file} | published
