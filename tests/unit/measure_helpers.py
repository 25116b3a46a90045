"""Points and subjects for the tests of swiftkv.measure."""

import contextlib
import json
from pathlib import Path

import psutil

from swiftkv.measure.kind import Run
from swiftkv.measure.point import Point, Subject

ENGINE = {
    "dtype": "bfloat16",
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.9,
    "cpu_kv_cache_gib": 1,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
SPEC = {
    "num_hidden_layers": 8,
    "num_key_value_layers": 4,
    "key_value_group_size": 2,
    "num_key_value_heads": None,
}


def subject(folder: Path, **changes) -> Subject:
    """An ordinary tiny model in `folder`, which gets its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    identity = {"name": "tiny", "title": "Tiny", "kind": "local", "id": "tiny", "revision": None, "resolved": None}
    fields = {"identity": identity, "variant": "baseline", "kv_cache": "auto", "weights": "original"}
    return Subject(**fields | {"folder": folder} | changes)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def run_of(subject: Subject, point: Point, work: Path, heldout: Path | None = None) -> Run:
    """A measurement under way in `work`."""
    return Run(subject, point, work, point.budget(subject), heldout)


def point(benchmark: str, gpus: int = 0, threads: int = 1, engine: dict | None = None, **values) -> Point:
    """A point of one kind with small lengths."""
    shared = {"output_tokens": 16, "seed": 0, "engine": ENGINE | (engine or {}), "input_tokens": 100}
    return Point("a-point", shared | {"measure": benchmark} | values, gpus, threads)
