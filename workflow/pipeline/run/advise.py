"""`make advise MODEL=...`: limits of SwiftKV's gain for a model, from its config.json, and the configuration to train it."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from huggingface_hub import HfApi

from pipeline.config import PROJECT, check, load_yaml
from pipeline.run.estimate import HOUR, TERA, Work
from pipeline.run.jobs import PlannedJob, Profile, Resources, read_config, read_profile
from pipeline.run.plan import make_plan, summary, table
from pipeline.run.sizes import Size, hub_config
from pipeline.sources import HEAD_SIZES
from swiftkv.architectures import Architecture, architecture
from swiftkv.cost import GIGA, kv_bytes_per_token, parameter_count, prefill_flops, request_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

REDUCTIONS = ("25", "40", "50", "62.5")
GROUPS = (1, 2, 4)
PROMPTS = {"512 in": 512, "2K in": 2000, "16K in": 16000, "128K in": 128000}
OUTPUT = 256
CARD = 80 * GIGA  # bytes of a GPU
# What a family that is not supported has beside Llama's layers, by the beginnings of fields in config.json.
BESIDE = {
    "recurrent layers, which have no KV cache to fill from layer l": ("linear_", "mamba_", "ssm_"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "sliding windows": ("sliding_window",),
    "parts beside the language model": ("text_config",),
}
CONFIGURATION = """\
# Written by `make advise`. workflow/pipeline/config/settings.py describes every key.
models:
  {name}:
    title: {title}
    source: {source}
    model_type: {model_type}
    num_hidden_layers: {layers}
    num_key_value_layers: {reductions}
    zero_stage: {zero_stage}
    nodes: {{distill: {nodes}}}
    gpus: {{distill: {gpus}, score: {served}, serve: {served}}}
artifacts:
  {name}_quality:
    kind: table
    source: ours
    section: 7 Beyond the paper
    title: quality with SingleInputKV and AcrossKV
    caption: Table 2 of another model.
    models: [{name}]
    variants: [baseline, swiftkv-50, swiftkv-50-across4]
    tasks: benchmarks
    panels:
      - columns: [prefill_reduction_percent, kv_cache_reduction_percent, tasks, average]
"""


def advise(model: str, profile: Profile, output: Path, *, measure: bool = False) -> Iterator[str]:
    """Yield what SwiftKV would give a model, then what was done about it.

    Args:
        model: org/name on the hub, a folder, or a config.json.
        profile: the profile to train with; without GPUs in it, neither has the configuration any.
        output: the configuration to write; its stem is the model's name there.
        measure: also measure, without training, how deep prompts must run.

    Raises:
        UserError: there is no such config.json, the family is not supported, or `output` exists with other content.
    """
    description, source = describe(model)
    row = supported(model, description)
    size, name = Size(description, fp8="quantization_config" in description), output.stem
    served = 2 ** max(0, math.ceil(math.log2(size.bytes / (0.7 * CARD))))
    gpus = 1 if size.bytes < CARD / 4 else 8 * served  # weights, states and activations of a training
    on_gpus = profile.cores is None or bool(profile.resources.get("gpu"))
    text = CONFIGURATION.format(
        name=name,
        title=json.dumps(Path(model).absolute().name),
        source=json.dumps(source or {"hub": "org/name"}),
        model_type=description["model_type"],
        layers=size.layers,
        reductions=json.dumps({reduction: best_layer(size.layers, float(reduction)) for reduction in REDUCTIONS}),
        zero_stage=2 if gpus == 1 else 3,
        nodes=max(1, gpus // 8) if on_gpus else 1,
        gpus=gpus * on_gpus,
        served=served * on_gpus,
    )
    yield possible(Path(model).absolute().name, row, size)
    yield from limits(name, yaml.safe_load(text)["models"][name], gpus, size, description)
    if not source:
        yield f"{output} is not written, as no weights lie beside this config.json: name their folder, or org/name"
        return
    if output.exists() and output.read_text(encoding="utf-8") != text:
        raise UserError(f"{output} exists with other content; choose another file with OUTPUT=, or move it")
    output.write_text(text, encoding="utf-8")
    written = read_profile(profile.folder, [str(output)])
    config = read_config(written)
    results = config.pathvars.results
    words = f"PROFILE={profile.folder.name} CONFIG={output} TARGETS="
    checkpoint = f"{results}/checkpoints/{name}/swiftkv-50"
    space = "" if on_gpus else "VLLM_CPU_KVCACHE_SPACE=4 "
    yield (
        f"{output} is written. Next:\n  make plan {words}{name}_quality\n  make reproduce {words}{checkpoint}/config.json\n"
        f"  make reproduce {words}{name}_quality\n  {space}vllm serve {checkpoint} --host 127.0.0.1"
    )
    if measure:
        target, share = f"{results}/reading/{name}/copied.json", config.entries["reading"]["share"]
        yield from measured(written, target, share, size.layers)


def describe(model: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a model's config.json and its `source` in the configuration; None where no weights lie beside the file.

    Raises:
        UserError: there is none.
    """
    path = Path(model).expanduser()
    file = path if path.is_file() else path / "config.json"
    if not path.exists() and model.count("/") == 1 and model[0] not in "./~":
        description, gated = hub_config(model), False
        with contextlib.suppress(Exception):  # a silent hub; plans alone read it
            gated = bool(HfApi().repo_info(model, timeout=5).gated)
        return description, {"hub": model, "revision": "main", "gated": gated}
    if not file.is_file():
        raise UserError(f"there is no {file}; MODEL is a folder with a config.json, or org/name as on the hub")
    weights = any(file.parent.glob("*.safetensors"))
    return read_json(file), {"local": str(file.parent.absolute())} if weights else None


