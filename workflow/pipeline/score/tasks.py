"""lm-eval tasks over a stated, seeded subset of their questions; prompts, filters and generation are lm-eval's own."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from pipeline.config.catalogue import leaf_configs, leaf_entries
from pipeline.score.data import QuestionFiles
from pipeline.score.fetch import Fetched, from_hub
from swiftkv.errors import UserError
from swiftkv.section import nearest

BITS_PER_BYTE = (
    "bits_per_byte"  # a metric of every task that scores one continuation, or names the right one of several
)


@dataclass
class Benchmark:
    """The tasks to evaluate for one score.

    Attributes:
        tasks: lm-eval tasks by name; one, or one a chosen subject of a group such as MMLU. Of a shard, those it asks.
        n_tasks: how many tasks there are over all shards.
        n: chosen questions, over all tasks and shards.
        n_total: questions there are to choose from.
        fewshot: where the examples come from, in words.
        config: the first task's lm-eval config as it is run.
        numbers: indices, among all chosen questions, of those that a shard asks, in its order; None asks all.
    """

    tasks: dict[str, ConfigurableTask]
    n_tasks: int
    n: int
    n_total: int
    fewshot: str
    config: dict[str, Any]
    numbers: list[int] | None


class PartialTask(ConfigurableTask):
    """A task that asks some of its questions.

    Prompts are made for all of them: random examples are drawn for one question after the other.

    Args:
        config: the task's lm-eval config.
        places: indices, among all questions, of those that are asked.
    """

    def __init__(self, config: dict[str, Any], places: Collection[int]) -> None:
        self.places = frozenset(places)
        self._instances = None  # lm-eval's, until prompts are made
        super().__init__(config=config)

    def construct_requests(self, doc: dict[str, Any], ctx: str | list[str], **kwargs: Any) -> Any:
        """As any task, for questions that are asked."""
        _task, place, _repeats = kwargs["metadata"]
        return super().construct_requests(doc, ctx, **kwargs) if place in self.places else []

    def doc_iterator(self, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """All questions while prompts are made, then those that are asked."""
        questions = super().doc_iterator(**kwargs)
        everything = self._instances is None
        return questions if everything else ((place, doc) for place, doc in questions if place in self.places)


def build_benchmark(
    task: dict[str, Any], data: Fetched | QuestionFiles, seed: int, shard: tuple[int, int] = (1, 1)
) -> Benchmark:
    """Build the lm-eval tasks of one config entry, cut to its `limit`.

    The subset is drawn with `seed`: at random, and over the subjects of a group in proportion to their sizes.

    Args:
        task: the task entry of the config (task, shots, limit, max_gen_toks, metric, filter, ...).
        data: access to its questions.
        seed: for the subset and for few-shot examples drawn at random.
        shard: which part of the chosen questions to ask, and how many parts there are: every so many-th question.

    Raises:
        UserError: lm-eval does not know the task, metric or filter; data is missing, damaged or too small.
    """
    leaves = []
    for entry in leaf_entries(task["task"]):
        # Questions first: the functions of a task may import what it needs only where there are any.
        splits = dict(data.load(load_yaml(entry.yaml_path, resolve_func=False)))
        config = load_yaml(entry.yaml_path)
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        check_metric(task, config)
        questions, split = _questions(config, splits)
        leaves.append((config, splits, split, questions))
    n_total = sum(len(questions) for *_, questions in leaves)
    if not n_total:
        raise UserError(f"task {task['task']!r} has no questions in its source")
    chosen = choose([len(questions) for *_, questions in leaves], task.get("limit"), seed)
    n, (part, parts) = sum(map(len, chosen)), shard
    if parts > n:
        raise UserError(f"task {task['task']!r} has {n} questions, too few for {parts} shards")
    tasks, described, fewshot, numbers, first = {}, {}, "", [], 0
    for (config, splits, split, questions), indices in zip(leaves, chosen, strict=True):
        if not indices:
            continue
        fewshot = _fewshot(task, config, splits, questions, indices, seed)
        splits[split] = questions.select(indices)
        _override(task, config, splits)
        described = described or config
        places = [place for place in range(len(indices)) if (first + place) % parts == part - 1]
        numbers += [first + place for place in places]
        first += len(indices)
        if not places:
            continue
        lm_task = ConfigurableTask(config=config) if parts == 1 else PartialTask(config, places)
        lm_task.set_fewshot_seed(seed)
        tasks[config["task"]] = lm_task
    n_tasks = sum(map(bool, chosen))
    return Benchmark(tasks, n_tasks, n, n_total, fewshot, described, None if parts == 1 else numbers)


def choose(sizes: list[int], limit: int | None, seed: int) -> list[list[int]]:
    """Draw `limit` questions without replacement from groups of the given sizes, as ascending indices for each group.

    Systematic sampling: questions are shuffled within each group, groups are laid end to end, and every
    (total / limit)-th question is taken from a random start. So each question is as likely as any other, and a
    group's share is its share of all questions, up to rounding. None takes all.
    """
    total = sum(sizes)
    if limit is None or limit >= total:
        return [list(range(size)) for size in sizes]
    rng = random.Random(seed)
    shuffled = [rng.sample(range(size), size) for size in sizes]
    start = rng.random()
    picks = {int((start + number) * total / limit) for number in range(limit)}
    chosen, offset = [], 0
    for size, order in zip(sizes, shuffled, strict=True):
        chosen.append(sorted(order[position] for position in range(size) if offset + position in picks))
        offset += size
    return chosen


def check_task(task: dict[str, Any]) -> None:
    """Refuse a task of the config whose name, metric, filter, package or files there are not; of the hub nothing is asked.

    Raises:
        UserError: naming what there is not, and what there is instead.
    """
    files = None if from_hub(task.get("source")) else QuestionFiles(task["task"], task["source"])
    for config in leaf_configs(task["task"]):
        check_metric(task, config)
        if files:
            files.paths(config)


def check_metric(task: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse a metric or filter that the lm-eval config of a task has not; the `UserError` names those that it has."""
    output_type, stated = config["output_type"], config.get("metric_list")
    metrics = DEFAULT_METRIC_REGISTRY[output_type] if stated is None else [entry["metric"] for entry in stated]
    # A template chooses among the answers; Winogrande's answers differ in the prompt, TruthfulQA's are right together.
    chosen = output_type == "multiple_choice" and "{{" in str(config.get("doc_to_target"))
    if output_type == "loglikelihood" or chosen:
        metrics = [*metrics, BITS_PER_BYTE]
    if task["metric"] not in metrics:
        raise UserError(f"task {task['task']!r} has no {_choice('metric', task['metric'], map(str, metrics))}")
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    if task.get("filter") and task["filter"] not in filters:
        raise UserError(f"task {task['task']!r} has no {_choice('filter', task['filter'], filters)}")


