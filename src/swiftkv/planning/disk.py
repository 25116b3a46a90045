"""What a run leaves on the disk, and what it fetches from the hub."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swiftkv import config as cfg
from swiftkv.errors import UserError
from swiftkv.planning.estimate import Estimator
from swiftkv.planning.jobs import PlannedJob
from swiftkv.planning.text import mix_tokens, packed_rows, recipe_of
from swiftkv.score.catalogue import KNOWN

STATES = 3  # training states at once: `swiftkv.distill.state.KEPT` that stay, and one that is being written
PACKED_BYTES = 10  # of one packed token: id, position, two masks
TEXT_BYTES = 4  # of one token as text, with what JSON adds; 3.7 at local scale
SMALL = 10**5  # of any other output, and of a tokenizer's share
TOKENIZER = 10**7
WORKLOAD = 10**7  # the requests of a trace of an hour
WHAT = ("downloads", "checkpoints", "training state", "teacher states", "moments", "data", "models", "other")
FETCHED = ("model", "checkpoint", "tokenizer", "data set", "questions")


@dataclass(frozen=True)
class Download:
    """Something a job fetches from the hub.

    Attributes:
        what: one of `FETCHED`.
        hub: org/name, or the address of a file elsewhere; of questions that the configuration names no source of, lm-eval's
            name of the task.
        bytes: of its weights; None where nothing here says how large it is.
        gated: whether its license has to be accepted first.
    """

    what: str
    hub: str
    bytes: int | None
    gated: bool = False


def written(job: PlannedJob, estimator: Estimator) -> dict[str, int]:
    """Bytes that a job needs room for, by `WHAT`, downloads apart; nothing of what cannot be said yet."""
    try:
        return {what: math.ceil(size) for what, size in _written(job, estimator).items() if size}
    except UserError:
        return {}


def _written(job: PlannedJob, estimator: Estimator) -> dict[str, float]:
    config, model = estimator.config, job.wildcards.get("model")
    if job.rule == "resolve_model":
        packaged = "package" in config["models"][model]["source"]
        return {"models": estimator.size(model).bytes if packaged else SMALL}
    if job.rule == "heldout":
        return {"data": config["heldout"]["chats"] * 1000 * TEXT_BYTES}
    if job.rule == "corpus":
        return {"data": mix_tokens(config, job.wildcards["data"]) * TEXT_BYTES}
    if job.rule == "dummy_checkpoint":
        return {"other": TOKENIZER}
    if job.rule == "workload":
        return {"data": WORKLOAD}
    if job.rule in ("pack", "teacher_states", "moments"):
        recipe = recipe_of(config, model, job.wildcards["recipe"])
        tokens = packed_rows(config, recipe, estimator.packed(job)) * recipe.max_length
        if job.rule == "pack":
            return {"data": tokens * PACKED_BYTES}
        size = estimator.size(model)
        candidates = cfg.candidate_layers(config, model)
        pairs = sum(size.layers - layer for layer in candidates)
        found = {"moments": size.width * (4 * pairs * size.keys_and_values + 12 * len(candidates) * size.width)}
        if job.rule == "teacher_states":
            names = [name for name, other in config["recipes"].items() if other["data"] == recipe.data]
            stored = 1 + len(cfg.stored_layers(config, model, names))
            found["teacher states"] = 2 * tokens * size.width * stored
        return found
    if job.rule == "distill":
        variant = config["variants"][job.wildcards["variant"]]
        size, spec = estimator.size(model), estimator.spec(job)
        train = recipe_of(config, model, variant["recipe"]).train
        return {
            "checkpoints": size.checkpoint_bytes(spec),
            "training state": STATES * size.state_bytes(spec, train),
        }
    return {"other": SMALL * len(job.outputs)}


def once(items: Iterable[Download]) -> list[Download]:
    """Each source once, models first; a tokenizer comes with its model."""
    found: dict[tuple[str, str], Download] = {}
    for item in items:
        found.setdefault((item.what, item.hub), item)
    kept = [item for item in found.values() if item.what != "tokenizer" or ("model", item.hub) not in found]
    return sorted(kept, key=lambda item: FETCHED.index(item.what))


def fetched(job: PlannedJob, estimator: Estimator) -> list[Download]:
    """What a job fetches from the hub."""
    config, model = estimator.config, job.wildcards.get("model")

    def one(what: str, source: dict[str, Any], size: int | None) -> list[Download]:
        place = source.get("hub", source.get("url"))
        return [Download(what, place, size, source.get("gated", False))] if place else []

    def bytes_of(trained: bool) -> int | None:
        try:
            size = estimator.size(model)
            return size.checkpoint_bytes(estimator.spec(job)) if trained else size.bytes
        except UserError:
            return None

    if job.rule == "resolve_model":
        entry = config["models"][model]
        return one("model", entry["source"], bytes_of(False)) + one(
            "tokenizer", entry.get("chat_template", {}), TOKENIZER
        )
    if job.rule == "fetch_checkpoint":
        return one("checkpoint", config["models"][model]["checkpoints"][job.wildcards["variant"]], bytes_of(True))
    if job.rule == "dummy_checkpoint":
        return one("tokenizer", config["models"][model]["source"], TOKENIZER)
    if job.rule in ("heldout", "corpus"):
        mix = config["heldout"]["data"] if job.rule == "heldout" else job.wildcards["data"]
        return [item for source in config["data"][mix]["sources"] for item in one("data set", source, None)]
    if job.rule == "workload":
        entry = config["workloads"][job.wildcards["workload"]]
        return [] if entry.get("stand_in") else one("data set", entry["source"], WORKLOAD)
    if job.rule == "fetch_questions":
        task = config["tasks"][job.wildcards["task"]]
        known = KNOWN.get(task["task"])
        return one("questions", task.get("source") or {"hub": known.hub if known else task["task"]}, None)
    return []
