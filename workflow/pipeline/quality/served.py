"""Scores of a generative task as it is served: vLLM with this project's plugin, and so with fast prefill.

lm-eval runs in `served_program`, under the guard that leaves none of vLLM's processes behind. Where the two back ends would
differ, they are made alike there (`ServedLM`) or refused here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from pipeline.engines.environment import engine_environment
from pipeline.engines.log import observed
from pipeline.engines.worker import module, worker
from swiftkv.device import dtype_name
from swiftkv.errors import UserError

MAX_GEN_TOKS = 256  # tokens of an answer where the task says nothing, as in HFLM


def score_served(
    folder: Path,
    tokenizer: Path,
    rewired: bool,
    kv_cache: str,
    log: Path | None,
    task: dict[str, Any],
    seed: int,
    fetched: Path | None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Score a task that has an `engine`; the last three arguments are those of `build_benchmark`.

    Returns:
        The result and the settings of its record, and the record's sections `data` and `engine`, the latter as vLLM printed
        it to `log`.

    Raises:
        QuestionsUnavailable: as `build_benchmark`.
        UserError: vLLM is not installed, or its answers would not be those of transformers.
        EngineFailure: vLLM failed.
    """
    import torch

    if log is None:
        raise UserError("scoring with vLLM needs --engine-log, a file for what it prints")
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "scoring.backend is vllm, which is not installed: run `make setup` (with GPUs `make setup-gpu`), or score with "
            "transformers"
        )
    engine = task["engine"]
    engine = engine | {"dtype": dtype_name(engine["dtype"], "cuda" if engine["gpus"] else "cpu")}
    environment = engine_environment(engine["gpus"], torch.get_num_threads())
    job = (folder, tokenizer, task | {"engine": engine}, seed, fetched)
    with worker(module("pipeline.quality.served_program"), log, environment, "vLLM") as program:
        answer = program.ask(job)
        printed = program.program.text
    if isinstance(answer, Exception):
        raise answer
    result, settings, data = answer
    seen = observed(printed, kv_cache_dtype=kv_cache, swiftkv=rewired)
    return result, settings | {"dtype": engine["dtype"], "engine": engine}, {"data": data, "engine": seen}


def refuse_sampling(name: str, settings: dict[str, Any]) -> None:
    """Refuse a task, by name and generation_kwargs of its lm-eval config, whose answers are drawn at random."""
    if settings.get("do_sample") or (settings.get("temperature") and settings.get("do_sample") is None):
        raise UserError(
            f"lm-eval task {name!r} samples its answers, so they are not comparable; score it with transformers"
        )
