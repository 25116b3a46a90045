"""What the measurements ran on, and how long each step took."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.records import Record
from pipeline.artifacts.text import enumeration


def made_on(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Machines, commits, libraries and days of some measurements, in words."""
    found: dict[str, dict[str, None]] = {"Machine": {}, "Commit": {}, "Libraries": {}, "Day": {}}
    for record in records:
        made = record["provenance"]
        changed = ", changed" if made.get("git_dirty") else ""
        found["Machine"][Record.of(record).device] = None
        found["Commit"][(made.get("git_commit") or "unknown")[:12] + changed] = None
        found["Libraries"].update(dict.fromkeys(f"{name} {version}" for name, version in made["libraries"].items()))
        found["Day"][made["finished"][:10]] = None
    return {name: enumeration(sorted(values)) for name, values in found.items() if values}


def jobs(benchmarks: Path) -> dict[str, list[dict[str, Any]]]:
    """Rule -> its jobs that have a benchmark file: name, seconds, and memory in MB or None; the longest first."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(benchmarks.rglob("*.tsv")):
        lines = list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))
        place = path.relative_to(benchmarks).with_suffix("")
        for line in lines[-1:]:
            memory = float(line["max_rss"]) if line["max_rss"].replace(".", "").isdigit() else None
            rules.setdefault(place.parts[0], []).append(
                {"name": str(place), "seconds": float(line["s"]), "memory": memory}
            )
    for found in rules.values():
        found.sort(key=lambda job: -job["seconds"])
    return dict(sorted(rules.items(), key=lambda rule: -sum(job["seconds"] for job in rule[1])))
