"""FLOPs per prefill token by operation, and the speed-up limits that follow: Table 1 and the blog's Table 2.

The published tables count FLOPs in another way than `swiftkv.cost`, inferred from their numbers for Llama-3.1-70B at 128K
tokens: embedding and head cost 2 V d FLOPs each for every token; "128K" (V = 128,256) is 131,072; attention is divided by
2^30, everything else by 10^9, so it is 160 and not 172.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.artifacts.columns import Column, grid, table
from pipeline.artifacts.kind import ArtifactKind, Entry, Files
from pipeline.artifacts.records import Published, read_published
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits, heading, percent, significant, variant_label
from swiftkv.cost import GIBI, GIGA, KV_DTYPE_BYTES, Dimensions, kv_bytes_per_token, prefill_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.section import Whole
from swiftkv.spec import SwiftKVSpec

OUTPUT_TOKENS = 256  # of the request limit; what the paper's serving measurements generate


@dataclass(frozen=True)
class _Count:
    """How a source counts and rounds: its columns and significant digits; None: it does not round."""

    titles: Mapping[str, str]
    digits: int | None

    def cells(self, gflops: Mapping[str, float]) -> dict[str, float]:
        """A printed row, without the last column: every cell is rounded, and the total is the sum of the printed cells."""
        rounded = {operation: self._round(value) for operation, value in gflops.items()}
        rounded |= {"kv": self._round(rounded["k"] + rounded["v"]), "qo": self._round(rounded["q"] + rounded["o"])}
        cells = {name: rounded[name] for name in self.titles}
        return {**cells, "total": sum(cells.values())}

    def _round(self, value: float) -> float:
        return value if self.digits is None else significant(value, self.digits)


_COUNTS = {
    "paper": _Count(
        {"vocab": "Vocab", "kv": "K,V", "qo": "Q,O", "mlp": "MLP", "attention": "Attn."},
        2,
    ),
    "blog": _Count(
        {"vocab": "Vocab", "q": "Q", "k": "K", "v": "V", "o": "O", "mlp": "MLP", "attention": "Attn."},
        3,
    ),
}
_MODEL = Column("Model", "label")
_PERCENT, _TIMES = "{:.1f}%".format, "{:.2f}×".format
_RELATIVE = Column(
    "Rel.", "relative_percent", _PERCENT, below=lambda line: _PERCENT(line["relative_percent_published"])
)
_EXACT = {"K,V": "kv", "Q,O": "qo", "MLP": ["mlp"], "Attn.": ["attention"], "Total": ["total"]}
_LIMITS = [
    _MODEL,
    Column("Prefill\nspeed-up", "prefill_speedup_limit", _TIMES),
    Column("Request\nspeed-up", "request_speedup_limit", _TIMES),
    Column("KV cache,\nKiB a token", lambda line: line["kv_bytes_per_token_bfloat16"] / 1024, ",.4g"),
    Column("KV cache\nreduction", lambda line: line["kv_cache_reduction_percent"] / 100, percent),
    Column("KV\ncapacity", "kv_capacity_limit_bfloat16", _TIMES),
    Column("KV capacity\nwith FP8", "kv_capacity_limit_fp8", _TIMES),
]


def make(entry: Entry, files: Files) -> Table:
    """The count of the source; for the paper's also the exact count and the limits.

    The source's way of rounding is only followed where the model and length are its own.
    """
    record, footnotes = _cost(entry, files), Footnotes()
    published = {
        row["variant"]: row
        for row in read_published(files.get("published", ()))
        if (row["model"], row["sequence_length"]) == (entry["models"][0]["published"], record["sequence_length"])
    }
    count, exact = _COUNTS[entry["count"]], entry["count"] == "paper"
    if not published:
        count = replace(count, digits=None)
    lines, (unit, scale) = _lines(record, count, published, exact), _unit(record)
    letter = "(a) " if exact else ""
    columns = [_amount(title, name, scale, count.digits or 3) for name, title in count.titles.items()]
    columns = [_MODEL, *columns, _amount("Total", "total", scale, 3), _RELATIVE]
    caption = f"{letter}Counted as in the {entry['count']}: {unit} per prefill token"
    panels = [grid(lines, columns, footnotes, caption, lambda line: line["variant"] if published else None)]
    if exact:
        lines = [line | {"_below": None} for line in lines]
        columns = [
            Column(
                title,
                lambda line, names=names: sum(line[f"exact_{name}_gflops"] for name in names) * GIGA / scale,
                digits(3),
            )
            for title, names in _EXACT.items()
        ]
        columns = [_MODEL, *columns, Column("Rel.", "exact_relative_percent", _PERCENT)]
        panels.append(grid(lines, columns, footnotes, f"(b) Exact count: {unit} per prefill token"))
        panels.append(grid(lines, _LIMITS, footnotes, "(c) Limits of each variant, by the exact count"))
    title = f"{heading(entry)}, {record['sequence_length']:,} tokens"
    return table(entry, lines, panels, entry.get("notes", []), footnotes, title)


def _amount(title: str, name: str, scale: int, number: int) -> Column:
    """A column of the source's count, with the published number below."""
    return Column(
        title,
        lambda line: line[f"{name}_gflops"] * GIGA / scale,
        digits(number),
        below=lambda line: f"{line[f'{name}_published']:.12g}",
    )


def _cost(entry: Entry, files: Files) -> dict[str, Any]:
    """The cost record, for as many tokens as the entry says or the model is made for."""
    (path,) = files["dimensions"]
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{path} holds no model configuration: it has no `config`")
    model, length = entry["models"][0], entry["sequence_length"]
    length = min(length, content["config"].get("max_position_embeddings") or length)
    specs = {variant: entry["specs"][model["name"]][variant] for variant, _ in entry["cases"]}
    return cost_record(model["name"], model["title"], content["config"], specs, length)


