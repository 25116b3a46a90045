"""The model card of a trained checkpoint, written by the template card.md."""

from __future__ import annotations

from pathlib import Path

import jinja2

from pipeline.statistics import estimate
from swiftkv.io import read_json, write_text

_TEMPLATE = jinja2.Template(
    Path(__file__).with_suffix(".md").read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True
)


def write_card(training: Path, output: Path, fidelity: Path | None = None) -> None:
    """Write the model card of a trained checkpoint in Markdown, with the metadata of the Hugging Face hub.

    Args:
        training: the record of the training.
        output: the Markdown file.
        fidelity: the fidelity record of the checkpoint, once it is measured.
    """
    measured = read_json(fidelity) if fidelity else {"result": {}}
    numbers = {
        name: estimate(one["value"], one["stderr"], one["n"])
        for name, one in measured["result"].items()
        if isinstance(one, dict) and "stderr" in one
    }
    write_text(output, _TEMPLATE.render(trained=read_json(training), measured=measured, numbers=numbers))
