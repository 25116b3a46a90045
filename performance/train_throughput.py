"""Training speed and memory of the distillation step against a plain two-model loop, and against what FLOPs allow.

Both do the same work on the same packed rows: one micro-batch forward, T^2 KL(teacher || student), backward, AdamW. The
plain loop holds two whole models, runs both from the embeddings up, makes all logits of both, and uses torch's KL
divergence and masked attention. Each side runs in a process of its own, because peak memory is a process's; the sides
alternate (A B A B ...), so that a slower minute of the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = dict(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
)  # fmt: skip
SIDES = ("plain", "swiftkv")
MODES = (*SIDES, "swiftkv-stored")


def make_rows(count: int, length: int, vocabulary: int, seed: int):
    """Packed rows of random samples with the lengths of short chats (log-normal, median about 110 tokens)."""
    import numpy as np

    from swiftkv.distill.packing import pack

    random = np.random.default_rng(seed)
    sizes = np.clip(random.lognormal(4.7, 0.5, count * length // 60), 8, length).astype(int)
    samples = [random.integers(3, vocabulary, size).astype(np.int32) for size in sizes]
    return pack(samples, length, seed, 0, max_rows=count)[0]


def dimensions(options: argparse.Namespace) -> dict[str, Any]:
    """The model's configuration."""
    from swiftkv.records import read_json

    return SMOLLM2 if options.model is None else read_json(options.model / "config.json")


def load(options: argparse.Namespace):
    """The model at `--model`, or random weights of SmolLM2-135M's dimensions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from swiftkv.models import load_base

    if options.model is not None:
        return load_base(options.model, torch.bfloat16)
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMOLLM2)).to(torch.bfloat16).eval()


def plain_step(options: argparse.Namespace):
    """The two-model loop, as one would write it."""
    import copy

    import torch
    import torch.nn.functional as F

    from swiftkv.models import rewire
    from swiftkv.spec import SwiftKVSpec

    teacher = load(options).requires_grad_(False)
    spec = SwiftKVSpec(teacher.config.num_hidden_layers, options.layers)
    student = rewire(copy.deepcopy(teacher), spec).requires_grad_(False)
    trained = list(student.swiftkv_parameters().values())
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.05)
    temperature = 2.0

    def run(batch: dict[str, Any]) -> float:
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        with torch.no_grad():
            target = teacher(**inputs, use_cache=False).logits.float()
        logits = student(**inputs, use_cache=False).logits.float()
        terms = F.kl_div(
            (logits / temperature).log_softmax(-1), (target / temperature).softmax(-1), reduction="none"
        ).sum(-1)
        loss = (terms * batch["loss_mask"]).sum() / batch["loss_mask"].sum() * temperature**2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def our_step(options: argparse.Namespace, stored: bool):
    """The project's trainer: the DeepSpeed engine around its step."""
    import yaml

    from swiftkv.distill.recipe import Recipe
    from swiftkv.distill.step import DistillationStep
    from swiftkv.distill.trainer import keep_freed_memory, make_engine, start_distributed
    from swiftkv.spec import SwiftKVSpec

    keep_freed_memory()
    recipe = Recipe.from_dict(
        yaml.safe_load((ROOT / "config.yaml").read_text())["recipes"]["distillation"]
        | {
            "data": "random",
            "batch_size": options.rows,
            "micro_batch_size": options.rows,
            "max_length": options.length,
            "teacher_states": "stored" if stored else "online",
            "zero_stage": 2,
        }
    )
    start_distributed()
    base = load(options)
    step = DistillationStep(base, SwiftKVSpec(base.config.num_hidden_layers, options.layers), recipe)
    engine = make_engine(step, recipe, 1)
    known: dict[int, dict[str, Any]] = {}

    def run(batch: dict[str, Any]) -> float:
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        weights = batch["loss_mask"] / batch["loss_mask"].sum()
        if stored:
            inputs |= known[id(batch)]
        loss, _ = engine(weights=weights, **inputs)
        engine.backward(loss)
        engine.step()
        return loss.item()

    def prepare(batches: list[dict[str, Any]]) -> None:
        for batch in batches if stored else []:
            state, final, _ = step.teacher_states(batch["input_ids"], batch["position_ids"])
            known[id(batch)] = {"lower_hidden": state.hidden, "teacher_hidden": final}

    run.prepare = prepare
    return run


def worker(options: argparse.Namespace) -> None:
    """One side: wait for a line on stdin, run some steps, answer with a JSON line."""
    import torch

    torch.set_num_threads(options.threads)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    step = plain_step(options) if options.worker == "plain" else our_step(options, options.worker == "swiftkv-stored")
    vocabulary = dimensions(options)["vocab_size"]
    arrays = make_rows(options.rows * options.steps, options.length, vocabulary, 1)
    kinds = {"input_ids": torch.int64, "position_ids": torch.int64, "loss_mask": torch.float32}
    batches = [
        {name: torch.from_numpy(arrays[name][start : start + options.rows]).to(kind) for name, kind in kinds.items()}
        for start in range(0, options.rows * options.steps, options.rows)
    ]
    if hasattr(step, "prepare"):
        step.prepare(batches)
    step(batches[0])
    print(json.dumps({"ready": True}), file=answers)
    for _ in sys.stdin:
        begin, processor = time.perf_counter(), time.process_time()
        losses = [step(batch) for batch in batches]
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        tokens = sum(int(batch["loss_mask"].sum()) for batch in batches)
        result = {"seconds": seconds, "processor_seconds": processor, "tokens": tokens, "loss": losses[-1]}
        print(json.dumps(result | {"peak_bytes": peak}), file=answers)


