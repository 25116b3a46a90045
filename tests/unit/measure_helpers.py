"""Points and subjects for the tests of pipeline.measure."""

from pipeline.measure import run
from pipeline.measure.dummy import dummy_checkpoint
from pipeline.measure.point import vllm_command
from pipeline.measure.subject import Subject
from pipeline.measure.turns import Engines
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec

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
SPEC = SwiftKVSpec(num_hidden_layers=8, num_key_value_layers=4, key_value_group_size=2)


def subject(folder, **changes):
    """An ordinary tiny model in `folder`, which gets its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", LLAMA)
    identity = {"name": "tiny", "title": "Tiny", "kind": "local", "id": "tiny", "revision": None, "resolved": None}
    fields = {"identity": identity, "variant": "baseline", "kv_cache": "auto", "weights": "original"}
    return Subject(**fields | {"folder": folder} | changes)


def write_dummy(config, spec, folder):
    """A folder without weights for a model with these dimensions."""
    write_json(folder.with_suffix(".json"), {"config": config})
    dummy_checkpoint(folder.with_suffix(".json"), spec, folder)


def command(subject, point):
    return vllm_command(subject, point, point.max_model_len(subject.config), point.memory(subject))


def measure(subject, point, work):
    work.mkdir(exist_ok=True)
    with Engines(work / "vllm.log") as engines:
        return run.measure(subject, point, engines)


def point(benchmark, gpus=0, threads=1, engine=None, **values):
    lengths = {"input_tokens": 100, "output_tokens": 16} if benchmark != "forward_time" else {}
    asked = {"measure": benchmark, "seed": 0, "engine": ENGINE | (engine or {})} | lengths | values
    return run.read_point("a-point", asked, gpus=gpus, threads=threads)


REPORT = {
    "duration": 10.5, "completed": 20, "failed": 0, "total_input_tokens": 2000, "total_output_tokens": 320,
    "request_throughput": 1.9, "output_throughput": 30.4, "total_token_throughput": 220.9, "errors": ["", "x"],
    **{f"{statistic}_{name}_ms": 7.0 for statistic in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl", "e2el")},
}  # fmt: skip
