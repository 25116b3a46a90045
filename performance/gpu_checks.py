"""The checks of `check_gpu.py`; `python performance/gpu_checks.py NUMBER answer.json FOLDER SIZES [--eager]` runs one.

Each check measures (a function of `Sizes` and a folder) and then judges its numbers by the limits below. Those of speed, memory
and loss were stated before any GPU ran them; those of speed follow from the FLOP count (`swiftkv.cost.speedup_limits`) of the
requests.
"""

from __future__ import annotations

import json
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from gpu_models import (
    SIZES,
    Outcome,
    Reference,
    Sizes,
    case,
    engines,
    half,
    make_model,
    make_prompts,
    make_recipe,
    make_rows,
    random_model,
)
from gpu_prefill import prefill
from gpu_training import more_tokens, resume

from pipeline.artifacts.records import Record
from pipeline.measure.dummy import dummy_checkpoint
from pipeline.measure.job import ServingSettings, measure_points
from pipeline.measure.offline import peak_tflops
from pipeline.statistics import ratio_of_turns
from swiftkv.cost import Dimensions, added_weights, prefill_flops
from swiftkv.device import compute_device, compute_dtype
from swiftkv.distill.packing import PackedRows
from swiftkv.distill.step import make_step, use_attention
from swiftkv.distill.trainer import Loop, make_engine, start_distributed
from swiftkv.errors import UserError
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec

# Root mean square of log-probabilities' differences from float32, relative to that of a yardstick of the same run; 200
# tokens give it within a tenth. Below ROUNDING nat a yardstick in float32 is too good to be one.
NOISE, ROUNDING = 1.5, 1e-3
FP8_LOGPROB = 0.2  # nat, at most
PREFILL = {2000: 1.45, 16_000: 1.5}  # least speed-up of prompts of so many tokens, one token out
MIXED = {2000: 1.3, 16_000: 1.3}  # the same with 256 tokens out, in steps of 2,048 tokens
DECODING = 0.98  # least speed of decoding, relative to the unchanged model
MFU, PEAK_GIB = 35.0, 48.0  # percent; of an 8B model on one GPU, rows of 8,192 tokens one at a time
PATIENCE = 2.5  # a check is stopped after so many times its estimate
# Relative difference of the loss between two attention kernels; in bfloat16 tiny shapes differ by 0.003.
LOSS = {"cuda": 1e-3, "cpu": 1e-2}


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        number, name: as they are printed.
        seconds: how long it takes on an H100, estimated.
        run: measures and judges.
        graphs: whether its engines capture CUDA graphs, without which it can run as well.
        usual: whether it is one of those that run if none is named.
    """

    number: int
    name: str
    seconds: float
    run: Callable[[Sizes, Path], Outcome]
    graphs: bool = False
    usual: bool = True


def card(sizes: Sizes, folder: Path) -> Outcome:
    """Time a dense product and a copy."""
    device, dtype = compute_device(), compute_dtype()
    left, right = (torch.randn(sizes.product, sizes.product, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(sizes.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    tflops = 2 * sizes.product**3 / fastest(lambda: left @ right) / 1e12
    rate = 2 * sizes.copied / fastest(lambda: target.copy_(source)) / 1e12  # read and written
    return True, f"{tflops:.4g} TFLOP/s in {dtype}, {rate:.3g} TB/s", {"tflops": tflops, "tb_per_second": rate}


def fastest(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of twelve calls."""

    def once() -> None:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return min(timeit.repeat(once, number=1, repeat=12))


def exactness(sizes: Sizes, folder: Path) -> Outcome:
    """Compare eager answers with Hugging Face's in float32, and count rows by step; with fast prefill and at full depth they
    may differ little more than the unchanged model's do."""
    prompts, eager = make_prompts(sizes), {"enforce_eager": True}
    models = {name: make_model(folder / name, sizes.small, spec)
              for name, spec in {"unchanged": None, "swiftkv": half(sizes.small)}.items()}  # fmt: skip
    cases = {
        "unchanged": case(models["unchanged"], prompts, eager),
        "fast prefill": case(models["swiftkv"], prompts, eager),
        "full depth": case(models["swiftkv"], prompts, eager | {"additional_config": {"swiftkv_full_depth": True}}),
    }
    few = make_prompts(sizes, lengths=(300, 20, 30, 300))
    rows = {"rows": case(models["swiftkv"], few, eager | {"max_num_batched_tokens": 128}, steps=True)}
    answers = engines(folder, cases | rows, runner="1" if torch.cuda.is_available() else None)
    steps = answers.pop("rows")["steps"]
    if torch.cuda.is_available():
        old = engines(folder, cases, runner="0")
        answers |= {f"{name}, first runner": answer for name, answer in old.items()}
    references = {name: Reference(model, prompts) for name, model in models.items()}
    found = {
        name: references["unchanged" if name.startswith("unchanged") else "swiftkv"].compare(answer)
        for name, answer in answers.items()
    }
    passed, line, numbers = judge_answers(found, "unchanged")
    right, told, counted = judge_steps(steps)
    asynchronous = [answer.get("async_scheduling", False) for answer in answers.values()]
    passed &= right and (all(asynchronous) or not torch.cuda.is_available())
    line += f", with asynchronous scheduling in {sum(asynchronous)} of {len(asynchronous)} engines"
    return passed, f"{line}; {told}", numbers | counted


