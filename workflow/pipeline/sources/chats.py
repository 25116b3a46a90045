"""Chats to distill on and to measure with, from any hub data set, packaged file or local file.

A mix of the config lists sources; each record of a source becomes one chat. A source either has whole chats
(`chats: messages`, or `chats: sharegpt` for from/value pairs) or two Jinja templates, `user` and `assistant`, over the
record's fields. Left out are records with an empty user or assistant text, and, up to 1 % of a source, those that are no
such chat (an unknown role, a text that is null, a field that a template misses).

With `distinct_characters: N`, of the chats of such sources that agree in the first N characters, a mix has only the first:
questions about one passage do not end up in training and hold-out. One hold-out, drawn from one mix, serves all
measurements; every mix trains without its chats.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2

from pipeline.sources import file_identity, read_lines, source_files, source_name
from pipeline.sources.hub import HubRepository
from swiftkv.chats import check_refusals, read_chats
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, write_json

ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


def draw_heldout(sources: list[dict[str, Any]], chats: int, seed: int, output: Path, record: Path) -> None:
    """Write the chats kept for measuring: the first ones of a mix after its shuffle.

    Args:
        sources: the `sources` list of the mix.
        chats: how many.
        seed: decides the order after the shuffle.
        output: JSON lines, one chat a line: id, source, messages.
        record: JSON with the resolved identity and the number of chats of every source of the mix.

    Raises:
        UserError: a source is missing, unreachable or damaged, more than 1 % of its records are no chats, or the mix has no
            chat beyond the held-out ones.
    """
    records, identities = _gather(sources)
    if len(records) <= chats:
        raise UserError(
            f"the data has {len(records)} chats, too few to hold out {chats}; lower `heldout.chats` or add sources"
        )
    random.Random(seed).shuffle(records)
    _write_lines(output, records[:chats])
    write_json(record, {"sources": identities, "seed": seed, "chats": chats})


def build_corpus(sources: list[dict[str, Any]], seed: int, heldout: Path, output: Path, record: Path) -> None:
    """Write the training chats of one mix, shuffled: all of them but the held-out ones.

    Args:
        sources: the `sources` list of the mix.
        seed: decides the order after the shuffle.
        heldout: the held-out chats; a chat with the same messages as one of them is left out.
        output: JSON lines, as in `draw_heldout`.
        record: JSON as in `draw_heldout`, which also says how many chats of each source are held out.

    Raises:
        UserError: as `draw_heldout`; or the hold-out is missing or damaged, or no chat is left.
    """
    kept_apart = {json.dumps(chat["messages"]) for chat in read_chats(heldout)}
    chats, identities = _gather(sources)
    random.Random(seed).shuffle(chats)
    train = [chat for chat in chats if json.dumps(chat["messages"]) not in kept_apart]
    if not train:
        raise UserError("every chat of the data is held out for measuring, so none is left to train on; add sources")
    left_out = len(chats) - len(train)
    print(f"{len(train)} chats to train on, {left_out} held-out ones left out", flush=True)
    taken = Counter(chat["source"] for chat in train)
    for identity in identities:
        identity["held_out"] = identity["chats"] - taken[identity["name"]]
    _write_lines(output, train)
    write_json(record, {"sources": identities, "seed": seed, "train": len(train), "held_out": left_out})


def _gather(sources: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return all chats of the sources in order, and for each source its identity and how many it gave and left out."""
    chats, identities, seen = [], [], set()
    for source in sources:
        name, length = source_name(source), source.get("distinct_characters")
        records, identity = _open(source)
        read, refusals, counts = _reader(source), [], dict.fromkeys(("chats", "empty", "repeated"), 0)
        for number, record in enumerate(records):
            if counts["chats"] == source.get("limit"):
                break
            try:
                messages = read(record)
            except (jinja2.TemplateError, KeyError, TypeError, ValueError) as error:
                form = f"is no {source['chats']} chat" if "chats" in source else "does not fit the templates"
                refusals.append(f"record {number} of data source {name!r} {form} ({error!r})")
                continue
            # A chat of a source that keeps every chat is like no other.
            opening = "\n".join(message["content"] for message in messages)[:length] if length else (name, number)
            kind = "empty" if not messages else "repeated" if opening in seen else "chats"
            counts[kind] += 1
            if kind == "chats":
                seen.add(opening)
                chats.append({"id": f"{name}/{number}", "source": name, "messages": messages})
        print(
            "{}: {chats} chats; left out: {empty} empty, {repeated} that open like another".format(name, **counts),
            flush=True,
        )
        check_refusals(refusals, sum(counts.values()) + len(refusals))
        identities.append({"name": name, **identity, **counts, "refused": len(refusals)})
    return chats, identities


def _open(source: dict[str, Any]) -> tuple[Iterable[dict[str, Any]], dict[str, Any]]:
    if "hub" in source:
        import datasets

        repository = HubRepository("dataset", source)
        part = {"name": source.get("subset"), "split": source["split"]}
        return repository.load(datasets.load_dataset, **part), repository.identity
    if "local" in source and Path(source["local"]).expanduser().is_dir():
        raise UserError(f"{source['local']!r} is a folder; name a file of chats as `local`")
    files, pattern = source_files(source), {"file": source["file"]} if "file" in source else {}
    records = (record for file in files for record in _read_file(file, source.get("record")))
    return records, file_identity(source, files) | pattern


def _read_file(file: Path, record: str | None) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        for content in datasets.Dataset.from_file(str(file)) if file.suffix == ".arrow" else read_lines(file):
            yield content[record] if record else content
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise UserError(
            f"data file {file.name} is damaged or not of the stated form ({error}); fetch it again"
        ) from None


def _reader(source: dict[str, Any]) -> Callable[[dict[str, Any]], list[dict[str, str]]]:
    """Return the function from a source's record to messages; it gives none where a user or assistant text is empty."""
    if source.get("chats") == "messages":
        return lambda record: _messages((message["role"], message["content"]) for message in record["messages"])
    if source.get("chats") == "sharegpt":
        return lambda record: _messages((turn["from"], turn["value"]) for turn in record["conversations"])
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, finalize=_no_null)
    templates = [(role, environment.from_string(source[role])) for role in ("user", "assistant")]

    return lambda record: _messages((role, template.render(record).strip()) for role, template in templates)


def _no_null(value: Any) -> Any:
    """Refuse a null, which Jinja would write as the word None."""
    if value is None:
        raise TypeError("a field is null")
    return value


def _messages(turns: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    messages = [{"role": ROLES[role], "content": content} for role, content in turns]
    if not all(isinstance(message["content"], str) for message in messages):
        raise TypeError("a content is no text")
    return messages if all(message["content"].strip() or message["role"] == "system" for message in messages) else []


def _write_lines(path: Path, chats: list[dict[str, Any]]) -> None:
    with atomic_path(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        for chat in chats:
            file.write(json.dumps(chat, ensure_ascii=False) + "\n")
