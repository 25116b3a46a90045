"""Define the entries of artifacts.yaml: one class for all tables, one for each kind with a function of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from pipeline.artifacts.metrics import INPUTS, METRICS
from pipeline.config.settings import FAMILIES, NamesOrSet, Part
from swiftkv.section import Names, Section, Share, Text, Unique, Whole, key, nearest

FORMS = {"table": ("csv", "tex", "md", "html", "json"), "figure": ("pdf", "png", "svg", "csv", "json")}
# Columns that stand for several: all tasks of the entry, those in bits per byte, and all others.
SETS = ("tasks", "bits", "accuracies")
# Metrics that curves are drawn over.
TOKENS, SKIPPED = "training_tokens", "prefill_reduction_percent"


T = TypeVar("T")
Listed = Annotated[list[T], Field(min_length=1), Unique]  # not empty, and nothing twice


def _metric(name: str) -> str:
    known = [*SETS, *METRICS]
    if name not in known:
        raise ValueError(f"there is no column {name!r}{nearest(name, known)}")
    return name


Column = Annotated[Text, AfterValidator(_metric)]


class Panel(Section):
    """One grid of a table."""

    caption: Text | None = key("What it shows.", None)
    columns: Annotated[list[Column], Unique] = key("Metrics, or tasks, bits or accuracies of the entry.", [])
    rows: Literal["measured", "differences", "statements", "points"] = key(
        "A row a variant; differences to a reference of the same questions and chats; what the sources state "
        "of the artifact; or a row a model and point, with a column a variant.",
        "measured",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.columns and self.rows != "statements":
            raise ValueError("needs columns")
        if self.rows == "points" and len(self.columns) != 1:
            raise ValueError("rows: points takes one column")
        return self


class BaseEntry(Section):
    """Keys of every entry."""

    kind: Text = key("How it is made: workflow/pipeline/artifacts/entry.py lists all kinds.")
    source: Literal["paper", "blog", "ours"] = key("What shows it.")
    item: Text | None = key("What the source calls it.", None)
    section: Text = key("Where the report shows it.")
    title: Text = key("Short, in small letters.")
    caption: Text = key("What it shows, in sentences.")
    notes: Annotated[list[Text], Unique] = key("Sentences below it.", [])
    published: Annotated[list[Text], Unique] = key("Files of resources/paper with the published numbers.", [])
    separate: bool = key("Made only where it is named, because its trainings or measurements take long.", False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source != "ours" and self.item is None:
            raise ValueError(f"item, what the {self.source} calls it, is missing")
        return self


class TableEntry(BaseEntry):
    """Rows of variants, columns of metrics; or curves: each part a curve, each column a panel."""

    models: Names | None = key("By role, or a model's own name.", None)
    variants: NamesOrSet | None = key("Variants, or a set of them; `/fp8` is one with an FP8 KV cache.", None)
    parts: Listed[Part] | None = key("Blocks of rows, in place of both.", None)
    points: NamesOrSet | None = key("Serving points, or a set of them.", None)
    tasks: NamesOrSet | None = key("Tasks, or a set of them.", None)
    panels: Listed[Panel] = key("The grids that are printed.")
    average: Literal["all", "above chance"] = key("Accuracies that averages are over.", "all")
    over: Literal[TOKENS, SKIPPED] = key("The horizontal axis of curves.", TOKENS)
    published_models: Names = key("Models of which curves of published averages are drawn, too.", [])

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if (self.parts is None) != (self.models is not None and self.variants is not None):
            raise ValueError("takes either models and variants, or parts")
        if self.tasks is None and any(name in SETS for panel in self.panels for name in panel.columns):
            raise ValueError("columns of tasks need the key 'tasks'")
        return self


class VariantsEntry(BaseEntry):
    """Keys of entries about variants of models."""

    models: Names = key("By role, or a model's own name.")
    variants: NamesOrSet = key("Variants, or a set of them; `/fp8` is one with an FP8 KV cache.")


class FlopsEntry(VariantsEntry):
    """Keys of a table of FLOPs by operation."""

    count: Literal["paper", "blog"] = key("The source that counts and rounds so.")
    sequence_length: Whole = key("Prompt tokens.")
    panels: Listed[Panel] = key("The grids that are printed.")


class ServedEntry(VariantsEntry):
    """Keys of entries about serving points."""

    points: NamesOrSet = key("Serving points, or a set of them.")


class HeadlineEntry(BaseEntry):
    """Keys of a figure of speed against quality."""

    parts: Listed[Part] = key("Variants of one model, a look a part.")
    points: NamesOrSet = key("The serving point of the speeds.")
    served: Names = key("Variants that are served; others have the speed of the one that computes the same.")


class ThroughputEntry(ServedEntry):
    """Keys of bars by input length."""

    node_gpus: Whole | None = key("Scale one server to a node of so many GPUs.", None)


class LatencyEntry(ServedEntry):
    """Keys of curves by request rate."""

    together: bool = key("All points in one panel, against the baseline without speculation.", False)


class ReadingEntry(VariantsEntry):
    """Keys of a figure of prompt use over l."""

    families: Listed[Literal[FAMILIES]] = key("Sweeps over l without training.")
    share: Share = key("The smallest l is marked that keeps this much of SQuAD.")


class AnswersEntry(VariantsEntry):
    """Keys of answers with early exit."""

    questions: Names = key("Among early_exit.questions.")


class SettingsEntry(VariantsEntry):
    """Keys of a table of task settings."""

    tasks: NamesOrSet = key("Tasks, or a set of them.")


class AbsentEntry(BaseEntry):
    """Keys of an item that no measurement can regenerate."""

    reason: Text = key("Why.")


class Kind(NamedTuple):
    """One kind of artifact.

    Attributes:
        form: table or figure.
        entry: the class of its entries.
        make: `module:function` of this package that is given the resolved entry and its files and returns a `writers.Table` or a
            `drawing.Drawing`; empty if nothing is made. It raises a `UserError` if a file cannot be read or is of something
            else, or there is nothing to draw.
        needs: the inputs it reads, as `inputs` names them; those of tables and curves follow from their columns.
        exactly: required numbers of models, points or cases of a resolved entry.
    """

    form: str
    entry: type[BaseEntry]
    make: str = ""
    needs: tuple[str, ...] = ()
    exactly: Mapping[str, int] = {}


KINDS = {
    "table": Kind("table", TableEntry, "tables:make"),
    "flops": Kind("table", FlopsEntry, "flops:make", ("dimensions",), {"models": 1}),
    "answers": Kind("table", AnswersEntry, "lists:answers", ("early_exit",), {"models": 1, "cases": 1}),
    "settings": Kind("table", SettingsEntry, "lists:settings", ("scores",), {"models": 1}),
    "contents": Kind("table", BaseEntry, "lists:contents"),
    "claims": Kind("table", BaseEntry, "judge:make", ("tables", "architectures")),
    "throughput": Kind("figure", ThroughputEntry, "speed:throughput", ("serving",)),
    "latency": Kind("figure", LatencyEntry, "speed:latency", ("serving",), {"models": 1}),
    "forward": Kind("figure", ServedEntry, "speed:forward", ("serving",), {"models": 1, "points": 1}),
    "similarity": Kind("figure", VariantsEntry, "layers:similarity", ("similarity",)),
    "reading": Kind("figure", ReadingEntry, "reading:make", ("reading", "similarity"), {"models": 1}),
    "curves": Kind("figure", TableEntry, "curves:make"),
    "alignment": Kind("figure", VariantsEntry, "layers:alignment", ("early_exit",), {"models": 1, "cases": 1}),
    "headline": Kind("figure", HeadlineEntry, "headline:make", ("serving", "reading"), {"models": 1, "points": 1}),
    "wiring": Kind("figure", VariantsEntry, "wiring:make", (), {"models": 1}),
    "concept": Kind("figure", BaseEntry, "wiring:concept"),
    "absent": Kind("table", AbsentEntry),
}


def columns(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns of a table's panels."""
    for panel in entry["panels"]:
        yield from panel.get("columns", [])


def needed_inputs(entry: Mapping[str, Any]) -> list[str]:
    """Return the inputs that an entry's artifact reads."""
    if entry["kind"] not in ("table", "curves"):
        return list(KINDS[entry["kind"]].needs)
    shown = [*columns(entry), *([entry.get("over", TOKENS)] if entry["kind"] == "curves" else [])]
    measures = [METRICS[name].measure if name in METRICS else "score" for name in shown]
    inputs = dict.fromkeys(INPUTS[measure] for measure in measures if measure != "spec")
    return [name for name in inputs if name != "scores" or entry.get("tasks")]
