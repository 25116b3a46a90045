"""Making one artifact: its kind draws it, and the forms are written."""

from __future__ import annotations

from pathlib import Path

from swiftkv.artifacts.drawing import write_figure
from swiftkv.artifacts.kind import FORMS, Entry, Files
from swiftkv.artifacts.kinds import KINDS
from swiftkv.artifacts.records import check_settings
from swiftkv.artifacts.table import write_table
from swiftkv.errors import UserError


def make(entry: Entry, files: Files, outputs: dict[str, Path]) -> None:
    """Draw an artifact and write its files, each whole or not at all.

    Args:
        entry: as `contents.resolve` gives it.
        files: measurement and published files by name, as `contents.needs` gives them.
        outputs: path of each of its `FORMS`.

    Raises:
        UserError: a file is missing, damaged, not what the kind needs, or of other settings than the entry's.
    """
    check_settings(entry, files)
    made = KINDS[entry["kind"]].make(entry, files)
    forms = FORMS[entry["form"]]
    if set(outputs) != set(forms):
        raise UserError(f"{entry['name']} is a {entry['form']}; it is written as {', '.join(forms)}")
    (write_table if entry["form"] == "table" else write_figure)(made, outputs)
