"""Score one model on tasks and write a record for each."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.quality.fetch import QuestionsUnavailable
from pipeline.quality.served import score_served
from pipeline.records import KeptAnswers, describe_spec, machine, measurement, weights_of
from pipeline.sources import read_source
from pipeline.statistics import mean_and_stderr
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from pipeline.quality.lm import CachedLM
    from pipeline.quality.tasks import Benchmark


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
        "spec": describe_spec(spec, model["config"]),
    }
    tokenizer, folders = Path(model["path"]), {path.name: path for path in fetched}
    folder = checkpoint or tokenizer
    load = functools.cache(lambda: load_lm(folder, tokenizer, kv_cache))
    # Not before vLLM is done: to ask a GPU for its name takes some of its memory.
    kept = functools.cache(lambda: KeptAnswers(state, subject | {"machine": machine()}, [folder, tokenizer]))
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
            request = (task | {"tokenizer": tokenizer}, seed, folders.get(name))
            if "engine" in task:
                found = score_served(folder, tokenizer, spec is not None, kv_cache, engine_log, *request)
            else:
                found = score(load, kept, *request)
            outcome["result"], ran, sections = found
            settings |= ran
            said[name] = format(outcome["result"]["value"], ".4f")
        except QuestionsUnavailable as absence:
            said[name] = "unavailable"
            outcome |= {"status": "unavailable", "reason": str(absence)}
        seconds = time.monotonic() - started
        print(f"{name}: {outcome['reason'] or said[name]}, {seconds:.0f} s", flush=True)
        write_json(
            places[name], measurement("score", **subject, settings=settings, **outcome, seconds=seconds, **sections)
        )
    if len(said) > 1:  # a run shows a step's last line
        print(", ".join(f"{name} {value}" for name, value in said.items()), flush=True)
    if "unavailable" not in said.values():
        kept().delete()


def score(
    load: Callable[[], CachedLM],
    kept: Callable[[], KeptAnswers],
    task: dict[str, Any],
    seed: int,
    fetched: Path | None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Score a task with transformers; the last three arguments are those of `build_benchmark`.

    Returns:
        The result and the settings of its record, and the record's section `data`.

    Raises:
        QuestionsUnavailable, UserError: as `build_benchmark`, before `load` is called.
    """
    from pipeline.quality.tasks import build_benchmark
    from swiftkv.quantize.kv_cache import Peak

    benchmark, lm = build_benchmark(task, seed, fetched), load()
    # Tasks that read other metrics off the same answers find them kept.
    lm.batch_size_per_gpu, lm.kept, lm.peak = task["batch_size"], kept(), Peak()
    result, settings = read_off(lm_eval_samples(lm, benchmark, task), benchmark, task)
    keys = {"fp8_keys": largest} if (largest := lm.peak.found()) else {}
    lm.peak.warn()
    dtype = str(lm.model.dtype).removeprefix("torch.")
    return result | keys, settings | {"dtype": dtype}, {"data": benchmark.data}


def load_lm(folder: Path, tokenizer: Path, kv_cache: str) -> CachedLM:
    """Load a checkpoint for lm-eval: on all GPUs there are, or on the processor."""
    from transformers import AutoTokenizer

    from pipeline.quality.lm import CachedLM
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
    from pipeline.quality.tasks import BITS_PER_BYTE, check_metric

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
