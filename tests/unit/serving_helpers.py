"""Made-up serving records in the form that swiftkv.measure writes; their numbers mean nothing."""

from swiftkv.artifacts.serving import Serving
from swiftkv.spec import SwiftKVSpec

H100 = {"processor": "Some(R) CPU @ 2.00GHz", "cores": 96, "threads": 96, "gpus": ["NVIDIA H100 80GB HBM3"] * 8}
CPU = {"processor": "Intel(R) Xeon(R) Processor @ 2.90GHz", "cores": 2, "threads": 2, "gpus": []}
SPECS = {
    "baseline": None,
    "merge-all-layers": None,
    "swiftkv-50": SwiftKVSpec(32, 16),
    "swiftkv-50-across4": SwiftKVSpec(32, 16, 4),
}
LIMITS = {"baseline": 1.0, "merge-all-layers": 1.0, "swiftkv-50": 1.8, "swiftkv-50-across4": 1.9}


def record(benchmark, point, variant, kv_cache="auto", result=None, *, model="llama-3.1-8b", **changes):
    """One record; without a result it is an out-of-memory one. `changes` replace whole fields or update dictionaries."""
    spec = SPECS[variant]
    made = {
        "measure": benchmark,
        "point": point,
        "model": model,
        "title": "Llama-3.1-8B-Instruct" if model == "llama-3.1-8b" else model.title(),
        "variant": variant,
        "kv_cache": kv_cache,
        "weights": "trained" if spec else "original",
        "spec": None if spec is None else vars(spec),
        "merge_all_layers": variant == "merge-all-layers",
        "status": "ok" if result else "oom",
        "reason": None if result else "no memory is left for the KV cache",
        "settings": {
            "input_tokens": 2000,
            "output_tokens": 256,
            "num_prompts": 100,
            "total_tokens": 225600,
            "max_num_batched_tokens": 2048,
            "enforce_eager": True,
            "tensor_parallel_size": 1,
            "memory_gib": None,
            "dtype": "bfloat16",
            "seed": 0,
            "speculative": None,
            "command": ["vllm"],
        },
        "engine": {
            "vllm": "0.32.0",
            "attention_backend": "FLASH_ATTN",
            "compilation": "eager",
            "kv_cache_tokens": 93184 if result else None,
            "kv_cache_dtype": kv_cache,
            "prefix_caching": False,
            "fast_prefill": spec is not None,
        },
        "cost": {
            "baseline_flops_per_token": 16e9,
            "request_speedup_limit": LIMITS[variant],
            "prefill_speedup_limit": LIMITS[variant] + 0.1,
        },
        "result": result,
        "hardware": H100,
    }
    for name, value in changes.items():
        made[name] = {**made[name], **value} if isinstance(made[name], dict) and name != "hardware" else value
    return made


def speed(tokens_per_second):
    """The result of a throughput point."""
    return {
        "tokens_per_second": tokens_per_second,
        "output_tokens_per_second": tokens_per_second / 8,
        "requests_per_second": tokens_per_second / 2256,
        "seconds": 100.0,
        "num_prompts": 100,
        "tokens": 225600,
        "normalized_tflops_per_gpu": tokens_per_second * 16e9 / 1e12,
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
    sustained = [entry["request_rate"] for entry in entries if entry["sustained"]]
    return {"rates": entries, "highest_sustained_rate": max(sustained, default=None), "criterion": "made up"}


def serving(records, points, cases, published=None):
    """What an artifact would show of `records`, models in the order of the records."""
    models = list(dict.fromkeys(each["model"] for each in records))
    keyed = {(each["point"], each["model"], each["variant"], each["kv_cache"]): each for each in records}
    return Serving(keyed, models, points, cases, {model: model for model in models}, published or {})
