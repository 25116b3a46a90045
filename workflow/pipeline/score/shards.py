"""The result of a score, and one score from the answers of several jobs, which asked every so many-th question each.

All jobs chose, few-shot examples included, what a single one would have (`build_benchmark`), so the record is the one that
it would have written. Batches differ: where a log-likelihood is a near tie, or is the value itself, its last digits may
differ, as with another batch size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.statistics import mean_and_stderr
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json


def summary(values: Sequence[float], identities: Sequence[str], n: int, n_total: int) -> dict[str, Any]:
    """Return the `result` of a score.

    Args:
        values: the value of each question, in the order asked.
        identities: equal for the same question, asked with the same prompt and with the same expected answer.
        n: chosen questions.
        n_total: questions there were to choose from.
    """
    value, stderr = mean_and_stderr(values)
    digest = hashlib.sha256("".join(identities).encode()).hexdigest()
    questions = {"sha256": digest, "values": list(values)}
    return {"value": value, "stderr": stderr, "n": n, "n_total": n_total, "questions": questions}


def merge_scores(shards: Sequence[Path], output: Path) -> None:
    """Write the record of a score whose questions were asked by several jobs.

    The provenance is the first's, with the wall time of all and the time when the last ended; `shards` in it has each one's.

    Args:
        shards: the record of each job, in their order.
        output: JSON file.

    Raises:
        UserError: a record is missing or damaged, were not scored alike, or they do not have each question once.
    """
    records = [read_json(path) for path in shards]
    examples = ("prompt_example", "response_example")
    ways = [
        (record["status"], {key: value for key, value in record["settings"].items() if key not in examples})
        for record in records
    ]
    if any(way != ways[0] for way in ways):
        raise UserError(f"the shards beside {shards[0]} were not scored alike; delete the older ones and run again")
    merged, origins = dict(records[0]), [record["provenance"] for record in records]
    if merged["status"] == "ok":
        merged["result"] = _merged([record["result"] for record in records], shards[0])
    merged["provenance"] = origins[0] | {
        "finished": max(origin["finished"] for origin in origins),
        "wall_seconds": round(sum(origin["wall_seconds"] for origin in origins), 3),
        "shards": origins,
    }
    write_json(output, merged)
    print(f"{len(shards)} shards merged")


def _merged(results: Sequence[Mapping[str, Any]], place: Path) -> dict[str, Any]:
    answers = sorted(
        answer
        for result in results
        for answer in zip(
            result["shard"]["numbers"], result["questions"]["values"], result["shard"]["identities"], strict=True
        )
    )
    numbers, values, identities = zip(*answers, strict=True)
    if list(numbers) != list(range(results[0]["n"])):
        raise UserError(
            f"the shards beside {place} do not have each question of the score once; delete them and run again"
        )
    merged = summary(values, identities, results[0]["n"], results[0]["n_total"])
    if keys := [result["fp8_keys"] for result in results if "fp8_keys" in result]:
        merged["fp8_keys"] = {name: max(found[name] for found in keys) for name in keys[0]}
    return merged
