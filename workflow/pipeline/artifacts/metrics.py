"""The metrics of artifacts: the measurement that has each, how a column is headed, how a value is printed, and its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MISSING, OOM, NONE = "n/a", "OOM", "–"
IN_NOISE = "≈"  # before a number whose interval holds what it is compared with
SPACE = "\N{NO-BREAK SPACE}"


class Metric(NamedTuple):
    """A metric.

    Attributes:
        measure: kind of the records that have it; "spec" is the variant's rewiring, "cost" the model's
            dimensions, "table" the table itself.
        header: of its column; may hold line breaks.
        form: ".2f" and the like, "s3" for three significant digits; the part behind a bar follows the number: ".2f|×".
        unit: of its values.
    """

    measure: str
    header: str
    form: str = ".2f"
    unit: str = ""


# Which input of an artifact holds the records of a measure.
INPUTS = {
    "score": "scores", "fidelity": "fidelity", "early_exit": "early_exit", "similarity": "similarity",
    "reading": "reading",
    "training": "training", "throughput": "serving", "latency": "serving", "forward_time": "serving",
    "kv_capacity": "serving", "decode": "serving", "answer": "serving",
}  # fmt: skip
METRICS: Mapping[str, Metric] = {
    "prefill_reduction_percent": Metric("spec", "Prefill\nreduction", ".1f", "%"),
    "kv_cache_reduction_percent": Metric("spec", "AcrossKV\n(cache reduction)", ".1f", "%"),
    "average": Metric("table", "Avg.", ".2f", "%"),
    "vocab_gflops": Metric("cost", "Vocab", "s3", "GFLOP/token"),
    "kv_gflops": Metric("cost", "K,V", "s3", "GFLOP/token"),
    "qo_gflops": Metric("cost", "Q,O", "s3", "GFLOP/token"),
    "q_gflops": Metric("cost", "Q", "s3", "GFLOP/token"),
    "k_gflops": Metric("cost", "K", "s3", "GFLOP/token"),
    "v_gflops": Metric("cost", "V", "s3", "GFLOP/token"),
    "o_gflops": Metric("cost", "O", "s3", "GFLOP/token"),
    "mlp_gflops": Metric("cost", "MLP", "s3", "GFLOP/token"),
    "attention_gflops": Metric("cost", "Attn.", "s3", "GFLOP/token"),
    "total_gflops": Metric("cost", "Total", "s3", "GFLOP/token"),
    "relative_percent": Metric("cost", "Rel.", ".1f|%", "%"),
    "exact_q_gflops": Metric("cost", "Q", "s3", "GFLOP/token"),
    "exact_k_gflops": Metric("cost", "K", "s3", "GFLOP/token"),
    "exact_v_gflops": Metric("cost", "V", "s3", "GFLOP/token"),
    "exact_o_gflops": Metric("cost", "O", "s3", "GFLOP/token"),
    "exact_mlp_gflops": Metric("cost", "MLP", "s3", "GFLOP/token"),
    "exact_attention_gflops": Metric("cost", "Attn.", "s3", "GFLOP/token"),
    "exact_total_gflops": Metric("cost", "Total", "s3", "GFLOP/token"),
    "exact_relative_percent": Metric("cost", "Rel.", ".1f|%", "%"),
    "prefill_speedup_limit": Metric("cost", "Prefill\nspeed-up", ".2f|×", "×"),
    "request_speedup_limit": Metric("cost", "Request\nspeed-up", ".2f|×", "×"),
    "kv_capacity_limit_bfloat16": Metric("cost", "KV\ncapacity", ".2f|×", "×"),
    "kv_capacity_limit_fp8": Metric("cost", "KV capacity\nwith FP8", ".2f|×", "×"),
    "kv_cache_kib_per_token": Metric("cost", "KV cache,\nKiB a token", ",.4g", "KiB"),
    "kl": Metric("fidelity", "KL to teacher,\nnats a token", ".4f", "nats/token"),
    "answer_kl": Metric("fidelity", "KL of last\nanswers", ".4f", "nats/token"),
    "top1_agreement": Metric("fidelity", "Top-1\nagreement, %", ".2f", "%"),
    "perplexity": Metric("fidelity", "Perplexity", ".2f"),
    "start_kl": Metric("fidelity", "KL before\ntraining", ".4f", "nats/token"),
    "start_answer_kl": Metric("fidelity", "KL of answers\nbefore training", ".4f", "nats/token"),
    "start_top1_agreement": Metric("fidelity", "Top-1 before\ntraining, %", ".2f", "%"),
    "start_perplexity": Metric("fidelity", "Perplexity\nbefore training", ".2f"),
    "training_hours": Metric("training", "Hours", "s3", "h"),
    "training_tokens": Metric("training", "Tokens", ",.0f", "tokens"),
    "training_hardware": Metric("training", "Hardware"),
    "training_tokens_per_second": Metric("training", "Tokens/s", "s3", "tokens/s"),
    "training_tokens_per_device": Metric("training", "Tokens/s\na device", "s3", "tokens/s"),
    "training_steps": Metric("training", "Steps", ",.0f", "steps"),
    "training_gpus": Metric("training", "GPUs", ",.0f", "GPUs"),
    "loss_first": Metric("training", "First\nloss", "s4"),
    "loss_last": Metric("training", "Last\nloss", "s4"),
    "sure_percent": Metric("early_exit", "Sure\n(%)", "s3", "%"),
    "sure_alignment_percent": Metric("early_exit", "Aligned where\nsure (%)", ".1f", "%"),
    "alignment_percent": Metric("early_exit", "Aligned\n(%)", ".1f", "%"),
    "exited_percent": Metric("early_exit", "Exited\n(%)", ".1f", "%"),
    "full_depth_ms": Metric("early_exit", "ms a token,\nfull depth", "s3", "ms"),
    "early_exit_ms": Metric("early_exit", "ms a token,\nearly exit", "s3", "ms"),
    "time_ratio": Metric("early_exit", "Time\nratio", ".3f"),
    "equal_tokens_percent": Metric("early_exit", "Same\ntokens (%)", ".1f", "%"),
    "bin_percent": Metric("early_exit", "Positions (%)", ".1f", "%"),
    "bin_alignment_percent": Metric("early_exit", "Agreement (%)", ".1f", "%"),
    "simscore": Metric("similarity", "SimScore (cosine similarity)", ".3f"),
    "pairwise": Metric("similarity", "Cosine similarity", ".3f"),
    "kept": Metric("reading", "Reading kept", ".2f"),
    "own_gain": Metric("reading", "Own gain\nof reading", ".2f"),
    "reading_kl": Metric("reading", "KL of gold\nanswers", ".4f", "nats/token"),
    "prompt_flops_percent": Metric("reading", "FLOPs of\na prompt, %", ".1f", "%"),
    "previous_token_head": Metric("reading", "Attention to\nthe token before", ".2f"),
    "induction_head": Metric("reading", "Attention to what\nfollowed before", ".2f"),
    "tokens_per_second": Metric("throughput", "Input and output\ntokens / s", "s3", "tokens/s"),
    "tokens_per_second_per_gpu": Metric("throughput", "Tokens / s\na device", "s3", "tokens/s"),
    "normalized_tflops_per_gpu": Metric("throughput", "Normalized\nTFLOP/s per device", "s3", "TFLOP/s"),
    "exact_tflops_per_gpu": Metric("throughput", "TFLOP/s\nper device", "s3", "TFLOP/s"),
    "mfu_percent": Metric("throughput", "MFU, %", ".1f", "%"),
    "speedup": Metric("throughput", "Speed-up", ".2f|×", "×"),
    "speedup_limit": Metric("throughput", "Limit\nby FLOPs", ".2f|×", "×"),
    "engine_kv_tokens": Metric("throughput", "KV tokens", ",.0f", "tokens"),
    "node_tokens_per_second": Metric("throughput", "Tokens / s\nof a node", "s3", "tokens/s"),
    "speedup_over_first_model": Metric("throughput", "Over the\nfirst model", ".2f|×", "×"),
    "kv_cache_tokens": Metric("kv_capacity", "KV tokens", ",.0f", "tokens"),
    "kv_cache_gib": Metric("kv_capacity", "KV memory,\nGiB", "s3", "GiB"),
    "kv_kib_per_token": Metric("kv_capacity", "KiB a token", "s4", "KiB"),
    "capacity_ratio": Metric("kv_capacity", "Against\nbaseline", ".3f|×", "×"),
    "capacity_ratio_limit": Metric("kv_capacity", "Cost model\nallows", ".3f|×", "×"),
    "forward_ms": Metric("forward_time", "Time of a forward pass (ms)", "s3", "ms"),
    "forward_speedup": Metric("forward_time", "Speed-up over the baseline", ".2f|×", "×"),
    "forward_speedup_limit": Metric("forward_time", "Limit by FLOPs", ".2f|×", "×"),
    "decode_ms": Metric("decode", "ms", "s3", "ms"),
    "decode_ratio": Metric("decode", "Ratio", ".2f|×", "×"),
    "ttft_median_ms": Metric("latency", "Time to first\ntoken (ms)", "s3", "ms"),
    "ttft_mean_ms": Metric("latency", "Mean time to\nfirst token (ms)", "s3", "ms"),
    "ttft_p99_ms": Metric("latency", "99th percentile\nof TTFT (ms)", "s3", "ms"),
    "tpot_median_ms": Metric("latency", "Time per output\ntoken (ms)", "s3", "ms"),
    "tpot_mean_ms": Metric("latency", "Mean time per\noutput token (ms)", "s3", "ms"),
    "tpot_p99_ms": Metric("latency", "99th percentile\nof TPOT (ms)", "s3", "ms"),
    "ttft_reduction_percent": Metric("latency", "TTFT reduction, %", ".1f", "%"),
    "tpot_reduction_percent": Metric("latency", "TPOT reduction, %", ".1f", "%"),
    "sustained": Metric("latency", "Sustained", ".0f"),
    "achieved_request_rate": Metric("latency", "Achieved\nrequests a second", "s3", "1/s"),
    "highest_sustained_rate": Metric("latency", "Highest sustained\nrequests a second", "s3", "1/s"),
    "sustained_rate_speedup": Metric("latency", "Gain in\nsustained rate", ".2f|×", "×"),
    "sustained_rate_limit": Metric("latency", "Highest rate\nby FLOPs", "s3", "1/s"),
    "question": Metric("answer", "Question"),
    "answer": Metric("answer", "Answer"),
    "answer_tokens": Metric("answer", "Tokens", ",.0f", "tokens"),
    "first_token_ms": Metric("answer", "First token,\nms", "s3", "ms"),
    "answer_seconds": Metric("answer", "Last token,\ns", "s3", "s"),
    "first_token_speedup": Metric("answer", "First token,\nspeed-up", ".2f|×", "×"),
}  # fmt: skip


def significant(value: float, digits: int) -> float:
    """`value` rounded to `digits` significant digits, but never coarser than a whole number."""
    if value == 0:
        return 0.0
    return round(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def show(value: float, form: str) -> str:
    """A value in a form of `Metric`: 4.3, 113 and 0.020 in "s2"; 1.25× in ".2f|×"."""
    form, _, suffix = form.partition("|")
    if form.lstrip("+").startswith("s"):
        digits = int(form.lstrip("+")[1:])
        rounded = significant(value, digits)
        decimals = 0 if rounded == 0 else max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        return f"{rounded:{'+' if form[0] == '+' else ''},.{decimals}f}{suffix}"
    return f"{value:{form}}{suffix}"


def show_interval(value: float, low: float | None, high: float | None, form: str) -> str:
    """A value with its interval: `value ± half` where it lies in the middle, else `value [low, high]`."""
    text = show(value, form)
    if low is None or high is None or low == high:
        return text
    plain = form.partition("|")[0].lstrip("+")
    reach = (high - low) / 2
    if abs(high - value - reach) < 1e-6 * reach:
        if plain.startswith("s"):  # as many decimals as the value
            plain = f".{len(text.partition('.')[2])}f"
        return f"{text}{SPACE}±{SPACE}{show(reach, plain)}"
    return f"{text}{SPACE}[{show(low, plain)},{SPACE}{show(high, plain)}]"


def percent(fraction: float) -> str:
    """A fraction as an exact percentage where three decimals are enough (46.875%), else to one decimal (53.3%)."""
    value = 100 * fraction
    text = f"{value:.3f}"
    return (text.rstrip("0").rstrip(".") if abs(value - float(text)) < 1e-9 else f"{value:.1f}") + "%"


def length_label(tokens: float) -> str:
    """Thousands of tokens as the paper writes them: 2000 is 2K, 4096 is 4K, 512 is 512."""
    for thousand in (1000, 1024):
        if tokens >= thousand and tokens % thousand == 0:
            return f"{tokens / thousand:g}K"
    return f"{tokens:,.0f}"


def enumeration(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else "none"


def some(items: Sequence[str], most: int = 3) -> str:
    """The first of many: `a, b, c and 7 more`."""
    return enumeration(items if len(items) <= most + 1 else [*items[:most], f"{len(items) - most} more"])
