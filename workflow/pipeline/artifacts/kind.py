"""What a kind of artifact is: the keys its entries take, the measurement files it needs, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, create_model, model_validator

from pipeline.config import Config
from pipeline.config.settings import NamesOrSet, Part
from swiftkv.section import Names, Section, Text, Unique, key

Entry = Mapping[str, Any]
Files = Mapping[str, list[Path]]

FORMS = {"table": ("csv", "tex", "md", "html", "json"), "figure": ("pdf", "png", "csv", "json")}


class Common(Section):
    """Keys that every entry of artifacts.yaml has or may have."""

    kind: Text = key("How it is drawn and what it is made of: workflow/pipeline/artifacts/kinds/<kind>.py.")
    source: Literal["paper", "blog", "ours"] = key("What shows it.")
    item: Text | None = key("What the source calls it.", None)
    section: Text = key("Where the report shows it.")
    title: Text = key("Short, in small letters.")
    caption: Text = key("What it shows, in sentences.")
    notes: list[Text] = key("Sentences below it.", [])
    published: Annotated[list[Text], Unique] = key("Files of resources/paper with the published numbers.", [])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source != "ours" and self.item is None:
            raise ValueError(f"item, what the {self.source} calls it, is missing")
        return self


MODELS = ("models", "similar_models", "large_models")  # the keys of entries that name roles

# What an artifact is about; every kind says which of these it takes. A set of variants, points or tasks may stand for
# its members, and `variant/fp8` is a variant with an FP8 KV cache.
SCOPE: Mapping[str, Any] = {
    "models": Names,
    "variants": NamesOrSet,
    "points": NamesOrSet,
    "tasks": NamesOrSet,
    "parts": Annotated[list[Part], Field(min_length=1), Unique],
}


class Listed(NamedTuple):
    """What the contents page says of one entry at this scale.

    Attributes:
        form: that of its kind, table or figure.
        label: "paper's Table 2", "blog's Figure 5" or "not in the paper".
        left_out: why it is not made; None if it is.
        repeated: the artifact that shows the same records at this scale; None if there is none.
    """

    form: str
    label: str
    left_out: str | None
    repeated: str | None


@dataclass(frozen=True)
class ArtifactKind:
    """One kind of artifact.

    Attributes:
        form: "table" or "figure"; `FORMS` are the files of each.
        scope: the keys of `SCOPE` its entries take; those in `optional` need not be there.
        own: further keys, each with the type of its values; those in `optional` need not be there.
        needs: the measurements an artifact is made of, as `inputs` names them.
        make: draws it: `make(entry, files)` gives a `table.Table` or a `drawing.Drawing`. A pure function of the entry
            and the files; a `UserError` where a file cannot be read or is of something else, or there is nothing to draw.
            None where nothing can be made; the entry then gives the `reason`.
        exactly: how many models, points, ... an entry must have after resolution, where that is fixed.
        extra: what else of the configuration an artifact shows, added to its resolved entry: `extra(config, entry)`; a
            `UserError` where the entry asks for what the kind cannot show.
        of_page: the same, of a kind that tells of other entries: `of_page(config, entry, page)`, every entry of the contents
            page by name.
    """

    form: str
    scope: tuple[str, ...]
    needs: tuple[str, ...]
    make: Callable[[Entry, Files], Any] | None
    own: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    exactly: Mapping[str, int] = field(default_factory=dict)
    extra: Callable[[Config, Entry], Mapping[str, Any] | None] | None = None
    of_page: Callable[[Config, Entry, Mapping[str, Listed]], Mapping[str, Any]] | None = None

    def entry(self, name: str) -> type[Common]:
        """What an entry must look like; `name` is the kind's own."""
        types = {key: SCOPE[key] for key in self.scope} | dict(self.own)
        keys: dict[str, Any] = {
            key: (content | None, None) if key in self.optional else (content, ...) for key, content in types.items()
        }
        return create_model(f"{name}_entry", __base__=Common, **keys)
