"""The contents page itself: every table and figure, what regenerates it at this scale, and why where nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.kind import Config, Entry, Files, Kind, Listed
from swiftkv.artifacts.table import Footnotes, Panel, Table

_FORMS = {"table": ("csv", "tex", "md", "html"), "figure": ("pdf", "png", "csv")}


def _of_page(config: Config, page: Mapping[str, Listed]) -> dict[str, Any]:
    """One line an entry of the contents page, from the configuration alone."""
    lines = []
    for name, listed in config["artifacts"].items():
        roles = dict.fromkeys(
            role
            for scope in [listed, *listed.get("parts", [])]
            for key in ("models", "similar_models", "large_models")
            for role in scope.get(key, [])
        )
        models = {role: config["roles"].get(role, role) for role in roles}
        lines.append(
            {
                "name": name,
                "item": page[name].label,
                "title": listed["title"],
                "section": listed["section"],
                "kind": listed["kind"],
                "form": page[name].form,
                "left_out": page[name].left_out,
                "models": {role: model and config["models"][model]["title"] for role, model in models.items()},
            }
        )
    return {"lines": lines}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Nothing: the page says what would be made and has nothing made."""
    return {}


def make(entry: Entry, files: Files) -> Table:
    """One panel a section, one line a table or figure."""
    footnotes = Footnotes()
    lines = entry["lines"]
    panels = [
        Panel(pd.DataFrame([_printed(line, footnotes) for line in lines if line["section"] == section]), section)
        for section in dict.fromkeys(line["section"] for line in lines)
    ]
    values = pd.DataFrame([_values(line) for line in lines])
    made = sum(line["left_out"] is None for line in lines)
    published = [line for line in lines if line["item"] != "not in the paper"]
    notes = [
        f"{made} of {len(lines)} entries are made at this scale; of the {len(published)} of the paper and the blog post, "
        f"{sum(line['left_out'] is None for line in published)}.",
        "Models: the role, and the model that plays it at this scale.",
        *entry.get("notes", []),
        *footnotes.lines(),
    ]
    return Table(entry["name"], f"{entry['title'][0].upper()}{entry['title'][1:]}", values, panels, notes)


def _printed(line: dict[str, Any], footnotes: Footnotes) -> dict[str, str]:
    return {
        "Item": line["item"],
        "Shows": line["title"],
        "Kind": line["kind"],
        "Models": _models(line) or "–",
        "Files": f"not made {footnotes.mark(line['left_out'])}" if line["left_out"] else _files(line),
    }


def _files(line: dict[str, Any]) -> str:
    return f"{line['form']}s/{line['name']}.{{{','.join(_FORMS[line['form']])}}}"


def _models(line: dict[str, Any]) -> str:
    return ", ".join(f"{role}: {title or 'none'}" for role, title in line["models"].items())


def _values(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the CSV."""
    return {
        **{key: line[key] for key in ("name", "item", "title", "section", "kind")},
        "models": _models(line) or None,
        "made": line["left_out"] is None,
        "files": None if line["left_out"] else _files(line),
        "reason": line["left_out"],
    }


KIND = Kind("table", (), needs, make, of_page=_of_page)
