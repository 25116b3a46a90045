"""Made-up serving records in the form that pipeline.measure writes, and entries that show them; the numbers mean nothing."""

from __future__ import annotations

import csv
import io

from artifact_helpers import H100, LLAMA, fields, made, saved, scale
from artifact_helpers import record as any_record

from pipeline.artifacts.kinds import KINDS
from pipeline.measure.latency import boundary

CPU = {"processor": "Intel(R) Xeon(R) Processor @ 2.90GHz", "cores": 2, "threads": 2, "gpus": []}
TITLES = {LLAMA: "Llama-3.1-8B-Instruct", "llama-3.1-70b": "Llama-3.1-70B-Instruct"}
CLAIM = ("an_artifact", "llama-3.1-8b", "speedup", 1, 1.2, 1.3, "1.2-1.3x at 2K")
LIMITS = {"baseline": 1.0, "merge-all-layers": 1.0, "swiftkv-50": 1.8, "swiftkv-50-across4": 1.9}


def record(measure, point, variant, kv_cache="auto", result=None, *,
           model=LLAMA, hardware=H100, weights=None, settings=(), engine=(), cost=()):  # fmt: skip
    """One record of a model with the dimensions of Llama-3.1-8B; without a result it is an out-of-memory one."""
    asked = {
        "point": point, "merge_all_layers": variant == "merge-all-layers", "dtype": "bfloat16", "input_tokens": 2000,
        "output_tokens": 256, "num_prompts": 100, "max_num_batched_tokens": 2048, "max_num_seqs": 256,
        "tensor_parallel_size": 1, "quantization": None,
    }  # fmt: skip
    said = {"vllm": "0.32.0", "attention_backend": "FLASH_ATTN", "compilation": "eager", "plugin": "swiftkv",
            "kv_cache_tokens": 93184 if result else None}  # fmt: skip
    limits = {"request_speedup_limit": LIMITS[variant], "prefill_speedup_limit": LIMITS[variant] + 0.1}
    measured = any_record(
        measure, LLAMA, variant, result, kv_cache=kv_cache, weights=weights, status="oom",
        reason=None if result else "no memory is left for the KV cache",
        settings=asked | dict(settings), engine=said | dict(engine), cost=limits | dict(cost),
    )  # fmt: skip
    measured["model"] |= {"name": model, "title": TITLES.get(model, model.title()), "id": model}
    measured["provenance"]["hardware"] = hardware
    return measured


def speed(tokens_per_second):
    """The result of a throughput point."""
    return {
        "tokens_per_second": tokens_per_second,
        "seconds": 100.0,
        "num_prompts": 100,
        "normalized_tflops_per_gpu": tokens_per_second * 16e9 / 1e12,
        "exact_tflops_per_gpu": tokens_per_second * 17e9 / 1e12,
        "mfu_percent": tokens_per_second * 16e9 / 989.4e10,
    }


def latencies(capacity, ttft=40.0, tpot=8.0, rates=(1, 2, 4, 8, 16)):
    """The result of a latency point whose server keeps up with `capacity` requests a second."""
    entries = []
    for rate in rates:
        load = rate / capacity
        slow = 1 / (1 - load) if load < 0.98 else 50 * load
        times = {"mean": 1.1 * slow * ttft, "median": slow * ttft, "p99": 3 * slow * ttft}
        token = {"mean": (1 + load) * tpot, "median": (1 + load) * tpot, "p99": 1.5 * (1 + load) * tpot}
        entries.append({
            "request_rate": rate, "requests": 100, "completed": 100, "failed": 0,
            "achieved_request_rate": min(rate, capacity), "tokens_per_second": 2256 * min(rate, capacity),
            "ttft_ms": times, "tpot_ms": token, "sustained": load < 0.98,
        })  # fmt: skip
    low, high = boundary(entries)
    return {"rates": entries, "highest_sustained_rate": low, "lowest_unsustained_rate": high, "criterion": "made up"}


def entry(kind, points, cases, models=(LLAMA,), **more):
    """A resolved entry; `points` maps names to what they ask for."""
    specs = {variant: fields(scale(), LLAMA, variant) for variant, _ in cases}
    return {
        "name": "an_artifact", "kind": kind, "form": KINDS[kind].form, "source": "paper", "item": "Figure 0",
        "label": "paper's Figure 0", "title": "what is shown",
        "models": [
            {"name": name, "title": TITLES.get(name, name.title()), "published": name, "role": name} for name in models
        ],
        "cases": [list(case) for case in cases], "specs": {name: dict(specs) for name in models},
        "unmeasured": {}, "points": points, **more,
    }  # fmt: skip


def make(folder, shown, records, **published):
    """What an entry's kind draws of `records`, written to files in `folder`; `published` are further files."""
    return made(shown, serving=saved(folder, records), **published)


def rows(table):
    """The lines of a table's CSV."""
    return list(csv.DictReader(io.StringIO(table.values.to_csv(index=False))))


def values_csv(folder, *lines):
    """A file of published statements like resources/paper/values.csv: (item, model, quantity, gpus, low, high, text)."""
    names = ("item", "model", "quantity", "gpus", "low", "high", "text")
    path = folder / "values.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*names, "variant", "input_tokens", "layer", "source", "note"))
        writer.writeheader()
        writer.writerows(dict(zip(names, line, strict=False)) | (line[7] if len(line) > 7 else {}) for line in lines)
    return [path]


def texts(figure):
    """Texts inside the panels, those of the legend with its title, and the headline."""
    inside = [text.get_text() for axis in figure.axes for text in axis.texts]
    below = figure.legends[0]
    return (
        inside,
        [*(text.get_text() for text in below.get_texts()), below.get_title().get_text()],
        figure.get_suptitle(),
    )


def shows(made, axis, column):
    """Whether the first point's numbers of a column are all drawn in one of the panels."""
    heights = [bar.get_height() for bar in made.figure.axes[axis].patches]
    heights += [y for line in made.figure.axes[axis].lines for y in line.get_ydata()]
    first = made.data[made.data["point"] == made.data["point"].iloc[0]] if "point" in made.data else made.data
    return set(first[column].dropna().round(6)) <= {round(float(height), 6) for height in heights}
