"""`make advise MODEL=...`: limits of SwiftKV's gain for a model, from its config.json, and the configuration to train it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from huggingface_hub import HfApi

from pipeline.config import Config, load, model_config
from pipeline.config.checks import check_config
from pipeline.run.estimate import HOUR, Work
from pipeline.run.jobs import PlannedJob, Profile, Resources, read_config, read_profile
from pipeline.run.plan import count, make_plan, summary, table
from pipeline.run.sizes import Size, hub_config
from pipeline.sources import HEAD_SIZES
from swiftkv.architectures import Architecture, architecture, check_loaded
from swiftkv.cost import GIGA, kv_bytes_per_token, parameter_count, prefill_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.io import read_json, text_of, write_text
from swiftkv.section import hub_id
from swiftkv.spec import SwiftKVSpec

REDUCTIONS = ("50", "25", "40", "62.5")  # in this order each takes an l
GROUPS = (1, 2, 4)
PROMPTS = {"512 in": 512, "2K in": 2000, "16K in": 16000, "128K in": 128000}
OUTPUT = 256
CARD = 80 * GIGA  # bytes of a GPU
SERVED, SCORED = 0.85, 0.7  # of a GPU that weights may fill; the rest is for a cache, or for logits and states
LARGE_MODEL = 7 * GIGA  # parameters from which on the paper's models could skip half of their layers
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
    gpus: {gpus}
    unavailable: {unavailable}
    # recipe: {{learning_rate: 1.0e-4}}  # keys of all its trainings
# A recipe that differs from another in some keys, and a variant trained with it.
# recipes:
#   slow: {{like: distillation, learning_rate: 1.0e-4}}
# variants:
#   swiftkv-50-slow: {{prefill_reduction: "50", acrosskv: 1, kv_heads: null, recipe: slow}}
artifacts:
  {table}:
    kind: table
    source: ours
    section: 5 Other
    title: quality with SingleInputKV and AcrossKV
    caption: Table 2 of another model.
    models: [{name}]
    variants: {variants}
    tasks: benchmarks
    panels:
      - columns: [prefill_reduction_percent, kv_cache_reduction_percent, tasks, average]
"""


