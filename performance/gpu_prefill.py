"""Prefill without vLLM: time of one forward pass over a prompt, and Figure 2 (right) of a record that it wrote.

python performance/gpu_prefill.py results/check-gpu/6.json figure.png
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from gpu_models import Outcome, Sizes, half, random_model
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.statistics import of_turns, ratio_of_turns
from swiftkv.cost import Dimensions, request_flops, speedup_limits
from swiftkv.device import compute_device
from swiftkv.io import read_json
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

# Least share of the limit by FLOPs, of prompts of at least so many tokens. A share above MOST means that work was left out.
SHARES, MOST = {0: 0.85, 8192: 0.9}, 1.05


@torch.no_grad()
def prefill(sizes: Sizes, folder: Path) -> Outcome:
    """Time forward passes over one prompt that fill the KV cache and give its last token's logits, the variants in turns
    (A B C C B A) on shared weights, with FlashAttention through SDPA on a GPU."""
    cuda, spec = torch.cuda.is_available(), half(sizes.large)
    arch = Dimensions.from_config(sizes.large)
    specs = {"baseline": None, "swiftkv-50": spec,
             "swiftkv-50-across4": SwiftKVSpec(spec.num_hidden_layers, spec.num_key_value_layers, 4)}  # fmt: skip
    base = random_model(sizes.large)
    models = {name: base if spec is None else rewire(base, spec) for name, spec in specs.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in specs}
    for length, rounds in sizes.prompts.items():
        ids = torch.randint(3, sizes.large["vocab_size"], (1, length), device=compute_device())
        times: dict[str, list[float]] = {name: [] for name in specs}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if cuda else contextlib.nullcontext():
            for name in [*specs, *[*specs, *reversed(specs)] * rounds]:
                times[name].append(forward_seconds(models[name], ids))
        turns = {name: seconds[1:] for name, seconds in times.items()}  # the first warms up
        for name, spec in specs.items():
            ratio, own = ratio_of_turns(turns["baseline"], turns[name]), of_turns(turns[name]).value
            flops = sum(request_flops(arch, spec, length, 1).values())
            found[name][str(length)] = {
                "samples_seconds": turns[name], "seconds": own, "tflops": flops / own / 1e12, "speedup": ratio.value,
                "low": ratio.low, "high": ratio.high,
                "limit": speedup_limits(arch, spec, length, 1)["request_speedup"],
            }  # fmt: skip
    return judge_prefill(found, judged=cuda)


def forward_seconds(model: Any, ids: torch.Tensor) -> float:
    """Return the seconds of a forward pass over a prompt, int64 [1, T], with the logits of its last token."""
    begin = time.perf_counter()
    model(ids, use_cache=True, logits_to_keep=1).logits.cpu()  # waits for the GPU
    return time.perf_counter() - begin


def judge_prefill(found: dict[str, dict[str, Any]], *, judged: bool = True) -> Outcome:
    """Judge each variant's speed-up by prompt length relative to the limit by FLOPs."""
    words, passed = [], True
    for name, lengths in found.items():
        for length, one in lengths.items() if name != "baseline" else ():
            least = max((tokens, share) for tokens, share in SHARES.items() if tokens <= int(length))[1]
            share = one["speedup"] / one["limit"]
            passed &= least <= share <= MOST or not judged
            words.append(
                f"{name} at {length} {one['speedup']:.3f}x ({share:.2f} of {one['limit']:.3f}, at least {least})"
            )
    return passed, ", ".join(words), found


def draw(record: dict[str, Any], output: Path) -> None:
    """Draw Figure 2 (right): seconds of a forward pass by tokens of the prompt, and its limit by FLOPs (dotted)."""
    # With matplotlib, which a machine that only runs the checks may lack.
    from pipeline.artifacts.drawing import COLUMN, handle, look, new_figure, wide_axis

    gpus, numbers = record["provenance"]["hardware"]["gpus"], record["numbers"]
    series = [handle(name, **look(name).line) for name in numbers] + [
        handle("limit by FLOPs", color="0.4", linestyle=":")
    ]
    figure = new_figure(COLUMN, 2.6, f"Time per forward pass ({', '.join(gpus) or 'processor'})", series)
    axes = figure.subplots()
    for name, lengths in numbers.items():
        tokens, seconds = [int(length) for length in lengths], [one["seconds"] for one in lengths.values()]
        limits = [numbers["baseline"][length]["seconds"] / one["limit"] for length, one in lengths.items()]
        axes.plot(tokens, limits, color=look(name).color, linestyle=":")
        axes.plot(tokens, seconds, **look(name).line)
    axes.set(xlabel="tokens of the prompt", ylabel="seconds")
    wide_axis(axes.xaxis, pd.Series(tokens))
    wide_axis(axes.yaxis, pd.Series(seconds))
    figure.savefig(output)


if __name__ == "__main__":
    draw(read_json(sys.argv[1]), Path(sys.argv[2]))
