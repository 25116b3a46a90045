"""How the checkpoints behind an artifact were trained, and what answers without a right one were: notes from the records."""

from __future__ import annotations

import json
from collections import Counter

from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import Record, read_records
from swiftkv.artifacts.scored import Scored
from swiftkv.artifacts.text import enumeration, some

_TRAINED = {
    "qkv": "Q, K and V projections",
    "upper_layers": "all parameters of layers from l on",
    "all": "all parameters",
}
_ANSWER = 40  # letters of an answer that a note shows


def training_notes(entry: Entry, files: Files) -> list[str]:
    """One sentence a model on how its variants were trained, from `files["training"]`; none where none was.

    What most of them share is said once, what differs of a variant beside its name.
    """
    records = [record for record in read_records(entry, files.get("training", ()), "training") if record.ok]
    notes = []
    for model in entry["models"]:
        if trained := [record for record in records if record.model["name"] == model["name"]]:
            weights = entry.get("weights", {}).get(model["name"])
            start = f"Training of {model['title']}{f' ({weights})' if weights else ''}: "
            notes.append(start + _sentence(entry, trained))
    return notes


def _sentence(entry: Entry, trained: list[Record]) -> str:
    every = [_facts(entry, record) for record in trained]
    common = {name: Counter(facts.get(name) for facts in every).most_common(1)[0][0] for name in every[0]}
    apart: dict[str, list[str]] = {}
    for record, facts in zip(trained, every, strict=True):
        if own := ", ".join(fact for name, fact in facts.items() if fact != common.get(name)):
            apart.setdefault(own, []).append(record.variant)
    others = [f"{enumeration(variants)}: {own}" for own, variants in apart.items()]
    return "; ".join([", ".join(filter(None, common.values())), *others]) + "."


def _facts(entry: Entry, record: Record) -> dict[str, str]:
    """What to know of a training, each in a few words."""
    asked, packed = record.settings, record.data or {}
    facts = {"steps": f"{record.result['steps']:,} steps", "tokens": f"{record.result['tokens']:,} tokens"}
    if "data" in asked:
        sources = some(entry.get("mixes", {}).get(asked["data"], []))
        facts["data"] = f"{asked['data']} ({sources}) in rows of {asked['max_length']:,} tokens"
    if "too_long" in packed:
        facts["left out"] = f"{packed['too_long']:,} longer samples left out"
    if "learning_rate" in asked:
        facts["rate"] = f"learning rate {asked['learning_rate']:g}"
    facts["start"] = f"{asked['start']} start"
    facts["loss"] = _loss(asked)
    if "train" in asked:
        norm = " and the norm before them" if asked["train"] == "qkv" and asked.get("train_norm") else ""
        facts["trained"] = f"{_TRAINED[asked['train']]}{norm} trained"
    if "seed" in asked:
        facts["seed"] = f"one training each (seed {asked['seed']})"
    return facts


def _loss(asked: dict) -> str:
    if asked["loss"] == "lm":
        return "next-token loss"
    tokens = " of the assistant's tokens" if asked.get("logits_tokens") == "assistant" else ""
    at = f" at T = {asked['temperature']:g}" if "temperature" in asked else ""
    hidden = asked.get("hidden_state_weight")
    return f"distillation of logits{tokens}{at}" + (f" and, weighted {hidden:g}, of hidden states" if hidden else "")


def unread_notes(scored: Scored) -> list[str]:
    """For each task in which all generated answers of some variant are wrong: what the first of them was."""
    wrong: dict[str, list[Record]] = {}
    for record in (record for row in scored.rows for record in row.scores.values()):
        if record.ok and record.value("value") == 0 and record.settings.get("output_type") == "generate_until":
            wrong.setdefault(record.settings["task"], []).append(record)
    notes = []
    for task, records in wrong.items():
        asked, variants = records[0].settings, list(dict.fromkeys(map(_case, records)))
        letter = len(asked["target_example"]) == 1
        title, named = scored.tasks[task]["title"], enumeration(variants)
        notes.append(
            f"{title}: of {named} no answer is the expected one as the filter {asked['filter']} reads it. Answers are "
            f"generated, not chosen: the first of {variants[0]} is {_quoted(asked['response_example'])} where "
            f"{_quoted(asked['target_example'])} is right."
            + (
                " Guessed letters would be right now and then, so this is about the form of the answers."
                if letter
                else ""
            )
        )
    return notes


def _case(record: Record) -> str:
    return record.variant + ("/fp8" if record.kv_cache == "fp8" else "")


def _quoted(answer: str) -> str:
    return json.dumps(answer if len(answer) <= _ANSWER else answer[:_ANSWER] + "…", ensure_ascii=False)
