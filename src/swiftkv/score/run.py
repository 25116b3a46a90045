"""Score one model on one task and write the record of it."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.records import provenance, read_json, write_json
from swiftkv.score.data import TaskData, Unavailable
from swiftkv.spec import SwiftKVSpec


class Scorer:
    """One model (variant) with one KV cache, scored on any number of tasks; the model is loaded when first needed.

    Args:
        model_source: path of the model's source.json.
        checkpoint: SwiftKV checkpoint folder; None scores the base model.
        variant: name of the variant.
        spec: fields of its `SwiftKVSpec`; None for the base model.
        kv_cache: "auto" or "fp8".
        seed: for subsets and random few-shot examples.

    Raises:
        UserError: a file is missing or damaged, or the spec cannot be.
    """

    def __init__(
        self, model_source: Path, checkpoint: Path | None, variant: str, spec: dict | None, kv_cache: str, seed: int
    ) -> None:
        self.source = read_json(model_source)
        self.folder = Path(checkpoint or self.source["path"])
        self.variant, self.kv_cache, self.seed = variant, kv_cache, seed
        self.spec = describe_spec(spec, self.source)
        if not (self.folder / "config.json").is_file():
            raise UserError(f"{self.folder} is no checkpoint: it has no config.json")
        self._lm = None

    def score(self, name: str, task: dict[str, Any]) -> dict[str, Any]:
        """Score one task of the config.

        Args:
            name: its key in the config.
            task: the entry: task, shots, chat_template, fewshot_as_multiturn, metric, filter, limit, batch_size, and
                optionally max_gen_toks and source.

        Returns:
            The record of the contract of `results/scores`: value and stderr as fractions, n, settings, sources.

        Raises:
            UserError: an unknown task, metric or filter, or data that is missing or damaged.
        """
        started = time.monotonic()
        record = {
            "model": self.source["name"],
            "title": self.source["title"],
            "variant": self.variant,
            "spec": self.spec,
            "kv_cache": self.kv_cache,
            "task": name,
            "status": "ok",
            "reason": None,
            "metric": task["metric"],
            "value": None,
            "stderr": None,
            "n": 0,
            "n_total": None,
            "shots": task["shots"],
            "seed": self.seed,
            "settings": {"task": task["task"]},
            "model_source": identity(self.source),
            "data_source": task.get("source"),
        }
        try:
            data = TaskData(task["task"], task.get("source"))
            record |= self._measure(task, data)
            record["data_source"] = data.record()
        except Unavailable as reason:
            record |= {"status": "unavailable", "reason": str(reason)}
        return record | {"provenance": provenance(time.monotonic() - started)}

    def _measure(self, task: dict[str, Any], data: TaskData) -> dict[str, Any]:
        from lm_eval import evaluate

        from swiftkv.score.tasks import build_benchmark

        benchmark = build_benchmark(task, data, self.seed)
        lm = self._model()
        lm.batch_size_per_gpu = task["batch_size"]
        chat = bool(task.get("chat_template"))
        results = evaluate(
            lm,
            {"tasks": benchmark.tasks},
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat and bool(task.get("fewshot_as_multiturn")),
        )
        wanted = task.get("filter") or "none"
        samples = [sample for part in results["samples"].values() for sample in part if sample["filter"] == wanted]
        value, stderr = mean_and_stderr([float(sample[task["metric"]]) for sample in samples])
        config = benchmark.config
        return {
            "value": value,
            "stderr": stderr,
            "n": benchmark.n,
            "n_total": benchmark.n_total,
            "settings": {
                "task": task["task"],
                "version": (config.get("metadata") or {}).get("version"),
                "tasks": len(benchmark.tasks),
                "output_type": config["output_type"],
                "filter": wanted,
                "chat_template": chat,
                "fewshot_as_multiturn": chat and bool(task.get("fewshot_as_multiturn")),
                "fewshot": benchmark.fewshot,
                "gen_prefix": config.get("gen_prefix"),
                "generation": config.get("generation_kwargs"),
                "limit": task.get("limit"),
                "batch_size": lm.batch_size,
                "max_length": lm.max_length,
                "dtype": str(lm.model.dtype).removeprefix("torch."),
                "prompt_example": samples[0]["arguments"][0][0],
                "target_example": str(samples[0]["target"]),
                "response_example": samples[0]["resps"][0][0],
            },
        }

    def _model(self):
        if self._lm is None:
            import torch
            from transformers import AutoTokenizer

            from swiftkv.models import load_any
            from swiftkv.score.lm import CachedLM, PrefixSharingLM

            gpu = torch.cuda.is_available()
            model = load_any(self.folder, torch.bfloat16, device_map="auto" if gpu else None)
            tokenizer = AutoTokenizer.from_pretrained(self.source["path"])
            self._lm = (CachedLM if gpu else PrefixSharingLM)(model, tokenizer, kv_cache=self.kv_cache)
        return self._lm


def score_tasks(
    model_source: Path,
    checkpoint: Path | None,
    variant: str,
    spec: dict | None,
    kv_cache: str,
    tasks: list[tuple[str, dict, Path]],
    seed: int,
) -> None:
    """Score (name, config entry, output) one after the other with one copy of the model; see `Scorer`."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings are about choices made here on purpose
    scorer = Scorer(model_source, checkpoint, variant, spec, kv_cache, seed)
    for name, task, output in tasks:
        started = time.monotonic()
        print(f"{scorer.source['title']} {variant}, KV cache {kv_cache}: {name} ...", flush=True)
        record = scorer.score(name, task)
        write_json(output, record)
        if record["status"] == "ok":
            error = "" if record["stderr"] is None else f" +- {record['stderr']:.4f}"
            outcome = f"{record['metric']} {record['value']:.4f}{error}, {record['n']} of {record['n_total']} questions"
        else:
            outcome = f"unavailable: {record['reason']}"
        print(f"{name}: {outcome}, {time.monotonic() - started:.0f} s", flush=True)


def mean_and_stderr(values: list[float]) -> tuple[float, float | None]:
    """Mean, and the standard error of the mean from the sample's standard deviation; None for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def describe_spec(spec: dict | None, source: dict[str, Any]) -> dict[str, Any] | None:
    """The spec's fields with its exact reductions for the model of `source`; None for the base model.

    Raises:
        UserError: the spec cannot be.
    """
    if spec is None:
        return None
    try:
        rewiring = SwiftKVSpec(**spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"SwiftKV spec {json.dumps(spec)} cannot be: {error}") from None
    config = source["config"]
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    return spec | {
        "prefill_reduction": rewiring.prefill_reduction,
        "kv_cache_reduction": rewiring.kv_cache_reduction(heads),
    }


def identity(source: dict[str, Any]) -> dict[str, Any]:
    """What a model resolved to, without where it lies on this machine."""
    return {key: source.get(key) for key in ("name", "title", "kind", "id", "revision", "resolved")}
