"""FLOPs per prefill token by operation, and the speed-up limits that follow: Table 1 and the blog's Table 2.

The published tables count FLOPs in another way than `swiftkv.cost`, inferred from their numbers for Llama-3.1-70B at 128K
tokens: embedding and head cost 2 V d FLOPs each for every token; "128K" (V = 128,256) is 131,072; attention is divided by
2^30, everything else by 10^9, so it is 160 and not 172. Where model and length are the source's, its cells are rounded to
two (paper) or three digits (blog), and the total is the sum of the rounded cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.artifacts.frame import Row, frame
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import METRICS, show, significant
from pipeline.artifacts.published import Entry, Files, number, read_csv
from pipeline.artifacts.records import in_project
from pipeline.artifacts.tables import Shown, print_panels
from pipeline.artifacts.writers import Table
from pipeline.statistics import exact
from swiftkv.cost import GIBI, GIGA, KV_DTYPE_BYTES, Dimensions, kv_bytes_per_token, prefill_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

OUTPUT_TOKENS = 256  # of the request limit; what the paper's serving measurements generate
OPERATIONS = {
    "paper": ("vocab", "kv", "qo", "mlp", "attention"),
    "blog": ("vocab", "q", "k", "v", "o", "mlp", "attention"),
}
DIGITS = {"paper": 2, "blog": 3}  # significant ones of a cell; a total has three


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

    cells = {operation: cut(value) for operation, value in gflops.items()}
    cells |= {"kv": cut(cells["k"] + cells["v"]), "qo": cut(cells["q"] + cells["o"])}
    cells = {operation: cells[operation] for operation in OPERATIONS[source]}
    return {**cells, "total": sum(cells.values())}


def limits(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """The exact count in GFLOPs per prefill token, and the limits of a variant."""
    flops, base = prefill_flops(arch, spec, tokens), prefill_flops(arch, None, tokens)
    flops["total"] = sum(flops.values())
    most = speedup_limits(arch, spec, tokens, OUTPUT_TOKENS)
    found = {f"exact_{operation}_gflops": count / tokens / GIGA for operation, count in flops.items()}
    del found["exact_vocab_gflops"]
    found["exact_relative_percent"] = 100 * flops["total"] / sum(base.values())
    found["kv_cache_kib_per_token"] = kv_bytes_per_token(arch, spec) / 1024
    found |= {f"{name}_speedup_limit": most[f"{name}_speedup"] for name in ("prefill", "request")}
    for dtype in KV_DTYPE_BYTES:
        found[f"kv_capacity_limit_{dtype}"] = kv_bytes_per_token(arch, None) / kv_bytes_per_token(arch, spec, dtype)
    return found


def make(entry: Entry, files: Files) -> Table:
    """The count of the source, the exact count and the limits of each variant, with the published rows below."""
    (path,), (model,), source = files["dimensions"], entry["models"], entry["count"]
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{path} holds no model configuration: it has no `config`")
    arch, length = Dimensions.from_config(content["config"]), entry["sequence_length"]
    length = min(length, content["config"].get("max_position_embeddings") or length)
    known = {"model": model["name"], "kv_cache": "auto", "status": "ok"}
    shown = Shown(entry, {})
    shown.published = frame(
        known | {"source": "published", "variant": line["variant"], "file": in_project(file)} | cell
        for file in files.get("published", ())
        for line in read_csv(file)
        if (line["model"], number(line["sequence_length"])) == (model["published"], length)
        for cell in _published(source, line)
    )
    known |= {"source": "arithmetic", "file": in_project(path)}
    rounded = not shown.published.empty
    base = counted(published_gflops(arch, None, length), source, rounded=rounded)["total"]
    for variant, _ in entry["cases"]:
        fields = entry["specs"][model["name"]][variant]
        try:
            spec = SwiftKVSpec(**fields) if fields else None
            cells = counted(published_gflops(arch, spec, length), source, rounded=rounded)
            allowed = limits(arch, spec, length) if source == "paper" else {}
        except (TypeError, ValueError) as error:
            raise UserError(f"variant {variant} of {model['title']}: {error}") from None
        rows = {_metric(operation): round(value, 9) for operation, value in cells.items()} | allowed
        rows["relative_percent"] = round(100 * cells["total"] / base, 3)
        digits = {_metric(operation): f"s{DIGITS[source]}" for operation in OPERATIONS[source]} if rounded else {}
        shown.add(
            known
            | {"variant": variant, "metric": metric, **exact(value)._asdict(), "unit": METRICS[metric].unit}
            | ({"text": show(value, digits[metric])} if metric in digits else {})
            for metric, value in rows.items()
        )
    return print_panels(shown, f"{heading(entry)}, {length:,} tokens")


def _metric(operation: str) -> str:
    return f"{operation}_gflops"


def _published(source: str, line: Mapping[str, str]) -> Iterator[Row]:
    """The published cells of a variant, as printed."""
    for operation in (*OPERATIONS[source], "total"):
        yield {"metric": _metric(operation), "value": number(line[operation]), "text": line[operation]}
    percent = line["relative_percent"]
    yield {"metric": "relative_percent", "value": number(percent), "text": f"{percent}%"}
