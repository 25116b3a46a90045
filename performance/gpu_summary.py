"""Tables of ratios from the files that `gpu_serving.py` writes; records of different vLLM versions or GPUs never meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.records import read_json

TITLES = {
    ("baseline", "auto"): "baseline",
    ("swiftkv-50", "auto"): "SwiftKV 50 %",
    ("swiftkv-50-across4", "auto"): "+ AcrossKV 4",
    ("swiftkv-50-across4", "fp8"): "+ FP8 KV",
    ("merge-all-layers", "auto"): "Merge-all-Layers",
    ("reference", "auto"): "reference plugin, SwiftKV 50 %",
}


def summary(folder: Path) -> str:
    """Markdown tables: throughput and its ratio to the baseline by input length, TPOT and its ratio by batch.

    Raises:
        UserError: no records, or a damaged one.
    """
    files = sorted(folder.glob("*/*.json"))
    if not files:
        raise UserError(f"{folder} has no <vLLM version>/<point>.json; measure with --output {folder} first")
    machines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in files:
        record = read_json(file)
        try:
            machine = (record["versions"]["vllm"], ", ".join(record["hardware"]["gpus"]) or "no GPU")
            machines.setdefault(machine, []).append(record)
        except (KeyError, TypeError):
            raise UserError(f"{file} is no record of gpu_serving.py; delete it") from None
    parts = []
    for (vllm, gpus), records in sorted(machines.items()):
        parts.append(f"## vLLM {vllm}, {gpus}, {records[0]['model']}, {records[0]['weights']} weights")
        for kind, heading in (
            ("throughput", "Tokens/s, input and output (ratio to the baseline; share of what FLOPs allow)"),
            ("decode", "Milliseconds per output token while decoding (ratio to the baseline)"),
        ):
            chosen = [record for record in records if record["measure"] == kind]
            if chosen:
                parts += [heading, table(chosen, kind)]
    return "\n\n".join(parts)


def table(records: list[dict[str, Any]], kind: str) -> str:
    """One kind's records, a row a variant; what is missing is a dash."""
    found: dict[tuple[tuple[str, str], int], dict[str, Any]] = {}
    for record in records:
        found[(record["variant"], record["kv_cache"]), record["size"]] = record
    sizes = sorted({size for _, size in found})
    unit = "tokens" if kind == "throughput" else "in a batch"
    lines = [f"| | {' | '.join(f'{size:,} {unit}' for size in sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    rows = {key: [cell(found, key, size, kind) for size in sizes] for key in TITLES if any(k == key for k, _ in found)}
    lines += [f"| {TITLES[key]} | {' | '.join(cells)} |" for key, cells in rows.items()]
    if ("reference", "auto") in rows and ("swiftkv-50", "auto") in rows:
        # Above 1 is ahead of the reference in both kinds.
        ahead = [show(ahead_of_reference(found, size, kind)) for size in sizes]
        lines.append(f"| SwiftKV 50 % ahead of the reference plugin | {' | '.join(ahead)} |")
    return "\n".join(lines)


def cell(found: dict, key: tuple[str, str], size: int, kind: str) -> str:
    """A number with its ratio to the baseline, "OOM", "failed", or a dash."""
    record = found.get((key, size))
    if record is None:
        return "–"
    if record["status"] != "ok":
        return {"oom": "OOM"}.get(record["status"], "failed")
    number = value(record, kind)
    text = f"{number:,.0f}" if kind == "throughput" else f"{number:.3f}"
    baseline = found.get((("baseline", "auto"), size))
    if baseline is None or baseline["status"] != "ok":
        return text
    if baseline["settings"]["job"] != record["settings"]["job"]:
        return f"{text} (other requests than the baseline's)"
    ratio = number / value(baseline, kind)
    if kind == "decode" or record["spec"] is None:
        return f"{text} ({ratio:.3f})"
    return f"{text} ({ratio:.3f}; {ratio / record['cost']['request_speedup_limit']:.0%})"


def ahead_of_reference(found: dict, size: int, kind: str) -> float | None:
    """How many times better ours is; None where one is missing."""
    pair = [found.get(((variant, "auto"), size)) for variant in ("swiftkv-50", "reference")]
    if any(record is None or record["status"] != "ok" for record in pair):
        return None
    if pair[0]["settings"]["job"] != pair[1]["settings"]["job"]:
        return None
    ours, reference = (value(record, kind) for record in pair)
    return ours / reference if kind == "throughput" else reference / ours


def value(record: dict[str, Any], kind: str) -> float:
    """The main number of a record."""
    return record["result"]["tokens_per_second" if kind == "throughput" else "tpot_ms"]


def show(ratio: float | None) -> str:
    """A ratio, or a dash."""
    return "–" if ratio is None else f"{ratio:.3f}"