def judge_answers(found: dict[str, dict[str, float]], yardstick: str) -> Outcome:
    """Judge each run's differences from a reference (`Reference.compare`): no sure token differs, and log-probabilities do
    so little more than those of the run `yardstick`."""
    usual = found[yardstick]["rms"]
    worst = max(found, key=lambda name: (found[name]["tokens"], found[name]["rms"]))
    tokens, rms, largest = (found[worst][key] for key in ("tokens", "rms", "largest"))
    line = (f"{tokens:.0f} of {found[worst]['sure']:.0f} sure tokens differ in {worst!r}, log-probabilities by {rms:.4f} nat "
            f"(rms; {largest:.3f} at most), by {usual:.4f} in {yardstick!r}")  # fmt: skip
    return tokens == 0 and rms <= max(ROUNDING, NOISE * usual), line, found


def graphs_and_caches(sizes: Sizes, folder: Path) -> Outcome:
    """Compare graphs, prompts in chunks beside decoding, FP8 KV and AcrossKV with Hugging Face; count graphs and caches."""
    layers, prompts, graphs = sizes.small["num_hidden_layers"], make_prompts(sizes), sizes.graphs
    spec = half(sizes.small)
    across = SwiftKVSpec(layers, spec.num_key_value_layers, (layers - spec.num_key_value_layers) // 2)
    plain, shared = make_model(folder / "plain", sizes.small, spec), make_model(folder / "shared", sizes.small, across)
    chunks, eager = {"max_num_batched_tokens": 64, "enforce_eager": not graphs}, {"enforce_eager": True}
    # As served: without a stated cache vLLM captures graphs to measure their memory, and deletes them.
    measured = chunks | ({"kv_cache_memory_bytes": None} if graphs else {})
    cases = {"one step": case(plain, prompts, eager), "AcrossKV": case(shared, prompts, chunks)}
    if torch.cuda.is_available():
        cases["FP8"] = case(plain, prompts, eager | {"kv_cache_dtype": "fp8"})
    # Last, as its cache takes half of the memory.
    answers = engines(folder, cases | {"graphs" if graphs else "chunks": case(plain, prompts, measured)})
    other, small = answers.pop("AcrossKV"), answers.pop("FP8", None)
    reference = Reference(plain, prompts)
    found = {name: reference.compare(answer) for name, answer in answers.items()}
    found["AcrossKV"] = Reference(shared, prompts).compare(other)
    base = answers["one step"]["kv_cache_tokens"]
    heads = sizes.small["num_key_value_heads"]
    wanted = (1 - spec.kv_cache_reduction(heads)) / (1 - across.kv_cache_reduction(heads))
    capacity = {"AcrossKV": (other["kv_cache_tokens"] / base, wanted)}
    passed, line, numbers = judge_answers(found, "one step")
    if small:
        capacity["FP8"] = (small["kv_cache_tokens"] / base, 2.0)
        largest = (fp8 := reference.compare(small))["largest"]
        passed, numbers = passed and largest <= FP8_LOGPROB, numbers | {"FP8": fp8}
        line += f"; FP8 {largest:.3f} nat at most (limit {FP8_LOGPROB:g})"
    captured = {name: (answer["captured"], answer["sizes"]) for name, answer in answers.items()}
    good, told = judge_graphs(captured)
    fits, also = judge_capacity(capacity)
    return passed and good and fits, f"{line}; {told}; {also}", numbers | {"captured": captured, "capacity": capacity}


def judge_graphs(captured: dict[str, tuple[list[int], list[int]]]) -> tuple[bool, str]:
    """Judge by run the upper half's graphs after the start: all of vLLM's sizes, and no other."""
    stale = {name for name, (own, sizes) in captured.items() if own != sizes}
    count = max(len(sizes) for _, sizes in captured.values())
    return not stale, f"{count} graphs of the upper half" + (f", not vLLM's in {', '.join(stale)}" if stale else "")


def judge_capacity(capacity: dict[str, tuple[float, float]]) -> tuple[bool, str]:
    """Judge by cache its measured and expected tokens, relative to SingleInputKV's: within 3 %."""
    words = [f"{name} cache x {measured:.2f} (x {wanted:.2f})" for name, (measured, wanted) in capacity.items()]
    return all(abs(measured / wanted - 1) <= 0.03 for measured, wanted in capacity.values()), ", ".join(words)


def speed(sizes: Sizes, folder: Path) -> Outcome:
    """Time prompts alone, with the paper's 256 tokens out, and decoding, all on one engine; a speed-up with a limit of 0 is
    only printed."""
    points, least = {}, {}
    for length, number in sizes.batches.items():
        points[f"prompts-{length}"] = throughput(length, 1, number // 2)
        points[f"requests-{length}"] = throughput(length, sizes.output, number)
        least |= {f"prompts-{length}": PREFILL.get(length, 0.0), f"requests-{length}": MIXED.get(length, 0.0)}
    for batch in sizes.decode:  # a prompt of one token is a step like the others
        points[f"decode-{batch}"] = throughput(1, sizes.output, batch)
        least[f"decode-{batch}"] = DECODING if torch.cuda.is_available() else 0.0
    found = in_pairs(sizes, folder, points)
    words = [
        f"{name} {one['speedup']:.3f}x [{one['low']:.3f}, {one['high']:.3f}] (at least {least[name]:g}; FLOPs "
        f"{one['limit']:.2f})"
        for name, one in found.items()
    ]
    return all(one["speedup"] >= least[name] for name, one in found.items()), ", ".join(words), found


def throughput(length: int, output: int, number: int) -> dict[str, Any]:
    """Return the settings of a throughput point of `number` requests."""
    return {
        "measure": "throughput",
        "input_tokens": length,
        "output_tokens": output,
        "total_tokens": number * (length + output),
    }


def in_pairs(sizes: Sizes, folder: Path, points: dict[str, dict]) -> dict[str, dict[str, Any]]:
    """Measure points of the large model in turns with its baseline (A B B A), dummy weights, on engines of both.

    Returns:
        `speedup`, the geometric mean of the turns, `low` and `high` of its interval, and the `limit` by FLOPs, for each point.
    """
    gpus, spec = 1 if torch.cuda.is_available() else 0, half(sizes.large)
    write_json(folder / "source.json", {"name": "shape", "config": sizes.large})
    for name, rewired in {"baseline": None, "swiftkv": spec}.items():
        dummy_checkpoint(folder / "source.json", rewired, folder / name)
    engine = {"dtype": "auto", "max_num_batched_tokens": 2048, "max_num_seqs": 256, "enforce_eager": not sizes.graphs,
              "gpu_memory_utilization": 0.45, "cpu_kv_cache_gib": 1}  # fmt: skip
    shared = {"engine": engine, "seed": 0, "in_turns": True, "repeats": sizes.turns}
    asked = {name: point | shared for name, point in points.items()}
    files = [folder / f"{name}/shape/swiftkv/auto.json" for name in points]
    measure_points(
        ServingSettings("dummy", spec.fields, False, None, asked), "shape", "random weights", "swiftkv", "auto",
        folder / "source.json", folder / "swiftkv", folder / "baseline", None, 600, sizes.threads, gpus, folder / "vllm.log",
        folder / "state", files,
    )  # fmt: skip
    found = {}
    for name, record in zip(points, map(Record.read, files), strict=True):
        if (turns := record.turns()) is None:
            raise UserError(
                f"{name} was not measured beside the baseline: {record.reason or 'no memory for two engines'}"
            )
        ratio = ratio_of_turns(*turns)
        limit = record.cost["request_speedup_limit"]
        found[name] = {"speedup": ratio.value, "low": ratio.low, "high": ratio.high, "limit": limit}
    return found


def judge_steps(steps: list[dict[str, Any]]) -> Outcome:
    """Judge by step the rows of upper products: none where no prompt ends, else as many as requests that got a token, and
    at most one for a prompt that goes on, whose last row vLLM counts as well."""

    def right(one: dict[str, Any]) -> bool:
        rows, sampled = set(one["upper"]), one["sampled"]
        return bool(rows) and rows <= {sampled, sampled + 1} if sampled else not rows

    wrong = [one for one in steps if not right(one)]
    idle = sum(not one["sampled"] for one in steps)
    line = f"{len(steps)} steps, {idle} of them without an end of a prompt; upper rows wrong in {len(wrong)}"
    return not wrong and idle > 0, line, {"steps": steps}


def training(sizes: Sizes, folder: Path) -> Outcome:
    """Time optimizer steps of the large model, and compare two attention kernels on short rows."""
    spec, recipe = half(sizes.large), make_recipe(sizes.row)
    rows = make_rows(folder / "rows.safetensors", sizes.row, sizes.large["vocab_size"], 4 * (sizes.steps + 3))
    short = make_rows(folder / "short.safetensors", sizes.short, sizes.large["vocab_size"], 1)
    step = make_step(random_model(sizes.large), spec, recipe)
    step.to(compute_device())
    losses = kernel_losses(step, recipe, short)
    start_distributed()
    engine = make_engine(step, recipe)
    loop = Loop(engine, recipe, rows, None, sizes.steps + 3)
    times, tokens = [], []
    for number in range(sizes.steps + 3):
        if number == 3:
            compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        begin = time.perf_counter()
        tokens.append(loop.run(number)["tokens"])
        times.append(time.perf_counter() - begin)
    recompiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled
    speed = sum(tokens[3:]) / sum(times[3:])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peak = peak_tflops(gpu, recipe.dtype, None)
    return judge_training({
        "losses": losses,
        "recompiled": recompiled,
        "tokens_per_second": speed,
        "tflops": speed * token_flops(sizes.large, spec) / 1e12,
        "peak_tflops": peak,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
    })  # fmt: skip


def judge_training(found: dict[str, Any]) -> Outcome:
    """Judge losses of two kernels, graphs compiled after the third step, and where the card is known MFU and peak memory."""
    (first, one), (second, other) = found["losses"].items()
    agree, words = (
        abs(one - other) <= LOSS[compute_device()] * abs(other),
        f"loss {one:.5f} with {first}, {other:.5f} with {second}",
    )
    good = agree and not found["recompiled"]
    words += f"; {found['recompiled']} graphs compiled late; {found['tokens_per_second']:.0f} tokens/s"
    if found["peak_tflops"]:
        mfu = 100 * found["tflops"] / found["peak_tflops"]
        good, words = good and mfu >= MFU, f"{words}, MFU {mfu:.1f} % (at least {MFU:g})"
    if found["peak_gib"] is not None:
        good = good and found["peak_gib"] <= PEAK_GIB
        words += f", {found['peak_gib']:.1f} GiB at most (limit {PEAK_GIB:g})"
    return good, words, found


def token_flops(config: dict[str, Any], spec: SwiftKVSpec) -> float:
    """Return the FLOPs of a distilled token: layers < l once, layers >= l three times, trained weights, three head products."""
    dimensions = Dimensions.from_config(config)
    body, lower = (sum(prefill_flops(dimensions, one, 1).values()) for one in (None, spec))
    head = 2 * config["vocab_size"] * config["hidden_size"]
    return lower + 3 * (body - lower) + 2 * added_weights(dimensions, spec) + 3 * head


@torch.no_grad()
def kernel_losses(step: Any, recipe: Any, rows: PackedRows) -> dict[str, float]:
    """Return the mean loss of the first row by attention kernel: with a dense mask, and with the recipe's, which the step
    keeps."""
    batch = {name: tensor.to(compute_device()) for name, tensor in rows[[0]].items()}
    weights = batch.pop("loss_mask")
    losses = {}
    for kernel in ("sdpa", recipe.attention):
        step.attention = use_attention(recipe.model_copy(update={"attention": kernel}), step.student)
        losses[step.attention] = float(step(weights=weights / weights.sum(), **batch)[0])
    return losses


CHECKS = {
    check.number: check
    for check in (
        # In the order in which they say most; seconds are estimates.
        Check(0, "card", 20, card),
        Check(1, "eager answers and rows", 110, exactness),
        Check(2, "speed", 300, speed, graphs=True),
        Check(3, "training step", 70, training),
        Check(4, "stop and resume", 100, resume),
        Check(5, "graphs, chunks and caches", 150, graphs_and_caches, graphs=True),
        Check(6, "forward passes without vLLM", 90, prefill, usual=False),
        Check(7, "more training tokens", 360, more_tokens, usual=False),
    )
}


def main() -> None:
    number, output, folder, size, *options = sys.argv[1:]
    sizes = SIZES[size]
    sizes = replace(sizes, graphs=sizes.graphs and "--eager" not in options)
    passed, summary, numbers = CHECKS[int(number)].run(sizes, Path(folder))
    answer = {"status": "pass" if passed else "fail", "summary": summary, "numbers": numbers}
    Path(output).write_text(json.dumps(answer, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
