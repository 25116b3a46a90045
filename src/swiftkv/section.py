"""Sections of a configuration: frozen, typed, without unknown keys; a mistake in one is answered by one sentence."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    model_validator,
)

from swiftkv.errors import UserError, one_line

LARGEST = 10**9  # of every number without a closer limit: a slip of the keyboard is larger


class Section(BaseModel):
    """A mapping of the configuration with known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, content: Any) -> Any:
        known = cls.model_fields
        for name in content if isinstance(content, dict) and cls.model_config["extra"] == "forbid" else ():
            if name not in known:
                raise ValueError(f"there is no key {name!r}{nearest(name, known)}; there are {', '.join(known)}")
        return content

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read a section from mappings, lists and values; raises as `read`."""
        return read(cls, content, cls.__name__.lower())


def key(says: str, default: Any = ..., **limits: Any) -> Any:
    """A key of a section.

    Args:
        says: what it means.
        default: its value where it is not written; without one it has to be.
        limits: as pydantic's `Field` takes them; of another kind than those of its type, which would win.
    """
    return Field(default, description=says, **limits)


def nearest(name: Any, known: Iterable[str]) -> str:
    """A question for the known name that is most like `name`, to stand after it in a sentence; empty if none is."""
    like = difflib.get_close_matches(str(name), list(known), 1)
    return f" (did you mean {like[0]!r}?)" if like else ""


def undefined(name: str, section: str, known: Iterable[str]) -> str:
    """The sentence on a name that a section of the configuration does not define."""
    known = list(known)
    return f"{name!r} is not defined under {section}{nearest(name, known)}; there are {', '.join(known) or 'none'}"


Read = TypeVar("Read", bound=Section)


def read(section: type[Read], content: Any, place: str = "config") -> Read:
    """The typed form of a section.

    Args:
        section: its class.
        content: mappings, lists and values, as YAML or JSON gives them.
        place: how the sentence begins: the file, or what of it.

    Raises:
        UserError: one sentence on one of the mistakes, with its place.
    """
    try:
        return section.model_validate(content)
    except ValidationError as error:
        mistakes = [(_keys(mistake, content), mistake) for mistake in error.errors(include_url=False)]
        # Where a value may have one of several forms, the deepest mistake is in the form that was meant.
        keys, mistake = max(mistakes, key=lambda pair: len(pair[0]))
        joint = "." if ", at " in place else ", at "
        where = f"{place}{joint}{'.'.join(keys)}" if keys else place
        raise UserError(f"{where}: {_sentence(mistake)}") from None


def _keys(mistake: Any, content: Any) -> list[str]:
    """The keys that lead to a mistake, without what pydantic puts between them for unions and checks."""
    keys = []
    for step in mistake["loc"]:
        if isinstance(content, dict) and step in content or isinstance(content, list) and isinstance(step, int):
            keys.append(str(step))
            content = content[step]
    return [*keys, str(mistake["loc"][-1])] if mistake["type"] == "missing" else keys


def _sentence(mistake: Any) -> str:
    """pydantic's message with the value and the allowed one that is most like it."""
    context, value = mistake.get("ctx", {}), mistake["input"]
    if "error" in context:
        return one_line(context["error"])
    allowed = re.findall(r"'([^']*)'", str(context.get("expected", context.get("expected_tags", ""))))
    shown = (
        ""
        if isinstance(value, dict | list) or ", not" in mistake["msg"]
        else f", not {json.dumps(value, default=repr)}"
    )
    return f"{mistake['msg']}{shown}{nearest(context.get('tag', value), allowed)}"


def by_key(*names: str) -> Discriminator:
    """Tells the sections of a union by the one of several keys that a mapping has; the tag of a key is `[key]`."""

    def tag(content: Any) -> str | None:
        keys = content if isinstance(content, dict) else getattr(type(content), "model_fields", ())
        present = [name for name in names if name in keys]
        return f"[{present[0]}]" if len(present) == 1 else None

    message = f"write a mapping with exactly one of the keys {', '.join(names)}"
    return Discriminator(tag, custom_error_type="source", custom_error_message=message)


# Types of values


def _unique(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} stands twice in the list")
    return values


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, not {json.dumps(value)}")
    return value


def hub_id(name: str) -> str:
    """Return a name of the Hugging Face hub, org/name; raise a `ValueError` with the rule if the hub refuses it."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
        if name.count("/") == 1:
            return name
    except HFValidationError:
        pass
    plain, _, revision = name.partition("@")
    more = f"; write {plain}, and {revision!r} as `revision`, a key of its own in the configuration" if revision else ""
    raise ValueError(
        f"{name!r} cannot be on the hub: a name there is org/name, of letters, digits, '-', '_' and '.', 96 at most, with no "
        f"'--' and '..', no '-' and '.' at an end, and no '.git' at the end{more}"
    )


# Not strict: YAML reads `1e-4` as text, 1.0e+6 as no whole number and a name of digits as a number.
Real = Annotated[
    Annotated[float, Field(strict=False, allow_inf_nan=False)] | int, BeforeValidator(_no_truth)
]  # a whole one stays whole
Integral = Annotated[int, Field(strict=False), BeforeValidator(_no_truth)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", strict=False, coerce_numbers_to_str=True)]
HubId = Annotated[str, AfterValidator(hub_id), Field(description="Hugging Face hub id, org/name.")]
Positive = Annotated[Real, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[Real, Field(ge=0, le=LARGEST)]
Quantity = Annotated[Real, Field(gt=0, le=10**11)]  # tokens, bytes
Fraction = Annotated[Real, Field(ge=0, le=1)]
Share = Annotated[Real, Field(gt=0, le=1)]
Rate = Annotated[Real, Field(gt=0, le=10**5)]  # a second
Integer = Annotated[Integral, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[Integral, Field(ge=0, le=LARGEST)]
Whole = Annotated[Integral, Field(ge=1, le=LARGEST)]
Seed = Annotated[Integral, Field(ge=0, lt=2**32)]  # what NumPy takes
Unique = AfterValidator(_unique)
Names = Annotated[list[Text], Field(min_length=1), Unique]