def supported(model: str, description: Mapping[str, Any]) -> Architecture:
    """Return the row of a model's architecture; raise a `UserError` with what stands against one that has none."""
    kind = str(description.get("model_type"))
    if kind.endswith("_swiftkv"):
        raise UserError(f"{model} is a SwiftKV checkpoint; give the model that it was made from")
    try:
        return architecture(kind)
    except UserError as error:
        fields = [name for name, value in {**description, **description.get("text_config", {})}.items() if value]
        has = [words for words, names in BESIDE.items() if any(field.startswith(names) for field in fields)]
        more = f"; its config.json has {', '.join(has)}" if has else ""
        raise UserError(f"{model} can be neither trained, scored nor served: {error}{more}") from None


def best_layer(layers: int, reduction: float) -> int:
    """Return the l nearest to a reduction in percent; one layer off if that leaves more whole groups."""
    exact = layers * (1 - reduction / 100)
    near = range(max(1, math.ceil(exact - 1)), min(layers - 1, math.floor(exact + 1)) + 1)
    return max(near, key=lambda layer: (math.gcd(layers - layer, max(GROUPS)), -abs(layer - exact)))


def possible(title: str, row: Architecture, size: Size) -> str:
    """Return what can be done with a model, in words."""
    served, dimensions = row.not_served and f"no: {row.not_served}", size.dimensions
    if len(set(dimensions.windows)) > 1:
        served = served or "no: some layers have a sliding window and some have not"
    if dimensions.head_dim not in HEAD_SIZES:
        served = served or f"on GPUs; on processors vLLM has no heads of {dimensions.head_dim} elements"
    return (
        f"{title}: {row.classes}, {size.layers} layers, {size.parameters / GIGA:.2f} billion parameters, of which a token "
        f"passes {size.passed / GIGA:.2f}\n  trained     yes{', from copied projections' if row.normalized else ''}\n"
        f"  scored      yes\n  served      {served or 'yes'}"
    )


def limits(name: str, entry: dict[str, Any], gpus: int, size: Size, description: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of costs, and one of requests, by l and group; l = L is the unchanged model.

    Args:
        name, entry: of the model in the configuration.
        gpus: of a training.
        size, description: the model's.
    """
    settings = load_yaml(PROJECT / "config.yaml") | load_yaml(PROJECT / "artifacts.yaml")
    settings["models"][name] = entry
    config, arch, layers = check(settings), size.dimensions, size.layers
    memory = CARD * config.serving.engine.gpu_memory_utilization
    cases = [(SwiftKVSpec(layers, layers), "-")]
    for reduction, layer in entry["num_key_value_layers"].items():
        variant = {"model": name, "variant": f"swiftkv-{reduction}"}  # a larger group takes hardly less
        work = Work(PlannedJob("distill", variant, resources=Resources(gpu=gpus)), config)
        work.size = size
        hours = f"{gpus * work.seconds() / HOUR:,.1f}"
        cases += [(SwiftKVSpec(layers, layer, group), hours) for group in GROUPS if (layers - layer) % group == 0]
    costs, requests = [], []
    for spec, hours in cases:
        row: dict[str, object] = {
            "l": spec.num_key_value_layers,
            "skipped": f"{100 * spec.prefill_reduction:.1f} %",
            "AcrossKV": spec.key_value_group_size,
        }
        cached, room = kv_bytes_per_token(arch, spec), memory - 2 * parameter_count(description, spec)
        more = {
            "GFLOPs a prompt token": f"{sum(prefill_flops(arch, spec, 1).values()) / GIGA:,.2f}",
            "KV bytes a token": f"{cached:,}",
            "tokens in a card": f"{max(0, room) // cached:,.0f}",
            "H100-hours": hours,
        }
        costs.append(row | more)
        for label, prompt in PROMPTS.items():
            if prompt + OUTPUT <= (description.get("max_position_embeddings") or math.inf):
                flops = sum(request_flops(arch, spec, prompt, OUTPUT).values()) / TERA
                whole, first = (speedup_limits(arch, spec, prompt, n)["request_speedup"] for n in (OUTPUT, 1))
                row[label] = f"{flops:,.4g} {whole:.2f}x {first:.2f}x"
        requests.append(row)
    yield (
        f"Costs; 16-bit weights and cache have {memory / GIGA:.0f} GB of a card of 80; hours of a training with the paper's "
        f"recipe\n{table(costs)}"
    )
    yield (
        f"Requests of {OUTPUT} output tokens: TFLOPs, limits of their speed-up and of their first token's\n"
        f"{table(requests)}"
    )


def measured(profile: Profile, target: str, share: float, layers: int) -> Iterator[str]:
    """Yield the plan of a reading of untrained variants, then the smallest l that keeps `share` of what passages tell."""
    from pipeline.artifacts.frame import saved_bits  # draws figures, which takes seconds to import
    from pipeline.artifacts.reading import lasting
    from pipeline.statistics import bootstrapped_ratio

    yield summary(make_plan(profile, [target]))
    if subprocess.run([sys.executable, "-m", "snakemake", *profile.command([target])]).returncode:
        raise UserError("the reading curve was not measured, as said above")
    teacher, *members = read_json(Path(target))["result"]["members"]
    gain = saved_bits(teacher, teacher, "squad")
    kept = [(one["layer"], bootstrapped_ratio(saved_bits(teacher, one, "squad"), gain).value) for one in members]
    least = lasting(pd.DataFrame(kept, columns=["at", "value"]), share)["at"].min()
    found = "no l measured" if pd.isna(least) else f"l = {least:g} ({100 * (1 - least / layers):.0f} % skipped)"
    yield (
        f"Without training, {found} keeps {100 * share:.0f} % of what passages tell; with training a smaller l may: an upper "
        "bound."
    )