def published_vocab_size(vocab_size: int) -> int:
    """The vocabulary as the paper counts it: 128,256 is "128K", read as 128 x 1,024."""
    return vocab_size if vocab_size % 1024 == 0 else round(vocab_size / 1000) * 1024


def published_gflops(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """GFLOPs per prefill token by operation, counted as in Table 1 of the paper (see the module's docstring)."""
    flops = prefill_flops(arch, spec, tokens)
    layers = arch.num_hidden_layers if spec is None else spec.num_key_value_layers
    # The causal mean over S positions is (S + 1) / 2; the paper counts S / 2.
    surplus = layers * arch.pair_flops / 2
    gflops = {operation: count / tokens / GIGA for operation, count in flops.items()}
    gflops["vocab"] = 4 * published_vocab_size(arch.vocab_size) * arch.hidden_size / GIGA
    gflops["attention"] = (flops["attention"] / tokens - surplus) / GIBI
    return gflops


def cost_record(
    name: str,
    title: str,
    config: Mapping[str, Any],
    specs: Mapping[str, Mapping[str, Any] | None],
    sequence_length: int,
    output_tokens: int = OUTPUT_TOKENS,
) -> dict[str, Any]:
    """Compute the cost of a model, called `name` and `title`, and of its variants.

    Args:
        config: its config.json.
        specs: variant -> fields of `SwiftKVSpec`, or None for the unchanged model.
        sequence_length: prompt tokens of the FLOPs and of the limits.
        output_tokens: generated tokens of the request limit.

    Raises:
        UserError: unknown architecture or impossible variant.
    """
    arch = Dimensions.from_config(config)
    variants = {}
    for variant, fields in specs.items():
        try:
            spec = None if fields is None else SwiftKVSpec(**fields)
            variants[variant] = _variant_record(arch, spec, sequence_length, output_tokens)
        except (TypeError, ValueError) as error:
            raise UserError(f"variant {variant} of {title}: {error}") from None
    return {"model": name, "title": title, "sequence_length": sequence_length, "variants": variants}


def _variant_record(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int, output: int) -> dict[str, Any]:
    limits = speedup_limits(arch, spec, tokens, output)
    flops = prefill_flops(arch, spec, tokens)
    bytes_per_token = {dtype: kv_bytes_per_token(arch, spec, dtype) for dtype in KV_DTYPE_BYTES}
    described = None
    if spec is not None:
        described = vars(spec) | {"kv_cache_reduction": spec.kv_cache_reduction(arch.num_key_value_heads)}
        described["prefill_reduction"] = spec.prefill_reduction
    return {
        "spec": described,
        "flops_per_prefill_token": {operation: count / tokens for operation, count in flops.items()},
        "total_flops_per_prefill_token": sum(flops.values()) / tokens,
        "relative_flops": sum(flops.values()) / sum(prefill_flops(arch, None, tokens).values()),
        "published_gflops": published_gflops(arch, spec, tokens),
        "kv_bytes_per_token": bytes_per_token,
        "limits": {
            **limits,
            # Tokens that fit into a given memory, relative to the unchanged model with bfloat16.
            "kv_capacity": {dtype: kv_bytes_per_token(arch, None) / size for dtype, size in bytes_per_token.items()},
        },
    }


def _lines(
    record: Mapping[str, Any], count: _Count, published: Mapping[str, Published], exact: bool
) -> list[dict[str, Any]]:
    """The lines of the CSV: what the source's count gives, what it printed, and with `exact` the count and the limits."""
    base, lines = count.cells(_baseline(record)["published_gflops"])["total"], []
    for variant, cost in record["variants"].items():
        cells, theirs = count.cells(cost["published_gflops"]), published.get(variant)
        line = {
            "model": record["model"],
            "title": record["title"],
            "variant": variant,
            "label": variant_label(cost["spec"]),
            "sequence_length": record["sequence_length"],
            **{f"{name}_gflops": round(value, 9) for name, value in cells.items()},
            "relative_percent": round(100 * cells["total"] / base, 3),
        }
        if published:
            line |= {f"{name}_unrounded_gflops": value for name, value in cost["published_gflops"].items()}
            columns = (*count.titles, "total", "relative_percent")
            line |= {f"{name}_published": theirs[name] if theirs else None for name in columns}
        lines.append(line | (_exact(cost) if exact else {}) | {"_below": ("published", None) if theirs else None})
    return lines


def _exact(cost: Mapping[str, Any]) -> dict[str, float]:
    """The columns of the exact count and of the limits."""
    flops, limits, sizes = cost["flops_per_prefill_token"], cost["limits"], cost["kv_bytes_per_token"]
    return {
        **{f"exact_{operation}_gflops": flops[operation] / GIGA for operation in flops if operation != "vocab"},
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


def _unit(record: Mapping[str, Any]) -> tuple[str, int]:
    """The printed unit and its size in FLOPs."""
    small = sum(_baseline(record)["published_gflops"].values()) < 1
    return ("MFLOPs", 10**6) if small else ("GFLOPs", GIGA)


def _baseline(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The unchanged model's cost; the first variant's where the table has no baseline."""
    costs = list(record["variants"].values())
    return next((cost for cost in costs if cost["spec"] is None), costs[0])


KIND = ArtifactKind(
    "table",
    ("models", "variants"),
    ("dimensions",),
    make,
    own={"count": Literal["paper", "blog"], "sequence_length": Whole},
    exactly={"models": 1},
)
