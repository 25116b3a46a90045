"""The model card of a trained checkpoint, written by the template card.md."""

from __future__ import annotations

from pathlib import Path

import jinja2

from pipeline.statistics import estimate
from swiftkv.io import read_json, write_text

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent), trim_blocks=True, keep_trailing_newline=True
)


def write_card(model_source: Path, training: Path, fidelity: Path, output: Path) -> None:
    """Write the model card of a trained, rewired checkpoint in Markdown, with the metadata of the Hugging Face hub.

    Args:
        model_source: the model's source.json.
        training: the record of the training.
        fidelity: the fidelity record of the checkpoint.
        output: the Markdown file.
    """
    measured = read_json(fidelity)
    means = {name: one for name, one in measured["result"].items() if isinstance(one, dict) and "stderr" in one}
    numbers = {name: estimate(one["value"], one["stderr"], one["n"]) for name, one in means.items()}
    card = {"source": read_json(model_source), "trained": read_json(training), "measured": measured, "numbers": numbers}
    write_text(output, _TEMPLATES.get_template("card.md").render(card))
