"""What the model of time predicts beside what was published: how far to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swiftkv.artifacts.columns import Column, grid, table
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.predicted import error_percent
from swiftkv.artifacts.records import OOM, read_published
from swiftkv.artifacts.serving import length_label, ratio
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.predict.device import Device
from swiftkv.predict.fit import factors, published_baselines
from swiftkv.predict.published import BASELINE, PAPER, TABLE5_PROMPT, Cell, Statement, cells, statements
from swiftkv.records import read_json

# What a prediction has to reach: relative errors of ratios to the baseline, and of speeds after one factor a source.
RATIO, SPEED = 0.05, 0.1
LABELS = {
    "baseline": "Baseline",
    "merge_all_layers": "Merge-all-Layers",
    "swiftkv_50": "50% SingleInputKV",
    "swiftkv_50_across4": "50% SingleInputKV + 4× AcrossKV",
    "swiftkv_50_across4_fp8": "50% SingleInputKV + 4× AcrossKV (FP8 KV)",
}
_PERCENT = "{:+.1f}%".format
_SPEED = "{:,.0f}".format


def make(entry: Entry, files: Files) -> Table:
    """Every published throughput and sentence with its prediction and error, and whether it was fitted or held out."""
    device = Device.read(files["fitted_device"][0])
    configs = {path.stem: read_json(path)["config"] for path in files["architectures"]}
    rows = {path.stem: read_published([path]) for path in files["speeds"]}
    published = cells(rows["blog_table1"], rows["table5"])
    factor = factors(device, published_baselines(published, configs))
    found = {cell: cell.predicted(device, configs) for cell in published}
    bases = {cell.place: cell for cell in published if cell.column == BASELINE}
    lines = [_line(cell, found, bases[cell.place], factor[cell.source]) for cell in published]
    sentences = [_sentence(one, one.predicted(device, configs), factor[PAPER]) for one in statements(rows["values"])]
    footnotes = Footnotes()
    titles = {name: name.replace("llama-3.1-", "Llama-3.1-").replace("b", "B") for name in configs}
    head = [
        Column("From", "item"),
        Column("Model", lambda line: titles[line["model"]]),
        Column("Input,\nmemory", "_place"),
        Column("Variant", "_label"),
    ]
    speeds = [
        Column("Published", lambda line: line["_published"]),
        Column("Predicted", lambda line: line["_predicted"]),
        Column("Error", "error_percent", _PERCENT),
        Column("Published\nratio", "ratio_published", "{:.2f}×".format),
        Column("Predicted\nratio", "ratio_predicted", "{:.2f}×".format),
        Column("Error of\nthe ratio", "ratio_error_percent", _PERCENT),
        Column("Use", "use"),
    ]
    stated = [
        *head[1:2],
        Column("Published", "text"),
        Column("Predicted", "_predicted"),
        Column("Outside by", "error_percent", _PERCENT),
    ]
    panels = [
        grid(lines, head + speeds, footnotes, "(a) Input and output tokens a second", lambda line: line["_block"]),
        grid(sentences, stated, footnotes, "(b) Sentences of the paper's Section 4.3, all held out", lambda line: None),
    ]
    return table(entry, [*lines, *sentences], panels, _notes(entry, device, factor, lines, sentences), footnotes)


def _line(cell: Cell, found: Mapping[Cell, float | None], base: Cell, factor: float) -> dict[str, Any]:
    """A line of the CSV. Errors are of the model: its speed times the source's factor, less what was published."""
    value, unchanged = found[cell], found[base]
    scaled = None if value is None else factor * value
    ratio_published, ratio_predicted = ratio(cell.published, base.published), ratio(value, unchanged)
    if cell is base:
        ratio_published = ratio_predicted = None
    memory = f", {cell.memory:g} GB" if cell.memory else ""
    return {
        "item": f"{cell.source}, {cell.item}",
        "model": cell.model,
        "gpus": cell.gpus,
        "input_tokens": cell.prompt,
        "memory_gb": cell.memory,
        "variant": cell.column,
        "quantity": "tokens_per_second",
        "published": cell.published,
        "predicted": scaled,
        "factor": factor,
        "error_percent": error_percent(scaled, cell.published),
        "ratio_published": ratio_published,
        "ratio_predicted": ratio_predicted,
        "ratio_error_percent": error_percent(ratio_predicted, ratio_published),
        "out_of_memory_published": cell.published is None,
        "out_of_memory_predicted": value is None,
        "use": "fitted" if cell.fitted else "held out",
        "_place": length_label(cell.prompt) + memory,
        "_label": LABELS[cell.column],
        "_published": OOM if cell.published is None else _SPEED(cell.published),
        "_predicted": OOM if scaled is None else _SPEED(scaled),
        "_block": cell.place,
    }


def _sentence(one: Statement, value: float, factor: float) -> dict[str, Any]:
    scaled = factor * value if one.absolute else value
    shown = _SPEED if one.absolute else "{:.0f}%".format if "percent" in one.quantity else "{:.2f}×".format
    return {
        "item": "paper, Sec. 4.3",
        "model": one.model,
        "gpus": one.gpus,
        "input_tokens": one.prompt or Statement.QUANTITIES[one.quantity],
        "quantity": one.quantity,
        "low": one.low,
        "high": one.high,
        "text": one.text,
        "predicted": scaled,
        "error_percent": 100 * one.error(scaled),
        "use": "held out",
        "_predicted": shown(scaled),
    }


def _notes(
    entry: Entry,
    device: Device,
    factor: Mapping[str, float],
    lines: Sequence[Mapping[str, Any]],
    sentences: Sequence[Mapping[str, Any]],
) -> list[str]:
    held = [line for line in lines if line["use"] == "held out"]

    def within(key: str, most: float, among: Sequence[Mapping[str, Any]]) -> str:
        errors = [abs(line[key]) / 100 for line in among if line.get(key) is not None]
        return f"{sum(error <= most for error in errors)} of {len(errors)}"

    memory = sum(line["out_of_memory_published"] == line["out_of_memory_predicted"] for line in held)
    parts = ", ".join(f"{value:.3f} for the {source}" for source, value in factor.items())
    return [
        f"Held out: ratios to the baseline within {RATIO:.0%} in {within('ratio_error_percent', RATIO, held)} cells, speeds "
        f"within {SPEED:.0%} in {within('error_percent', SPEED, held)}; out of memory where published, and only there, in "
        f"{memory} of {len(held)}; sentences met in {within('error_percent', 0.0, sentences)}.",
        f"Fitted on the baselines of Llama-3.1-8B alone (swiftkv.predict.fit): {device.name} reaches "
        f"{device.compute_share:.1%} of its peak, a token of a step takes {1e6 * device.row:.1f} µs besides and a layer "
        f"{1e6 * device.layer:.0f} µs a step; and one factor a source, {parts}, as the absolute numbers of paper and blog "
        "differ for a reason that neither states. Which terms the model has was chosen with all published numbers known.",
        f"Table 5 names no length of its requests; {TABLE5_PROMPT:,} input tokens are assumed. What the engine needs besides "
        "weights and cache is the least with which its baseline is out of memory at 16 GB.",
        "Where a sentence names no length: {sustained_rate_speedup:,} input tokens for rates, {ttft_reduction_percent:,} for the "
        "time to first token.".format(**Statement.QUANTITIES),
        *entry.get("notes", []),
    ]


KIND = ArtifactKind("table", (), ("fitted_device", "architectures", "speeds"), make)