def advise(model: str, profile: Profile, output: Path, *, measure: bool = False) -> Iterator[str]:
    """Yield what SwiftKV would give a model, then what was done about it.

    Args:
        model: org/name on the hub, a folder, or a file in it.
        profile: the profile to train with; without GPUs in it, neither has the configuration any.
        output: the configuration to write; its stem is the model's name there.
        measure: also measure, without training, how deep prompts must run.

    Raises:
        UserError: there is no such config.json, the model cannot be trained and scored, or not with this profile, or `output`
            cannot be written; nothing is.
    """
    description, source, title = describe(model)
    row, config, name = supported(model, description), read_config(profile), output.stem
    if name in config.models or f"{name}_quality" in config.artifacts:
        raise UserError(f"the configuration has a model or table {name!r} already; name another file with OUTPUT=")
    size = Size(description, fp8=bool(description.get("quantization_config")))
    gpus, (most, total) = gpus_needed(size, config), gpus_shared(profile, config)
    reason = not_served(row, size, processor=not most)
    reductions = layers_by_reduction(size.layers)
    first = "40" if size.parameters < LARGE_MODEL and "40" in reductions else "50"
    group = max(group for group in GROUPS if group <= size.layers - reductions["50"])
    across = [f"swiftkv-50-across{group}"] if group > 1 else []
    values = {
        "name": name,
        "table": f"{name}_quality",
        "title": title,
        "source": source or {"hub": "org/name"},
        "model_type": description["model_type"],
        "layers": size.layers,
        "reductions": reductions,
        "zero_stage": 2 if size.bytes < CARD / 4 else 3,
        "nodes": max(1, min(gpus["distill"], total) // max(1, most)),
        "gpus": {job: min(number, total if job == "distill" else most) for job, number in gpus.items()},
        "unavailable": {"serving": reason} if reason else None,
        "variants": list(dict.fromkeys(["baseline", f"swiftkv-{first}", "swiftkv-50", *across])),
    }
    text = CONFIGURATION.format(**{key: json.dumps(value) for key, value in values.items()})
    added = yaml.safe_load(text)
    yield possible(title, row, size, reason)
    yield from limits(name, added["models"][name], gpus, size, description)
    yield advice(size, reductions[first])
    if most and size.bytes > SERVED * CARD * most:
        raise UserError(
            f"{title} has {size.bytes / GIGA:.0f} GB of weights, more than the {count(most, 'GPU')} of 80 GB that a job has with "
            f"profile {profile.folder.name} can serve, so {output} is not written; take a smaller checkpoint, or a "
            "profile with more"
        )
    if total and total < gpus["distill"]:
        yield f"A training is meant for {count(gpus['distill'], 'GPU')}; with {total} its states may not fit into memory."
    config = read_config(profile, added)
    if not source:
        yield f"{output} is not written, as no weights lie beside this config.json: name their folder, or org/name"
        return
    if output.exists() and text_of(output) != text:
        raise UserError(f"{output} exists with other content; choose another file with OUTPUT=, or move it")
    write_text(output, text)
    results, variant = config.pathvars.results, f"swiftkv-{first}"
    if (trained := config.stand_ins.get(variant, variant)) != variant:
        yield f"With profile {profile.folder.name} {trained} stands in for {variant} (stand_ins)."
    words = f"PROFILE={profile.folder.name} CONFIG={output} TARGETS="
    checkpoint = f"{results}/checkpoints/{name}/{trained}"
    space = "" if most else "VLLM_CPU_KVCACHE_SPACE=4 "
    serve = "" if reason else f"\n  {space}vllm serve {checkpoint} --host 127.0.0.1"
    yield (
        f"{output} is written. Next:\n  make plan {words}{name}_quality\n  make reproduce {words}{checkpoint}/config.json\n"
        f"  make reproduce {words}{name}_quality{serve}"
    )
    if measure:
        target, share = f"{results}/reading/{name}/copied.json", config.entries["reading"]["share"]
        yield from measured(read_profile(profile.folder, [str(output)]), target, share, size.layers)


def describe(model: str) -> tuple[dict[str, Any], dict[str, Any] | None, str]:
    """Return a model's config.json, its `source` in the configuration, None if no weights lie beside the file, and its title.

    Raises:
        UserError: there is no config.json, or the hub refuses the name.
    """
    path = Path(os.path.abspath(Path(model).expanduser()))
    if not path.exists() and model.count("/") == 1 and model[0] not in "./~":
        try:
            hub_id(model)
        except ValueError as error:
            raise UserError(str(error)) from None
        description, gated = hub_config(model), False
        with contextlib.suppress(Exception):  # a silent hub; plans alone read it
            gated = bool(HfApi().repo_info(model, timeout=5).gated)
        return description, {"hub": model, "revision": "main", "gated": gated}, path.name
    if path.is_file() and not (path.suffix == ".json" and "model_type" in model_config(path)):
        path = path.parent  # of weights or another file of a checkpoint
    cached = next((part for part in (path, *path.parents) if part.name.startswith("models--")), None)
    if path == cached:  # the folder of a repository in the hub cache
        commit = text_of(path / "refs/main").strip() or "*"
        path = next(path.glob(f"snapshots/{commit}"), path)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there is no {file}; MODEL is a folder with a config.json, or org/name as on the hub")
    folder = file.parent
    weights = file.name == "config.json" and any(folder.glob("*.safetensors"))
    title = cached.name.split("--")[-1] if cached else folder.name if file.name == "config.json" else file.stem
    return model_config(file), {"local": str(folder)} if weights else None, title


def supported(model: str, description: Mapping[str, Any]) -> Architecture:
    """Return the row of a model's architecture; raise a `UserError` with what stands against training and scoring it."""
    kind = str(description.get("model_type"))
    if kind.endswith("_swiftkv"):
        raise UserError(f"{model} is a SwiftKV checkpoint; give the model that it was made from")
    try:
        row = architecture(kind)
    except UserError as error:
        fields = [name for name, value in {**description, **(description.get("text_config") or {})}.items() if value]
        has = [words for words, names in BESIDE.items() if any(field.startswith(names) for field in fields)]
        more = f"; its config.json has {', '.join(has)}" if has else ""
        raise UserError(f"{model} can be neither trained, scored nor served: {error}{more}") from None
    check_loaded(description, model)
    return row


def layers_by_reduction(layers: int) -> dict[str, int]:
    """Return l by prefill reduction in percent, each l once; raise a `UserError` if there is none."""
    if layers < 2:
        raise UserError("a model of one layer has no layers that prompts could skip")
    found: dict[str, int] = {}
    for reduction in REDUCTIONS:
        if layer := best_layer(layers, float(reduction), found.values()):
            found[reduction] = layer
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def best_layer(layers: int, reduction: float, taken: Collection[int] = ()) -> int | None:
    """Return the free l nearest to a reduction in percent; one layer off if that leaves more whole groups."""
    exact = layers * (1 - reduction / 100)
    near = {*range(max(1, math.ceil(exact - 1)), min(layers - 1, math.floor(exact + 1)) + 1)}.difference(taken)
    return max(near, key=lambda layer: (math.gcd(layers - layer, max(GROUPS)), -abs(layer - exact)), default=None)


def gpus_needed(size: Size, config: Config) -> dict[str, int]:
    """Return the GPUs of `CARD` bytes for each kind of job of a model, powers of two.

    Weights, states and activations of a training take eight times the GPUs of serving, but each has a row of every batch.
    """
    score, serve = (2 ** max(0, math.ceil(math.log2(size.bytes / (share * CARD)))) for share in (SCORED, SERVED))
    rows = math.gcd(*(recipe.batch_size // recipe.micro_batch_size for recipe in config.recipes.values()))
    return {"distill": min(8 * serve, rows & -rows) if size.bytes > CARD / 4 else 1, "score": score, "serve": serve}


def gpus_shared(profile: Profile, config: Config) -> tuple[int, int]:
    """Return the most GPUs of a node and of a training with a profile, powers of two or 0."""
    cluster = profile.cores is None
    total = profile.resources.get("gpu", 2**20 if cluster else 0)
    node = min(total, config.planning.gpu.node) if cluster else total
    return 1 << node.bit_length() >> 1, 1 << total.bit_length() >> 1


def not_served(row: Architecture, size: Size, *, processor: bool) -> str:
    """Return why vLLM cannot serve a model's variants; empty if it can."""
    if row.not_served or not processor and len(set(size.dimensions.windows)) == 1:
        return row.not_served
    if len(set(size.dimensions.windows)) > 1:
        return "some layers have a sliding window and some have not"
    head = size.dimensions.head_dim
    return "" if head in HEAD_SIZES else f"on processors vLLM has no heads of {head} elements"


def possible(title: str, row: Architecture, size: Size, reason: str) -> str:
    """Return what can be done with a model, in words; `reason` is that of `not_served`."""
    elsewhere = not_served(row, size, processor=True)
    served = f"no: {reason}" if reason else f"on GPUs; {elsewhere}" if elsewhere else "yes"
    return (
        f"{title}: {row.classes}, {size.layers} layers, {size.parameters / GIGA:.2f} billion parameters, of which a token "
        f"passes {size.passed / GIGA:.2f}\n  trained     yes{', from copied projections' if row.normalized else ''}\n"
        f"  scored      yes\n  served      {served}"
    )


def limits(
    name: str, entry: dict[str, Any], gpus: dict[str, int], size: Size, description: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a table of costs by l and group, and two of speed-ups by l; l = L is the unchanged model.

    Args:
        name, entry: of the model in the configuration.
        gpus: of its jobs.
        size, description: the model's.
    """
    settings = load()
    settings["models"][name] = entry
    config, arch, layers = check_config(settings), size.dimensions, size.layers
    memory = gpus["serve"] * CARD * config.serving.engine.gpu_memory_utilization
    cases = [(SwiftKVSpec(layers, layers), "-")]
    for reduction, layer in entry["num_key_value_layers"].items():
        variant = {"model": name, "variant": f"swiftkv-{reduction}"}  # a larger group takes hardly less
        work = Work(PlannedJob("distill", variant, resources=Resources(gpu=gpus["distill"])), config)
        work.size = size
        hours = f"{gpus['distill'] * work.seconds() / HOUR:,.1f}"
        cases += [(SwiftKVSpec(layers, layer, group), hours) for group in GROUPS if (layers - layer) % group == 0]
    costs = []
    speeds: dict[int, list[dict[str, object]]] = {OUTPUT: [], 1: []}
    for spec, hours in cases:
        row: dict[str, object] = {"l": spec.num_key_value_layers, "skipped": f"{100 * spec.prefill_reduction:.1f} %"}
        cached = kv_bytes_per_token(arch, spec)
        room = memory - size.bytes - 2 * (parameter_count(description, spec) - size.parameters)
        more = {
            "AcrossKV": spec.key_value_group_size,
            "GFLOPs a prompt token": f"{sum(prefill_flops(arch, spec, 1).values()) / GIGA:,.2f}",
            "KV bytes a token": f"{cached:,}",
            f"tokens in {count(gpus['serve'], 'GPU')}": f"{max(0, room) // cached:,.0f}",
            "H100-hours": hours,
        }
        costs.append(row | more)
        for output, rows in speeds.items() if spec.key_value_group_size == 1 else ():
            ratios = {
                label: f"{speedup_limits(arch, spec, prompt, output)['request_speedup']:.2f}x"
                for label, prompt in PROMPTS.items()
                if prompt + OUTPUT <= (description.get("max_position_embeddings") or math.inf)
            }
            rows.append(row | ratios)
    yield (
        f"Costs; weights and a 16-bit cache have {memory / GIGA:.0f} GB of {count(gpus['serve'], 'GPU')} of 80; hours of a "
        f"training with the paper's recipe\n{table(costs)}"
    )
    yield f"Limits of the speed-up of requests with {OUTPUT} output tokens, by length of the prompt\n{table(speeds[OUTPUT])}"
    yield f"Limits of the speed-up of their first token\n{table(speeds[1])}"


def advice(size: Size, layer: int) -> str:
    """Return a sentence on what to train first.

    Args:
        size: the model's.
        layer: the advised l.
    """
    layers = size.layers
    ratio = speedup_limits(size.dimensions, SwiftKVSpec(layers, layer), PROMPTS["2K in"], 1)["prefill_speedup"]
    lost = (
        "half of the layers the paper's models of 7B and more"
        if size.parameters >= LARGE_MODEL
        else "40 % the paper's 3B model"
    )
    return (
        f"Take l = {layer} without AcrossKV (group 1) first: prompts then skip {layers - layer} of {layers} layers, so the first "
        f"token comes up to {ratio:.1f} times as soon, and at {lost} lost about one point of quality. AcrossKV groups lose more; "
        "they pay where the KV cache limits how many requests run at once."
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
