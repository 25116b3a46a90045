"""Score one model on tasks and write a record for each."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.catalogue import asked
from pipeline.records import describe_spec, measurement, project_code, provenance, weights_of
from pipeline.score.fetch import Unavailable
from pipeline.score.served import score_served
from pipeline.sources import read_source, with_state
from pipeline.statistics import mean_and_stderr
from swiftkv.architectures import key_value_heads
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from pipeline.score.lm import CachedLM
    from pipeline.score.tasks import Benchmark


def measure_scores(
    model_source: Path,
    checkpoint: Path | None,
    variant: str,
    spec: SwiftKVSpec | None,
    kv_cache: Literal["auto", "fp8"],
    tasks: dict[str, dict[str, Any]],
    seed: int,
    outputs: Sequence[Path],
    engine_log: Path | None = None,
    fetched: Sequence[Path] = (),
    state: Path | None = None,
) -> None:
    """Score one variant of a model on tasks, which share one loading of it, and write a measurement "score" for each.

    A result is value and stderr (fractions; bits for `bits_per_byte`), n questions out of n_total, and `questions`, the
    value of each in the order asked with a hash that is equal where the same ones were asked in the same way; with an FP8 cache
    of transformers also `fp8_keys`, as `swiftkv.quantize.kv_cache.Peak` finds them. An
    `optional` source that cannot be had gives the status "unavailable"; without any source no model is loaded.

    Args:
        model_source: the model's source.json.
        checkpoint: trained checkpoint; None scores the model itself.
        variant: name of the variant.
        spec: the variant's rewiring; None where nothing is rewired.
        kv_cache: "auto" or "fp8".
        tasks: entries of the config by name: task, shots, chat_template, fewshot_as_multiturn, metric, filter, limit,
            batch_size, max_gen_toks and source (null for none), and optionally the engine (`config.scoring_engine`) with
            which vLLM generates its answers.
        seed: the seed of subsets and random few-shot examples.
        outputs: JSON files, one a task.
        engine_log: file for what vLLM prints; needed with an engine.
        fetched: folders of the questions that come from the hub (`fetch_questions`), each with the name of its task.
        state: folder for the answers so far, from which another call goes on; gone when all tasks are scored. Where a source
            was unavailable it stays, for when the source comes back.

    Raises:
        UserError: a file is missing or damaged, or a task, metric or filter is unknown.
        EngineFailure: vLLM failed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings are about choices made here on purpose
    model = read_source(model_source)
    subject = {
        "model": model,
        "variant": variant,
        "kv_cache": kv_cache,
        **weights_of(checkpoint),
        "spec": describe_spec(spec, key_value_heads(model["config"])),
    }
    tokenizer, folders = Path(model["path"]), {path.name: path for path in fetched}
    folder = checkpoint or tokenizer
    load = functools.cache(lambda: load_lm(folder, tokenizer, kv_cache))
    answered: dict[str, tuple[Any, ...]] = {}  # by all that was asked: several metrics are read off the same answers

    def score(name: str, task: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return result, settings it ran with, and further sections of the record."""
        request = (task, seed, folders.get(name))
        if "engine" in task:
            return score_served(folder, tokenizer, spec is not None, kv_cache, engine_log, *request)
        if (key := asked(task)) not in answered:
            from pipeline.score.tasks import build_benchmark

            benchmark, lm = build_benchmark(*request), load()
            lm.batch_size_per_gpu = task["batch_size"]
            lm.keep(state and answers_file(state, subject, [folder, tokenizer], name))
            samples = lm_eval_samples(lm, benchmark, task)
            ran = {"dtype": str(lm.model.dtype).removeprefix("torch.")}
            keys = {"fp8_keys": found} if (found := lm.peak.found()) else {}
            lm.peak.warn()
            answered[key] = benchmark, samples, ran, keys
        benchmark, samples, ran, keys = answered[key]
        result, settings = read_off(samples, benchmark, task)
        return result | keys, settings | ran, {"data": benchmark.data}

    print(f"{model['title']} {variant}, KV cache {kv_cache}: {', '.join(tasks)} ...", flush=True)
    places, said = dict(zip(tasks, outputs, strict=True)), dict[str, str]()
    # vLLM's come first, while no model of ours holds the GPU's memory.
    for name, task in sorted(tasks.items(), key=lambda entry: "engine" not in entry[1]):
        started, sections = time.monotonic(), {"data": task.get("source")}
        outcome = {"status": "ok", "reason": None, "result": None}
        settings = {"task": name, "lm_eval_task": task["task"], "seed": seed}
        settings |= {key: task[key] for key in ("metric", "filter", "shots", "limit")}
        settings["backend"] = "vllm" if "engine" in task else "transformers"
        try:
            outcome["result"], ran, sections = score(name, task)
            settings |= ran
            said[name] = format(outcome["result"]["value"], ".4f")
        except Unavailable as absence:
            said[name] = "unavailable"
            outcome |= {"status": "unavailable", "reason": str(absence)}
        seconds = time.monotonic() - started
        print(f"{name}: {outcome['reason'] or said[name]}, {seconds:.0f} s", flush=True)
        write_json(
            places[name], measurement("score", **subject, settings=settings, **outcome, seconds=seconds, **sections)
        )
    if len(said) > 1:  # a run shows a step's last line
        print(", ".join(f"{name} {value}" for name, value in said.items()), flush=True)
    if state is not None and "unavailable" not in said.values():
        shutil.rmtree(state, ignore_errors=True)


def answers_file(state: Path, subject: dict[str, Any], folders: list[Path], task: str) -> Path:
    """Return the file for the answers to a task; other files, code, libraries or kinds of machine have another one."""
    origin = provenance(0)
    conditions = subject | {
        "code": project_code(),
        "files": [with_state({"local": str(folder)})["files"] for folder in folders],
        "libraries": origin["libraries"],
        "hardware": origin["hardware"]["gpus"] or origin["hardware"],
    }
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    return state / f"{task}-{digest[:16]}.jsonl"


def load_lm(folder: Path, tokenizer: Path, kv_cache: str) -> CachedLM:
    """Load a checkpoint for lm-eval: on all GPUs there are, or on the processor."""
    from transformers import AutoTokenizer

    from pipeline.score.lm import CachedLM
    from swiftkv.device import device_map
    from swiftkv.models import load_any

    model = load_any(folder, device_map=device_map())
    return CachedLM(model, AutoTokenizer.from_pretrained(tokenizer), kv_cache=kv_cache)


def lm_eval_samples(lm: LM, benchmark: Benchmark, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the samples that lm-eval logs: one for every question of a task and each of its filters."""
    from lm_eval import evaluate

    results = evaluate(
        lm,
        {"tasks": benchmark.tasks},
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=task["chat_template"],
        fewshot_as_multiturn=task["chat_template"] and task["fewshot_as_multiturn"],
    )
    return [sample for part in results["samples"].values() for sample in part]


def read_off(
    samples: list[dict[str, Any]], benchmark: Benchmark, task: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of a score and the settings it ran with, from `lm_eval_samples` of a task that asks the same."""
    from pipeline.score.tasks import BITS_PER_BYTE, check_metric

    config = benchmark.config
    check_metric(task, config)
    samples = [sample for sample in samples if sample["filter"] == task["filter"]]
    in_bits = task["metric"] == BITS_PER_BYTE
    values = [bits_per_byte(sample) if in_bits else float(sample[task["metric"]]) for sample in samples]
    identities = ["".join(sample[key] for key in ("doc_hash", "prompt_hash", "target_hash")) for sample in samples]
    value, stderr = mean_and_stderr(values)
    result = {
        "value": value,
        "stderr": stderr,
        "n": len(values),
        "n_total": benchmark.n_total,
        "questions": {"sha256": hashlib.sha256("".join(identities).encode()).hexdigest(), "values": values},
    }
    settings = {
        "version": (config.get("metadata") or {}).get("version"),
        "tasks": len(benchmark.tasks),
        "output_type": config["output_type"],
        "chat_template": task["chat_template"],
        "fewshot_as_multiturn": task["chat_template"] and task["fewshot_as_multiturn"],
        "fewshot": benchmark.fewshot,
        "generation": config.get("generation_kwargs"),
        "batch_size": task["batch_size"],
        "prompt_example": samples[0]["arguments"][0][0],
        "response_example": samples[0]["resps"][0][0],
    }
    return result, settings


def bits_per_byte(sample: Mapping[str, Any]) -> float:
    """Bits the model needs for the expected continuation, over its UTF-8 bytes without the space that begins it.

    Args:
        sample: as lm-eval logs it of a task of the output type "loglikelihood", or "multiple_choice", whose target is the
            index of the right answer.
    """
    right = sample["target"] if len(sample["arguments"]) > 1 else 0
    (context, answer), ((loglikelihood, _greedy),) = sample["arguments"][right], sample["resps"][right]
    scored = context[len(context.rstrip()) :] + answer  # lm-eval counts white space between the two as the answer's
    return -loglikelihood / math.log(2) / len(scored.removeprefix(" ").encode())