def _choice(called: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    return f"{called} {name!r}{nearest(name, known)}; it has {', '.join(known)}"


def _questions(config: dict[str, Any], splits: dict[str, Any]) -> tuple[Any, str]:
    split = config.get("test_split") or config.get("validation_split")
    if split not in splits:
        raise UserError(f"lm-eval task {config['task']!r} scores split {split!r}, which its source lacks")
    process = config.get("process_docs")
    return (process(splits[split]) if process else splits[split]), split


def _fewshot(task: dict, config: dict, splits: dict, questions: Any, indices: list[int], seed: int) -> str:
    """Settle where few-shot examples come from; adds a training split made of questions that are not scored."""
    if not task["shots"]:
        split_opened = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
        if split_opened and split_opened not in splits:  # lm-eval opens it all the same
            config["fewshot_split"] = config.get("test_split") or config["validation_split"]
        return "none"
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("samples"):
        return "fixed examples of the lm-eval task"
    split = config.get("fewshot_split") or config.get("training_split")
    if split in splits:
        if split == config.get("training_split") and config.get("process_docs"):
            splits[split] = config["process_docs"](splits[split])
        first = fewshot.get("sampler") == "first_n"
        return f"first of split {split!r}" if first else f"random from split {split!r}, a draw a question"
    unscored = sorted(set(range(len(questions))) - set(indices))
    if len(unscored) < task["shots"]:
        raise UserError(
            f"task {task['task']!r}: its source has no split {split!r} for few-shot examples, and all questions are "
            "scored; set a `limit` so that some are left to serve as examples"
        )
    splits[split] = questions.select(random.Random(seed).sample(unscored, task["shots"]))
    config["fewshot_config"] = {**fewshot, "sampler": "first_n"}
    return f"questions that are not scored, the same for every question (the source has no split {split!r})"


def _override(task: dict[str, Any], config: dict[str, Any], splits: dict[str, Any]) -> None:
    config["custom_dataset"] = lambda **_: splits
    config["dataset_kwargs"] = None
    config["process_docs"] = None  # done already, before the subset was drawn
    config["num_fewshot"] = task["shots"]
    if task.get("max_gen_toks") is not None and config.get("generation_kwargs"):
        config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": task["max_gen_toks"]}
