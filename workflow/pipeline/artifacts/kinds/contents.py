"""The contents page itself: every table and figure, what regenerates it at this scale, and why where nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.artifacts.columns import Column, grid, table
from pipeline.artifacts.kind import FORMS, MODELS, ArtifactKind, Config, Entry, Files, Listed
from pipeline.artifacts.table import Footnotes, Table


def _of_page(config: Config, entry: Entry, page: Mapping[str, Listed]) -> dict[str, Any]:
    """One line an entry of the contents page, from the configuration alone."""
    lines = []
    for name, listed in config.entries.items():
        roles = dict.fromkeys(
            role for scope in [listed, *listed.get("parts", [])] for key in MODELS for role in scope.get(key, [])
        )
        models: dict[str | None, list[str]] = {}  # and the roles of each
        for role in roles:
            models.setdefault(config.roles.get(role, role), []).append(role)
        missing, form = page[name].left_out, page[name].form
        played = [
            f"{'/'.join(parts)}: {config.models[model].title if model else 'none'}" for model, parts in models.items()
        ]
        lines.append(
            {
                **{"name": name, "item": page[name].label},
                **{key: listed[key] for key in ("title", "section", "kind")},
                "models": ", ".join(played) or None,
                "made": missing is None,
                "files": None if missing else f"{form}s/{name}.{{{','.join(FORMS[form])}}}",
                "reason": missing,
            }
        )
    return {"lines": lines}


def make(entry: Entry, files: Files) -> Table:
    """One panel a section, one line a table or figure."""
    footnotes, lines = Footnotes(), entry["lines"]
    columns = [
        Column("Item", "item"),
        Column("Shows", "title"),
        Column("Kind", "kind"),
        Column("Models", lambda line: line["models"] or "–"),
        Column("Files", lambda line: line["files"] or f"not made {footnotes.mark(line['reason'])}"),
    ]
    panels = [
        grid([line for line in lines if line["section"] == section], columns, footnotes, section, lambda line: None)
        for section in dict.fromkeys(line["section"] for line in lines)
    ]
    return table(
        entry, lines, panels, entry.get("notes", []), footnotes, f"{entry['title'][0].upper()}{entry['title'][1:]}"
    )


KIND = ArtifactKind("table", (), (), make, of_page=_of_page)
