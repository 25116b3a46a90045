"""Chats to distil on and to measure with: any hub data set, packaged file or local file, through two templates.

A data entry of the config lists sources; each record of a source becomes one chat. A source either has whole chats
(`chats: messages`, or `chats: sharegpt` for from/value pairs) or two Jinja templates, `user` and `assistant`, that are
filled from the record's fields. A record whose user or assistant text comes out empty is left out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from swiftkv.errors import UserError
from swiftkv.records import atomic_path, write_json
from swiftkv.sources import hub_sentence, package_files, package_identity

SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
PREFIX_CHARACTERS = 200  # chats that open alike share their passage: only one is kept, so none is in train and held-out


def build_corpus(sources: list[dict[str, Any]], heldout: int, seed: int, train: Path, held: Path, record: Path) -> None:
    """Write the training and held-out chats of one data entry, shuffled by `seed`, and what they came from.

    Args:
        sources: the `sources` list of the data entry.
        heldout: number of chats kept for measuring; they are never trained on.
        train, held: JSON-lines files, one chat a line: id, source, messages.
        record: JSON with the resolved identity and the number of chats of every source.

    Raises:
        UserError: a source is missing, unreachable or damaged, or there are too few chats.
    """
    chats, identities, seen = [], [], set()
    for source in sources:
        name = source.get("name") or source.get("hub") or source.get("local")
        records, identity = _open(source)
        limit, taken, dropped = source.get("limit"), 0, 0
        for number, messages in enumerate(_chats(source, records)):
            if limit is not None and taken >= limit:
                break
            prefix = "\n".join(message["content"] for message in messages)[:PREFIX_CHARACTERS]
            if not messages or prefix in seen:
                dropped += 1
                continue
            seen.add(prefix)
            chats.append({"id": f"{name}/{number}", "source": name, "messages": messages})
            taken += 1
        print(f"{name}: {taken} chats, {dropped} empty or repeated ones left out", flush=True)
        identities.append({"name": name, **identity, "chats": taken, "left_out": dropped})
    if len(chats) <= heldout:
        raise UserError(
            f"the data has {len(chats)} chats, too few to hold out {heldout}; lower `heldout` or add sources"
        )
    random.Random(seed).shuffle(chats)
    _write_lines(held, chats[:heldout])
    _write_lines(train, chats[heldout:])
    write_json(record, {"sources": identities, "seed": seed, "heldout": heldout, "train": len(chats) - heldout})


def _open(source: dict[str, Any]) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    if "hub" in source:
        return _open_hub(source)
    if "package" in source:
        files = package_files(source["package"], source["file"])
        identity = package_identity(source["package"], files) | {"file": source["file"]}
    else:
        files = [Path(source["local"]).expanduser()]
        if not files[0].is_file():
            raise UserError(f"local data file {source['local']!r} does not exist; check `sources` in the config")
        digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
        identity = {"kind": "local", "id": source["local"], "revision": None, "resolved": f"sha256:{digest}"}
    return (record for file in files for record in _read_file(file, source.get("record"))), identity


def _open_hub(source: dict[str, Any]) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    import datasets
    from huggingface_hub import HfApi, errors

    identifier, revision = source["hub"], source.get("revision", "main")
    commit, unreachable = None, None
    try:
        commit = HfApi().dataset_info(identifier, revision=revision, timeout=20).sha
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise UserError(hub_sentence(error, "data set", identifier, revision)) from None
    except Exception as error:  # the network has many ways to fail; a cached copy is as good
        unreachable = error
    try:
        records = datasets.load_dataset(
            identifier, source.get("subset"), split=source["split"], revision=commit or revision
        )
    except Exception as error:
        raise UserError(hub_sentence(unreachable or error, "data set", identifier, revision)) from None
    resolved = commit or "cached copy, hub unreachable"
    return iter(records), {"kind": "hub", "id": identifier, "revision": revision, "resolved": resolved}


def _read_file(file: Path, record: str | None) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        if file.suffix == ".arrow":
            yield from datasets.Dataset.from_file(str(file))
            return
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                content = json.loads(line)
                yield content[record] if record else content
    except (ValueError, KeyError, OSError, EOFError) as error:
        raise UserError(
            f"data file {file.name} is damaged or not of the stated form ({error}); fetch it again"
        ) from None


def _chats(source: dict[str, Any], records: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, str]]]:
    if source.get("chats") == "messages":
        for record in records:
            yield [{"role": message["role"], "content": message["content"]} for message in record["messages"]]
    elif source.get("chats") == "sharegpt":
        for record in records:
            turns = record["conversations"]
            yield [{"role": SHAREGPT_ROLES[turn["from"]], "content": turn["value"]} for turn in turns]
    else:
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
        user, assistant = environment.from_string(source["user"]), environment.from_string(source["assistant"])
        for record in records:
            try:
                question, answer = user.render(record).strip(), assistant.render(record).strip()
            except jinja2.UndefinedError as error:
                raise UserError(
                    f"a template of data source {source.get('name')!r} does not fit its records: {error}"
                ) from None
            if not question or not answer:
                yield []
                continue
            yield [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _write_lines(path: Path, chats: list[dict[str, Any]]) -> None:
    with atomic_path(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        for chat in chats:
            file.write(json.dumps(chat, ensure_ascii=False) + "\n")
