"""Score one model on one task and write the record of it."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftkv.errors import UserError
from swiftkv.records import describe_spec, key_value_heads, measurement, read_json, weights_of, write_json
from swiftkv.score.data import TaskData, Unavailable

if TYPE_CHECKING:
    from swiftkv.score.lm import CachedLM
    from swiftkv.score.tasks import Benchmark


def measure_score(
    model_source: Path,
    checkpoint: Path | None,
    variant: str,
    spec: dict | None,
    kv_cache: str,
    task_name: str,
    task: dict[str, Any],
    seed: int,
    output: Path,
) -> dict[str, Any]:
    """Score one variant of a model on one task and write the measurement "score".

    Its result is value and stderr as fractions, n questions out of n_total. An `optional` source that cannot be had
    gives the status "unavailable", and no model is loaded.

    Args:
        model_source: the model's source.json.
        checkpoint: trained checkpoint; None scores the model itself.
        variant: name of the variant.
        spec: fields of its `SwiftKVSpec`; None where nothing is rewired.
        kv_cache: "auto" or "fp8".
        task_name: key of the task in the config.
        task: its entry: task, shots, chat_template, fewshot_as_multiturn, metric, filter, limit, batch_size, and
            optionally max_gen_toks and source.
        seed: for subsets and random few-shot examples.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged, the spec cannot be, or the task, metric or filter is unknown.
    """
    started = time.monotonic()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings are about choices made here on purpose
    model = read_json(model_source)
    described = describe_spec(spec, key_value_heads(model["config"]))
    folder = Path(checkpoint or model["path"])
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no checkpoint: it has no config.json")
    settings = {
        "task": task_name,
        "lm_eval_task": task["task"],
        "metric": task["metric"],
        "filter": task.get("filter") or "none",
        "shots": task["shots"],
        "limit": task.get("limit"),
        "seed": seed,
    }
    status, reason, result, data = "ok", None, None, task.get("source")
    print(f"{model['title']} {variant}, KV cache {kv_cache}: {task_name} ...", flush=True)
    try:
        from swiftkv.score.tasks import build_benchmark

        source = TaskData(task["task"], task.get("source"))
        benchmark = build_benchmark(task, source, seed)
        data = source.record()
        lm = load_lm(folder, Path(model["path"]), kv_cache, task["batch_size"])
        result, ran = run_benchmark(lm, benchmark, task)
        settings |= ran
        error = "" if result["stderr"] is None else f" +- {result['stderr']:.4f}"
        outcome = f"{task['metric']} {result['value']:.4f}{error}, {result['n']} of {result['n_total']} questions"
    except Unavailable as absence:
        status, reason = "unavailable", str(absence)
        outcome = f"unavailable: {reason}"
    record = measurement(
        "score",
        model=model,
        variant=variant,
        kv_cache=kv_cache,
        **weights_of(checkpoint),
        spec=described,
        status=status,
        reason=reason,
        settings=settings,
        result=result,
        seconds=time.monotonic() - started,
        data=data,
    )
    write_json(output, record)
    print(f"{task_name}: {outcome}, {time.monotonic() - started:.0f} s", flush=True)
    return record


def load_lm(folder: Path, tokenizer: Path, kv_cache: str, batch_size: int) -> CachedLM:
    """A checkpoint as lm-eval runs it: on all GPUs there are, or on the processor with shared prompts run once."""
    import torch
    from transformers import AutoTokenizer

    from swiftkv.models import load_any
    from swiftkv.score.lm import CachedLM, PrefixSharingLM

    gpu = torch.cuda.is_available()
    model = load_any(folder, torch.bfloat16, device_map="auto" if gpu else None)
    kind = CachedLM if gpu else PrefixSharingLM
    return kind(model, AutoTokenizer.from_pretrained(tokenizer), kv_cache=kv_cache, batch_size=batch_size)


def run_benchmark(lm: CachedLM, benchmark: Benchmark, task: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a task of the config; the result of its score, and the settings it really ran with."""
    from lm_eval import evaluate

    chat = bool(task.get("chat_template"))
    multiturn = chat and bool(task.get("fewshot_as_multiturn"))
    results = evaluate(
        lm,
        {"tasks": benchmark.tasks},
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=chat,
        fewshot_as_multiturn=multiturn,
    )
    wanted = task.get("filter") or "none"
    samples = [sample for part in results["samples"].values() for sample in part if sample["filter"] == wanted]
    value, stderr = mean_and_stderr([float(sample[task["metric"]]) for sample in samples])
    config = benchmark.config
    settings = {
        "version": (config.get("metadata") or {}).get("version"),
        "tasks": len(benchmark.tasks),
        "output_type": config["output_type"],
        "chat_template": chat,
        "fewshot_as_multiturn": multiturn,
        "fewshot": benchmark.fewshot,
        "gen_prefix": config.get("gen_prefix"),
        "generation": config.get("generation_kwargs"),
        "batch_size": lm.batch_size,
        "max_length": lm.max_length,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "prompt_example": samples[0]["arguments"][0][0],
        "target_example": str(samples[0]["target"]),
        "response_example": samples[0]["resps"][0][0],
    }
    return {"value": value, "stderr": stderr, "n": benchmark.n, "n_total": benchmark.n_total}, settings


def mean_and_stderr(values: list[float]) -> tuple[float, float | None]:
    """Mean, and the standard error of the mean from the sample's standard deviation; None for one value.

    Where all questions come out wrong, or all right, that would be 0. The error then is that of a sample with two wrong
    and two right answers more (Agresti and Coull), which is of the size of the interval's real width.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    if mean in (0.0, 1.0) and set(values) == {mean}:
        share = (math.fsum(values) + 2) / (len(values) + 4)
        return mean, math.sqrt(share * (1 - share) / (len(values) + 4))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
