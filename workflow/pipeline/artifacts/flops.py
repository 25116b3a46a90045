"""FLOPs per prefill token by operation, and the speed-up limits that follow: Table 1 and the blog's Table 2.

The published tables count FLOPs in another way than `swiftkv.cost`, inferred from their numbers for Llama-3.1-70B at 128K
tokens: embedding and head cost 2 V d FLOPs each for every token; "128K" (V = 128,256) is 131,072; attention is divided by
2^30, everything else by 10^9, so it is 160 and not 172. Where model and length are the source's, its cells are rounded to
two (paper) or three digits (blog), and the total is the sum of the rounded cells.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.artifacts import Entry, Files
from pipeline.artifacts.frame import cells
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import show, significant
from pipeline.artifacts.records import Case, in_project
from pipeline.artifacts.tables import Shown, print_panels
from pipeline.artifacts.writers import Table
from pipeline.config import model_config
from pipeline.statistics import exact
from swiftkv.cost import GIBI, GIGA, KV_DTYPE_BYTES, Dimensions, kv_bytes_per_token, prefill_flops, speedup_limits
from swiftkv.spec import SwiftKVSpec

OUTPUT_TOKENS = 256  # of the request limit; what the paper's serving measurements generate
OPERATIONS = {
    "paper": ("vocab", "kv", "qo", "mlp", "attention"),
    "blog": ("vocab", "q", "k", "v", "o", "mlp", "attention"),
}
DIGITS = {"paper": 2, "blog": 3}  # significant ones of a cell, but never coarser than a whole number


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

    def cut(value: float) -> float:
        return significant(value, DIGITS[source]) if rounded else value

    found = {operation: cut(value) for operation, value in gflops.items()}
    found |= {"kv": cut(found["k"] + found["v"]), "qo": cut(found["q"] + found["o"])}
    found = {operation: found[operation] for operation in OPERATIONS[source]}
    return {**found, "total": sum(found.values())}


def limits(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """The exact count in GFLOPs per prefill token, and the limits of a variant."""
    flops, most = prefill_flops(arch, spec, tokens), speedup_limits(arch, spec, tokens, OUTPUT_TOKENS)
    flops["total"] = sum(flops.values())
    found = {f"exact_{operation}_gflops": count / tokens / GIGA for operation, count in flops.items()}
    del found["exact_vocab_gflops"]
    found["exact_relative_percent"] = 100 / most["prefill_speedup"]
    found["kv_cache_kib_per_token"] = kv_bytes_per_token(arch, spec) / 1024
    found |= {f"{name}_limit": limit for name, limit in most.items()}
    for dtype in KV_DTYPE_BYTES:
        found[f"kv_capacity_limit_{dtype}"] = kv_bytes_per_token(arch, None) / kv_bytes_per_token(arch, spec, dtype)
    return found


def make(entry: Entry, files: Files) -> Table:
    """The count of the source, the exact count and the limits of each variant, with the published rows below."""
    (path,), (model,), source = files["dimensions"], entry["models"], entry["count"]
    config = model_config(path)
    arch, length = Dimensions.from_config(config), entry["sequence_length"]
    length = min(length, config.get("max_position_embeddings") or length)
    shown = Shown(entry, files)
    rounded = not shown.published.empty
    base = counted(published_gflops(arch, None, length), source, rounded=rounded)["total"]
    for variant, kv_cache in entry["cases"]:
        fields = entry["specs"][model["name"]][variant]
        spec = SwiftKVSpec(**fields) if fields else None
        gflops = counted(published_gflops(arch, spec, length), source, rounded=rounded)
        rows = [
            cells(f"{name}_gflops", exact(round(value, 9)), text=show(value, f"s{DIGITS[source]}") if rounded else None)
            for name, value in gflops.items()
        ]
        further = {"relative_percent": round(100 * gflops["total"] / base, 3)}
        further |= limits(arch, spec, length) if source == "paper" else {}
        rows += [cells(name, exact(value)) for name, value in further.items()]
        known = {"source": "arithmetic", "file": in_project(path), **Case(model["name"], variant, kv_cache)._asdict()}
        shown.add(row | known for row in rows)
    return print_panels(shown)._replace(title=f"{heading(entry)}, {length:,} tokens")
