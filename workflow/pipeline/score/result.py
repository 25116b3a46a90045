"""What a score's record says of the answers: their mean, its error, and which questions they are of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.statistics import mean_and_stderr

# What is wrong where a model's outputs are no numbers.
BROKEN = "the weights are damaged, or numbers in the model overflow; compare the checkpoint with where it is from"


def summary(values: Sequence[float], identities: Sequence[str], n: int, n_total: int) -> dict[str, Any]:
    """The `result` of a score.

    Args:
        values: the value of each question, in the order asked.
        identities: what `identity` returns for each question.
        n: questions that were chosen.
        n_total: questions that there were to choose from.
    """
    value, stderr = mean_and_stderr(values)
    digest = hashlib.sha256("".join(identities).encode()).hexdigest()
    questions = {"sha256": digest, "values": list(values)}
    return {"value": value, "stderr": stderr, "n": n, "n_total": n_total, "questions": questions}


def identity(sample: Mapping[str, Any]) -> str:
    """Equal for the same question, asked with the same prompt and with the same expected answer.

    Args:
        sample: a sample that lm-eval logged.
    """
    return "".join(sample[name] for name in ("doc_hash", "prompt_hash", "target_hash"))
