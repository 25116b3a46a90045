"""An item of the paper or the blog that no measurement can regenerate, with the reason; nothing is made of it."""

from __future__ import annotations

from swiftkv.artifacts.kind import Config, Entry, Files, Kind


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {}


def make(entry: Entry, files: Files) -> None:
    raise NotImplementedError(f"{entry['name']} is not made: {entry['reason']}")


KIND = Kind("table", (), needs, make, own={"reason": {"type": "string"}})
