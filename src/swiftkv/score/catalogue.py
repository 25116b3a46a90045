"""lm-eval's tasks: where the files of those in use lie and what they ask, and how lm-eval's own index is read.

lm-eval is imported only where its index is read.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swiftkv.errors import UserError

if TYPE_CHECKING:
    from lm_eval.tasks._index import Entry

_OWN = str(Path(__file__).parent / "bits_per_byte")


class Known(NamedTuple):
    """What lm-eval's files say of a task.

    Attributes:
        folder: below lm-eval's tasks, or an absolute path; reading it alone saves 10 s a start.
        hub: the data set it asks unless the config names another.
        split: the split whose questions are scored.
        nltk: a package of NLTK's data that its metric needs.
    """

    folder: str
    hub: str
    split: str
    nltk: str | None = None


KNOWN = {
    # Table B.1
    "arc_challenge_llama": Known("llama3/instruct/arc_challenge", "allenai/ai2_arc", "test"),
    "mmlu_llama": Known("llama3/instruct/mmlu", "hails/mmlu_no_train", "test"),
    "mmlu_cot_llama": Known("llama3/instruct/mmlu_cot", "hails/mmlu_no_train", "test"),
    "gsm8k_llama": Known("llama3/instruct/gsm8k", "openai/gsm8k", "test"),
    "winogrande": Known("winogrande", "allenai/winogrande", "validation"),
    "hellaswag": Known("hellaswag", "Rowan/hellaswag", "validation"),
    "truthfulqa_mc2": Known("truthfulqa", "truthfulqa/truthful_qa", "validation"),
    # For models without Llama-3.1's prompt format
    "arc_challenge": Known("arc", "allenai/ai2_arc", "test"),
    "mmlu": Known("mmlu/default", "cais/mmlu", "test"),
    "mmlu_flan_cot_zeroshot": Known("mmlu/flan_cot_zeroshot", "cais/mmlu", "validation"),
    "gsm8k_cot": Known("gsm8k", "openai/gsm8k", "test"),
    # For small models
    "arc_easy": Known("arc", "allenai/ai2_arc", "test"),
    "lambada_openai": Known("lambada", "EleutherAI/lambada_openai", "test"),
    "mmlu_continuation": Known("mmlu/continuation", "cais/mmlu", "test"),
    "ifeval": Known("ifeval", "google/IFEval", "train", "punkt_tab"),
    "gsm8k_bits_per_byte": Known(_OWN, "openai/gsm8k", "test"),
    "mbpp_bits_per_byte": Known(_OWN, "google-research-datasets/mbpp", "test"),
}


@functools.cache
def output_type(name: str) -> str:
    """How lm-eval scores a task: "generate_until", or from log-likelihoods. All tasks of a group are scored in one way.

    Raises:
        UserError: lm-eval does not know the task, or its group mixes the two.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    types = {load_yaml(entry.yaml_path, resolve_func=False)["output_type"] for entry in leaf_entries(name)}
    if len(types) > 1:
        raise UserError(
            f"lm-eval task {name!r} is scored in several ways ({', '.join(sorted(types))}); name one of its tasks"
        )
    return types.pop()


def leaf_entries(name: str) -> list[Entry]:
    """The plain lm-eval tasks that a task, tag or group is made of.

    Raises:
        UserError: lm-eval has no such task, or it is one in Python.
    """
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    root = Path(lm_eval.tasks.__file__).parent
    index = TaskIndex.build([root / (KNOWN[name].folder if name in KNOWN else ".")])
    if name not in index:
        raise UserError(f"lm-eval has no task {name!r}; check `task` in the config")
    return _expand(index, name)


def _expand(index: dict[str, Entry], member: str | dict[str, Any]) -> list[Entry]:
    """The plain tasks of a task, tag or group; a group may hold groups written out in its own file."""
    from lm_eval.tasks._index import Kind

    if isinstance(member, dict) and isinstance(member.get("task"), list):
        return [leaf for part in member["task"] for leaf in _expand(index, part)]
    entry = index.get(member) if isinstance(member, str) else None
    if entry is None or entry.kind is Kind.PY_TASK:
        raise UserError(f"lm-eval task {member!r} is not made of plain tasks; name one that is")
    if entry.kind is Kind.TASK:
        return [entry]
    members = sorted(entry.tags) if entry.kind is Kind.TAG else (entry.cfg or {}).get("task", [])
    return [leaf for part in members for leaf in _expand(index, part)]
