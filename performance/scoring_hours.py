"""GPU-hours of the paper's generated answers on H100s with each scoring back end: an estimate, not a measurement.

    python performance/scoring_hours.py

Every score that the paper's and the blog's artifacts need and `scoring.backend: vllm` would move is counted once. Its time is
that of its FLOPs at an assumed share of the peak, plus that of reading the weights in every decoding step (peak, share and
bandwidth stand under `planning` in config.yaml, what the tasks ask in `swiftkv.planning.scoring`):

* transformers: every prompt token at full depth; `batch_size` answers at once, all until the longest ends; with several
  GPUs the layers are spread over them (`device_map="auto"`), so one works at a time;
* vLLM: prompt tokens skip layers >= l; up to `max_num_seqs` answers at once, a new one wherever one ends; with several
  GPUs all work (tensor parallel).

Left out, for both: loading and starting, padding, reading the KV cache, and (to vLLM's disadvantage) its prefix cache.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from swiftkv import config as cfg
from swiftkv.artifacts import contents
from swiftkv.cost import parameter_count, request_flops
from swiftkv.dimensions import Dimensions
from swiftkv.errors import command_line
from swiftkv.planning.scoring import LONGEST, TASKS
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[1]


def scored_by_vllm(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(model, variant, task) of the scores that vLLM would make."""
    config = config | {"scoring": config["scoring"] | {"backend": "vllm"}}
    found = {}
    for name in contents.names(config):
        if config["artifacts"][name]["source"] == "ours":
            continue
        for path in contents.needs(config, name).get("scores", []):
            model, variant, kv_cache, task = Path(path).with_suffix("").parts[-4:]
            if cfg.scoring_engine(config, model, variant, kv_cache, task):
                found[model, variant, task] = None
    return list(found)


def gpu_hours(config: dict[str, Any], model: str, variant: str, task: str) -> dict[str, float]:
    """GPU-hours of one score with each back end."""
    source = read_json(ROOT / config["models"][model]["architecture"])["config"]
    arch, gpus = Dimensions.from_config(source), config["models"][model]["gpus"]["score"]
    fields = cfg.spec(config, model, variant)
    questions, prompt, answer = (getattr(TASKS[task], name) for name in ("questions", "prompt", "answer"))
    gpu = {name: assumed["value"] for name, assumed in config["planning"]["gpu"].items() if name != "name"}
    width = 1 if config["models"][model].get("quantization") == "fp8" else 2  # bytes a weight
    read = width * parameter_count(source) / (gpu["memory_gb"] * 1e9)  # seconds, on one GPU
    batch, engine = config["tasks"][task]["batch_size"], config["serving"]["engine"]["max_num_seqs"]

    def compute(spec: SwiftKVSpec | None) -> float:
        flops = questions * sum(request_flops(arch, spec, prompt, answer).values())
        return flops / (gpu["tflops"] * 1e12 * gpu["forward"])  # the same share for both back ends

    # One GPU at a time needs as long as all its FLOPs do, and the others wait.
    transformers = gpus * (compute(None) + math.ceil(questions / batch) * LONGEST * answer * read)
    vllm = compute(SwiftKVSpec(**fields) if fields else None) + math.ceil(questions * answer / engine) * read
    return {"transformers": transformers / 3600, "vllm": vllm / 3600}


def table(config: dict[str, Any]) -> list[str]:
    """The table of docs/scoring.md: GPU-hours by model, and in all."""
    sums: dict[str, dict[str, float]] = {}
    for model, variant, task in scored_by_vllm(config):
        sums.setdefault(model, {"transformers": 0.0, "vllm": 0.0, "scores": 0})
        for backend, hours in gpu_hours(config, model, variant, task).items():
            sums[model][backend] += hours
        sums[model]["scores"] += 1
    total = {key: sum(row[key] for row in sums.values()) for key in ("transformers", "vllm", "scores")}
    rows = {config["models"][model]["title"]: row for model, row in sums.items()} | {"all": total}
    lines = ["| model | scores | transformers | vLLM |", "|---|---|---|---|"]
    for title, row in rows.items():
        lines.append(f"| {title} | {row['scores']} | {_short(row['transformers'])} | {_short(row['vllm'])} |")
    return lines


def _short(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.1f}"


@command_line
def main() -> None:
    config = {
        key: section
        for name in ("config.yaml", "artifacts.yaml")
        for key, section in yaml.safe_load((ROOT / name).read_text()).items()
    }
    print("\n".join(table(config)))


if __name__ == "__main__":
    main()
