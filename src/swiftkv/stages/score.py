"""Scores a variant on benchmarks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftkv.predict.engine import Limits
from swiftkv.predict.step import Served
from swiftkv.pricing.serving import busy_seconds
from swiftkv.pricing.work import Work
from swiftkv.score.catalogue import Asks, asked, asks
from swiftkv.stages.stage import Stage

LONGEST = 2  # assumed: the longest of a batch of answers, in mean lengths


def seconds(work: Work) -> float:
    """Some tasks, or a shard of one."""
    # A shard's file is called by its number.
    tasks = [work["task"]] if "task" in work.job.wildcards else [Path(path).stem for path in work.job.outputs]
    tasks = list({asked(work.config["tasks"][task]): task for task in tasks}.values())  # which answer one another
    shards = int(work.job.wildcards.get("shards", 1))
    total = work.machine["task"] * len(tasks)
    for task in tasks:
        engine = work.config.scoring_engine(work["model"], work["variant"], work["kv_cache"], task)
        entry = work.config.tasks[task]
        amount = asks(entry, task)
        if engine is None:
            total += transformers(work, amount, entry.batch_size) / shards
        else:
            total += work.machine["engine"] + vllm(work, amount, engine) / shards
    return work.run(total)


def transformers(work: Work, task: Asks, batch: int) -> float:
    """Seconds of one task with transformers: every prompt token at full depth, an answer ends with its batch's longest.

    On a processor what prompts have in common is computed once (`swiftkv.score.lm.PrefixSharingLM`).
    """
    size, machine, shared = work.size, work.machine, work.machine.kind == "cpu"
    context = task.shots + task.prompt + task.choice
    if shared:
        tokens = task.questions * (task.prompt + task.choices * task.choice) + task.shots
        sampled = task.questions * task.choices * task.choice
    else:
        tokens = task.questions * max(1, task.choices) * context
        sampled = tokens if task.choices else 0
    flops = tokens * size.layers * size.layer(context) + sampled * size.head
    steps = math.ceil(task.questions / batch) * LONGEST * task.answer
    if shared:  # a batch's steps also compute, which only a processor feels
        flops += steps * batch * (size.layers * size.layer(1) + size.head)
    return machine.compute(flops, "forward", machine.alone) + machine.decode(steps, size.bytes, size.layers)


def vllm(work: Work, task: Asks, engine: Mapping[str, Any]) -> float:
    """Seconds of one generated task with vLLM: prompt tokens skip layers from l on, all GPUs work."""
    served = Served(work.size.arch, work.spec, work.machine.device, work.machine.together, work.size.fp8)
    limits = Limits(engine["max_num_batched_tokens"], engine["max_num_seqs"])
    return busy_seconds(served, limits, max(1, round(task.prompt)), max(1, round(task.answer)), task.questions)


STAGE = Stage(
    name="score",
    output="scores/{model}/{variant}/{kv_cache}/{task}.json",
    run="swiftkv.score.run:measure_scores",
    gpus="score",
    seconds=seconds,
)
