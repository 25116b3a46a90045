"""From a number of a table or figure to the files that it is from."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.artifacts.columns import AND, PUBLISHED
from pipeline.artifacts.contents import PROJECT
from swiftkv.errors import UserError

_ARTIFACTS = ("tables", "figures")  # folders of what is no file of measurements, but made of some


class Origins:
    """The files that artifacts are made of, each with a number, and what was measured in each.

    Args:
        files: artifact -> the files it is made of. Those that are artifacts themselves are left out.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, files: Mapping[str, Sequence[str]]) -> None:
        every = dict.fromkeys(path for paths in files.values() for path in paths)
        self.paths = [path for path in every if Path(path).parent.name not in _ARTIFACTS]
        self._number = {path: number for number, path in enumerate(self.paths)}
        self.of = {
            name: [self._number[path] for path in paths if path in self._number] for name, paths in files.items()
        }
        self._texts = [_read(path) for path in self.paths]
        self.records = {
            number: content
            for number, path in enumerate(self.paths)
            if path.endswith(".json") and isinstance(content := _parsed(path, self._texts[number]), dict)
        }
        self._cases = {number: case for number, record in self.records.items() if (case := _case(record))[0]}

    def find(self, origin: str, artifact: str) -> list[int]:
        """The numbers of the files that a number is from.

        Args:
            origin: as `columns.origin` says it, behind `artifact#` where it is shown by another one.
            artifact: which shows it.

        Returns:
            Those of the very measurement where there is one, else all of the case; all of an artifact that is made of no
            measurements.
        """
        places = [each.rpartition("#") for each in origin.split(AND)]
        asked = [(self.of.get(shown_by or artifact, []), place) for shown_by, _, place in places]
        found = [number for files, place in asked for number in self._find(files, place)]
        unmeasured = [files for files, _ in asked if not any("measure" in self.records.get(one, ()) for one in files)]
        return list(dict.fromkeys(found or [number for files in unmeasured for number in files]))

    def _find(self, files: Sequence[int], place: str) -> list[int]:
        if place == PUBLISHED:
            return [number for number in files if self.paths[number].endswith(".csv")]
        *case, what = place.split("/", 3)
        same = [number for number in files if number in self._cases and _alike(case, self._cases[number])]
        at_it = [number for number in same if what and _what(self.records[number]) == what]
        name = what.removeprefix("start_").removesuffix("_difference")
        with_it = [number for number in same if name in (self.records[number].get("result") or ())]
        return at_it or with_it or same

    @cached_property
    def packed(self) -> list[tuple[str, str]]:
        """Path and content of every file, the latter by gzip and in base64."""
        return [
            (path, base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode())
            for path, text in zip(self.paths, self._texts, strict=True)
        ]


def _read(path: str) -> str:
    try:
        return (Path(path) if Path(path).exists() else PROJECT / path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}, which an artifact is made of, cannot be read: {error}") from None


def _parsed(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete it and run again") from None


def _case(record: Mapping[str, Any]) -> list[str]:
    """Model, variant and KV-cache format of a file; empty where it is of any."""
    model = record.get("model") or record
    name = model.get("name") if isinstance(model, dict) else None
    return [name or "", record.get("variant") or "", record.get("kv_cache") or ""]


def _what(record: Mapping[str, Any]) -> str | None:
    """Its point or its task."""
    settings = record.get("settings") or {}
    return settings.get("point") or settings.get("task")


def _alike(asked: Sequence[str], has: Sequence[str]) -> bool:
    return all(want == own or not want or not own for want, own in zip(asked, has, strict=True))