def flops(config: dict[str, Any], layers: int, mode: str) -> dict[str, float]:
    """FLOPs a token of the matrix products with weights; those of attention scores are left out on both sides.

    A backward pass costs one product more where only the input's gradient is needed, two where the weight's is too.
    """
    width, inner, depth, vocabulary = (
        config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    size = config.get("head_dim") or width // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    layer = 2 * (2 * width * query + 2 * width * key + 3 * width * inner)
    head, upper = 2 * width * vocabulary, depth - layers
    trained = 2 * upper * (width * query + 2 * width * key)
    student_backward = upper * layer + trained + head
    whole = depth * layer + head
    parts = {
        "plain": {"teacher": whole, "student forward": whole, "backward": student_backward},
        "swiftkv": {
            "layers below l, once": layers * layer,
            "teacher": upper * layer + head,
            "student forward": upper * layer + head,
            "backward": student_backward,
        },
        "swiftkv-stored": {"teacher": head, "student forward": upper * layer + head, "backward": student_backward},
    }[mode]
    return {**parts, "total": sum(parts.values())}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run every side `--repeats` times, alternating, and compare."""
    from swiftkv.records import provenance

    begin = time.perf_counter()
    config = dimensions(options)
    words = [sys.executable, __file__, "--length", str(options.length), "--rows", str(options.rows), "--steps",
             str(options.steps), "--layers", str(options.layers), "--threads", str(options.threads)]  # fmt: skip
    words += [] if options.model is None else ["--model", str(options.model)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    workers = {}
    try:
        for mode in MODES:
            pipe = subprocess.PIPE
            errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
            process = subprocess.Popen(
                [*words, "--worker", mode], stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment
            )
            workers[mode] = (process, errors)
            answer(mode, *workers[mode])
        for repeat in range(options.repeats):
            for mode in MODES:
                process, errors = workers[mode]
                process.stdin.write("go\n")
                process.stdin.flush()
                runs[mode].append(answer(mode, process, errors))
                speed = runs[mode][-1]["tokens"] / runs[mode][-1]["seconds"]
                print(f"run {repeat + 1}/{options.repeats}, {mode}: {speed:.0f} tokens/s", file=sys.stderr, flush=True)
    finally:
        for process, _ in workers.values():
            process.kill()
            process.wait()
    sides = {}
    for mode in MODES:
        count = flops(config, options.layers, mode)
        # Each repeat is compared with the plain run beside it.
        pairs = [plain["seconds"] / ours["seconds"] for plain, ours in zip(runs["plain"], runs[mode], strict=True)]
        allowed = flops(config, options.layers, "plain")["total"] / count["total"]
        sides[mode] = {
            "tokens_per_second": statistics.median(run["tokens"] / run["seconds"] for run in runs[mode]),
            "speedup": statistics.median(pairs),
            "speedups": pairs,
            "allowed_speedup": allowed,
            "share_of_allowed": statistics.median(pairs) / allowed,
            "peak_gigabytes": max(run["peak_bytes"] for run in runs[mode]) / 1e9,
            "flops_per_token": count,
            "achieved_gflops": statistics.median(count["total"] * r["tokens"] / r["seconds"] for r in runs[mode]) / 1e9,
            "last_loss": runs[mode][-1]["loss"],
        }
    settings = {name: getattr(options, name) for name in ("layers", "length", "rows", "steps", "repeats", "threads")}
    return {
        "settings": settings,
        "weights": "random, SmolLM2-135M dimensions" if options.model is None else "given checkpoint",
        "sides": sides,
        "provenance": provenance(time.perf_counter() - begin),
    }


def answer(mode: str, process: subprocess.Popen, errors: Any) -> dict[str, Any]:
    """The next line of a worker; its error output if it has died."""
    line = process.stdout.readline()
    if not line:
        errors.seek(0)
        sys.exit(f"the {mode} side failed:\n{errors.read()[-4000:]}")
    return json.loads(line)


def table(result: dict[str, Any]) -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| step | tokens/s | speed-up | FLOPs allow | share | peak memory |",
        "|---|---|---|---|---|---|",
    ]
    for mode, side in result["sides"].items():
        lines.append(
            f"| {mode} | {side['tokens_per_second']:.0f} | {side['speedup']:.2f} | {side['allowed_speedup']:.2f} | "
            f"{side['share_of_allowed']:.0%} | {side['peak_gigabytes']:.2f} GB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="ordinary checkpoint; random weights of SmolLM2-135M's size without")
    parser.add_argument("--layers", type=int, default=15, help="l, the layers that teacher and student share")
    parser.add_argument("--length", type=int, default=512, help="tokens of a packed row")
    parser.add_argument("--rows", type=int, default=4, help="packed rows a step")
    parser.add_argument("--steps", type=int, default=2, help="steps a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side")
    parser.add_argument("--threads", type=int, default=1, help="processor threads")
    parser.add_argument("--output", type=Path, help="write the result as JSON here too")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options)
        return
    result = measure(options)
    print(table(result))
    if options.output is not None:
        from swiftkv.records import write_json

        write_json(options.output, result)


if __name__ == "__main__":
    main()
