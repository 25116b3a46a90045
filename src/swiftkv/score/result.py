"""What a score's record says of the answers: their mean, its error, and which questions they are of."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

# What is wrong where a model's outputs are no numbers.
BROKEN = "the weights are damaged, or numbers in the model overflow; compare the checkpoint with where it is from"


def summary(values: Sequence[float], identities: Sequence[str], n: int, n_total: int) -> dict[str, Any]:
    """The `result` of a score.

    Args:
        values: of each question, in the order asked.
        identities: of each question, as `identity` gives them.
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


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the standard error of the mean from the sample's standard deviation; None for one value.

    Where all questions come out wrong, or all right, that would be 0. The error then is that of a sample with two wrong
    and two right answers more (Agresti and Coull), which is of the size of the interval's real width.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    if mean in (0.0, 1.0) and set(values) == {mean}:
        share = (math.fsum(values) + 2) / (len(values) + 4)
        return mean, math.sqrt(share * (1 - share) / (len(values) + 4))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
