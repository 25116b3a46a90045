"""What the sources publish, in the form of our CSVs, as if it had been measured on their models and hardware."""

import copy
import math
from pathlib import Path

from pipeline.artifacts.records import read_published

PAPER = Path(__file__).parents[2] / "resources" / "paper"
LLAMA, LARGE = "llama-3.1-8b", "llama-3.1-70b"
QUESTIONS = {  # of each benchmark in full
    "arc-challenge": 1172, "winogrande": 1267, "hellaswag": 10042, "truthfulqa": 817, "mmlu": 14042, "mmlu-cot": 14042,
    "gsm8k": 1319,
}  # fmt: skip
TASKS = tuple(QUESTIONS)


def published_tables(config) -> dict[str, list]:
    """The published tables in the form of our CSVs, on the paper's hardware, with the errors of their questions' number."""
    tables = {}
    for name, entry in config["artifacts"].items():
        file = PAPER / f"{name}.csv"
        if entry["kind"] in ("quality", "flops") and file.exists():
            tables[name] = [dict(row) for row in read_published([file])]
        elif entry["kind"] == "throughput_table":
            tables[name] = published_throughput(read_published([file]))
    for row in [row for rows in tables.values() for row in rows if row.get(TASKS[0]) is not None]:
        for task, number in QUESTIONS.items():
            row[f"{task}_stderr"] = math.sqrt(row[task] * (100 - row[task]) / number)
        row["average"] = row.get("average") or sum(row[task] for task in TASKS) / len(TASKS)
        row["kl"] = None
        row["average_stderr"] = math.hypot(*(row[f"{task}_stderr"] for task in TASKS)) / len(TASKS)
    return tables


def described_figures() -> dict[str, list]:
    """Figures as the running text describes them; a scatter of 1 % is the scene's."""
    cases = [("swiftkv-50", "auto", 1.0), ("swiftkv-50-across4", "auto", 1.04), ("swiftkv-50-across4", "fp8", 1.04)]
    lengths = {2000.0: (1.25, 1.45), 8000.0: (1.45, 1.6), 32000.0: (1.65, 1.75), 128000.0: (1.83, 1.9)}
    hardware = {LLAMA: "1 × NVIDIA H100 80GB HBM3, vLLM", LARGE: "4 × NVIDIA H100 80GB HBM3, vLLM"}
    batches, served = [], []
    for place, (model, conditions) in enumerate(hardware.items()):
        rate, gpus = (30500.0, 1) if place == 0 else (16800.0, 4)
        for variant, kv_cache, more in cases:
            head = {"model": model, "variant": variant, "kv_cache": kv_cache, "conditions": conditions}
            tflops = rate * 2 * (8.03e9, 70.55e9)[place] / gpus / 1e12
            batches += [
                head
                | {
                    "input_tokens": length,
                    "speedup": gains[place] * more,
                    "tokens_per_second": rate,
                    "tokens_per_second_per_gpu": rate / gpus,
                    "normalized_tflops_per_gpu": tflops,
                    "mfu_percent": tflops / 9.894,
                    "node_tokens_per_second": rate * 8 / gpus,
                }
                for length, gains in lengths.items()
            ]
            served += [
                head
                | {
                    "input_tokens": length,
                    "point": f"interactive-{length}",
                    "request_rate": arriving,
                    "boundary_found": True,
                    "sustained_rate_speedup": gain,
                    "ttft_reduction_percent": reduced,
                    "tpot_reduction_percent": {1.0: 0.0, 2.0: 30.0, 4.0: 61.0}[arriving],
                }
                for length, gain, reduced in ((2000.0, 1.5, 30.0), (8000.0, 1.7, 40.0), (32000.0, 2.0, 50.0))
                for arriving in (1.0, 2.0, 4.0)
            ]
    alike = {"model": LLAMA, "title": LLAMA}
    simscore = [
        {"layer": float(layer), "depth_percent": 100 * layer / 32, "simscore": score, "simscore_stderr": 0.004}
        for layer, score in enumerate(0.21 + 0.025 * layer for layer in range(31))
    ]
    capacity = [(LLAMA, "merge-all-layers", "auto", 32.0), (LARGE, "merge-all-layers", "auto", 80.0)]
    capacity += [(model, "swiftkv-50-across2", "fp8", 2.664) for model in (LLAMA, LARGE)]
    columns = ("model", "variant", "kv_cache", "capacity_ratio")
    early = {"variant": "swiftkv-50-early-exit", "confidence_from": 0.95, "alignment_percent": 70.0}
    return {
        "figure3": batches,
        "blog_figure3": copy.deepcopy(batches),
        "figure4": served,
        "figureB1": copy.deepcopy(served),
        "blog_figure5": copy.deepcopy(served),
        "figure2": [
            {**alike, **row, "panel": "forward", "batch_tokens": tokens, "speedup": 1.2 + tokens / 1e4}
            for row in [{key: row[key] for key in ("variant", "kv_cache", "conditions")} for row in batches[:8:4]]
            for tokens in (64.0, 2048.0)
        ],
        "figure2_left": [alike | row for row in simscore],
        "kv_capacity": [dict(zip(columns, row, strict=True)) for row in capacity],
        "figureD1": [alike | early | {"alignment_percent_stderr": 1.0}],
    }


def published_throughput(published):
    rows = []
    for line in published:
        names = ("baseline", "merge_all_layers", "swiftkv_50", "swiftkv_50_across4", "swiftkv_50_across4_fp8")
        for name in filter(line.__contains__, names):
            value = None if line[name] == "OOM" else line[name]
            base = None if line["baseline"] == "OOM" else line["baseline"]
            rows.append(
                {
                    "model": line["model"],
                    "variant": name.removesuffix("_fp8").replace("_", "-"),
                    "kv_cache": "fp8" if name.endswith("_fp8") else "auto",
                    "status": "ok" if value else "oom",
                    "memory_gb": line.get("memory_gb"),
                    "input_tokens": {"4K": 4000.0, "16K": 16000.0}.get(line.get("input_length")),
                    "conditions": f"{line.get('gpus', 1):g} × NVIDIA H100 80GB HBM3, vLLM",
                    "tokens_per_second": value,
                    "speedup": value / base if value and base else None,
                }
            )
    return rows
