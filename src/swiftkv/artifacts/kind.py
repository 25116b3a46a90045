"""What a kind of artifact is: the keys its entries take, the measurement files it needs, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Config = Mapping[str, Any]
Entry = Mapping[str, Any]
Files = Mapping[str, list[Path]]

FORMS = {"table": ("csv", "tex", "md", "html"), "figure": ("pdf", "png", "csv")}

# Keys every entry of artifacts.yaml has or may have, as JSON schema.
COMMON: Mapping[str, Mapping[str, Any]] = {
    "kind": {"type": "string"},
    "source": {"enum": ["paper", "blog", "ours"]},
    "item": {"type": "string"},
    "section": {"type": "string"},
    "title": {"type": "string"},
    "caption": {"type": "string"},
    "notes": {"type": "array", "items": {"type": "string"}},
    "published": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
}
COMMON_REQUIRED = ("kind", "source", "section", "title", "caption")

_NAMES = {"type": "array", "minItems": 1, "items": {"type": "string"}, "uniqueItems": True}
_NAMES_OR_SET = {"anyOf": [{"type": "string"}, _NAMES]}
# What an artifact is about; every kind says which of these it takes. A set of variants, points or tasks may stand for
# its members, and `variant/fp8` is a variant with an FP8 KV cache.
SCOPE: Mapping[str, Mapping[str, Any]] = {
    "models": _NAMES,
    "variants": _NAMES_OR_SET,
    "points": _NAMES_OR_SET,
    "tasks": _NAMES_OR_SET,
    "parts": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["title", "models", "variants"],
            "properties": {"title": {"type": "string"}, "models": _NAMES, "variants": _NAMES_OR_SET},
        },
    },
}


class Listed(NamedTuple):
    """What the contents page says of one entry at this scale.

    Attributes:
        form: of its kind.
        label: "paper's Table 2", "blog's Figure 5" or "not in the paper".
        left_out: why it is not made; None if it is.
    """

    form: str
    label: str
    left_out: str | None


@dataclass(frozen=True)
class Kind:
    """One kind of artifact.

    Attributes:
        form: "table" or "figure"; `FORMS` are the files of each.
        scope: the keys of `SCOPE` its entries take; those in `optional` need not be there.
        own: further keys, as JSON schema; those in `optional` need not be there.
        needs: the files an artifact is made of, by name: `needs(config, entry)` with the entry as `contents.resolve`
            gives it. Paths are those of the workflow's results, or of `resources/`.
        make: draws it: `make(entry, files)` gives a `table.Table` or a `drawing.Drawing`. A pure function of the entry
            and the files. None where nothing can be made; the entry then gives the `reason`.
        exactly: how many models, points, ... an entry must have after resolution, where that is fixed.
        scored: it shows nothing but the quality of its models, so it is not made where that cannot be measured of any.
        extra: what else of the configuration an artifact shows, added to its resolved entry: `extra(config, entry)`.
        of_page: the same, of a kind that tells of the contents page itself: `of_page(config, page)`, every entry by name.
    """

    form: str
    scope: tuple[str, ...]
    needs: Callable[[Config, Entry], dict[str, list[str]]]
    make: Callable[[Entry, Files], Any] | None
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    exactly: Mapping[str, int] = field(default_factory=dict)
    scored: bool = False
    extra: Callable[[Config, Entry], Mapping[str, Any]] | None = None
    of_page: Callable[[Config, Mapping[str, Listed]], Mapping[str, Any]] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an entry of this kind."""
        keys = {**COMMON, **{key: SCOPE[key] for key in self.scope}, **self.own}
        required = [key for key in (*COMMON_REQUIRED, *self.scope, *self.own) if key not in self.optional]
        return {"type": "object", "additionalProperties": False, "required": required, "properties": keys}
