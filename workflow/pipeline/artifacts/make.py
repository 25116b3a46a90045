"""Make one artifact: call the function of its kind for a table or a drawing, and write its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from pipeline.artifacts import Entry, Files
from pipeline.artifacts.entry import KINDS
from pipeline.artifacts.labels import heading
from pipeline.artifacts.records import in_project
from pipeline.artifacts.writers import write_table
from swiftkv.io import write_json, write_text


def make_artifact(entry: Entry, files: Files, output: Sequence[Path]) -> None:
    """Draw a table or a figure and write its files, each whole or not at all.

    Args:
        entry: as `contents.resolve` gives it.
        files: measurement and published files by name, as `contents.input_files` gives them.
        output: one file a form: csv, tex, md and html of a table; pdf, png, svg and csv of a figure; and json with its title,
            caption and input files.

    Raises:
        UserError: a file is missing, damaged, not of the kind's inputs, or of other settings than the entry's.
    """
    outputs = {path.suffix.removeprefix("."): path for path in output}
    artifact = resolve_name(f"{__package__}.{KINDS[entry['kind']].make}")(entry, files)
    about = {key: entry[key] for key in ("name", "form", "section", "label", "caption")} | {"title": heading(entry)}
    shipped = {name: [in_project(file) for file in group] for name, group in files.items()}
    write_json(outputs["json"], about | {"files": shipped})
    write_text(outputs["csv"], artifact.values.to_csv(index=False, lineterminator="\n"))
    if entry["form"] == "table":
        write_table(artifact._replace(label=entry["name"], title=artifact.title or about["title"]), outputs)
    else:
        from pipeline.artifacts.drawing import write_figure  # matplotlib is slow to import, and only figures need it

        write_figure(artifact, outputs)
