"""Sections of a configuration: frozen, typed, without unknown keys; a mistake in one is answered by one sentence.

A `Section` is a pydantic model. What pydantic says of a mistake never reaches the user: `read` turns it into a sentence that
names the place, what is wrong there, and what may stand there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    model_validator,
)

from swiftkv.errors import UserError

LARGEST = 10**9  # of every number without a closer limit: a slip of the keyboard is larger


class Section(BaseModel):
    """A mapping of the configuration with known keys.

    A subclass says what sentences call it: `class Model(Section, called="a model")`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), defer_build=True)
    called: ClassVar[str] = "this section"
    nullable: ClassVar[frozenset[str]] = frozenset()  # optional keys for which null says something

    def __init_subclass__(cls, called: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.called = called or cls.called

    @model_validator(mode="before")
    @classmethod
    def _refuse_keys(cls, content: Any) -> Any:
        if isinstance(content, cls):
            return content
        required = [name for name, key in cls.model_fields.items() if key.is_required()]
        if not isinstance(content, dict):
            form = ", ".join(f"{name}: ..." for name in required or cls.model_fields)
            raise ValueError(f"must be a mapping, {{{form}}}, not {shown(content)}")
        for name in content if cls.model_config["extra"] == "forbid" else ():
            if name not in cls.model_fields:
                takes = ", ".join(cls.model_fields)
                raise ValueError(f"{cls.called} has no key {name!r}{nearest(name, cls.model_fields)}; it takes {takes}")
        if missing := [name for name in required if name not in content]:
            raise ValueError(f"{cls.called} needs the key {missing[0]!r}")
        return content


def key(says: str, default: Any = ..., **limits: Any) -> Any:
    """A key of a section.

    Args:
        says: what it means.
        default: its value where it is not written; without one it has to be.
        limits: further ones than its type's, as pydantic's `Field` takes them.
    """
    return Field(default, description=says, **limits)


def nearest(name: Any, known: Iterable[str]) -> str:
    """A question for the known name that is most like `name`, to stand after it in a sentence; empty if none is."""
    like = difflib.get_close_matches(str(name), list(known), 1)
    return f" (did you mean {like[0]!r}?)" if like else ""


def shown(value: Any) -> str:
    """A value as a sentence shows it: what YAML has other words for in those."""
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or value is True or value is False
        else repr(value)
    )


def undefined(name: str, section: str, known: Iterable[str]) -> str:
    """The sentence on a name that a section of the configuration does not define."""
    known = list(known)
    return f"{name!r} is not defined under {section}{nearest(name, known)}; there are {', '.join(known) or 'none'}"


def plain(value: Any) -> Any:
    """A section as mappings and lists, with the keys that were written; one of which null was written says nothing."""
    if isinstance(value, Section):
        fields = type(value).model_fields
        written = {name: getattr(value, name) for name in [*fields, *(value.model_extra or {})]}
        return {
            name: plain(content)
            for name, content in written.items()
            if name in value.model_fields_set
            and (content is not None or name in value.nullable or (name in fields and fields[name].is_required()))
        }
    if isinstance(value, dict):
        return {name: plain(content) for name, content in value.items()}
    return [plain(content) for content in value] if isinstance(value, list) else value


Read = TypeVar("Read", bound=Section)


def read(section: type[Read], content: Any, place: str = "config") -> Read:
    """The typed form of a section.

    Args:
        section: its class.
        content: mappings, lists and values, as YAML or JSON gives them.
        place: how the sentence begins: the file, or what of it.

    Raises:
        UserError: one sentence on the first mistake, with its place.
    """
    try:
        return section.model_validate(content)
    except ValidationError as error:
        keys, sentence = _first(error)
        joint = "." if ", at " in place else ", at "
        where = f"{place}{joint}{'.'.join(keys)}" if keys else place
        raise UserError(f"{where}: {sentence}") from None


def _first(error: ValidationError) -> tuple[list[str], str]:
    mistake = error.errors(include_url=False)[0]
    keys = [str(key) for key in mistake["loc"] if key != "[key]"]
    cause = mistake.get("ctx", {}).get("error")
    if isinstance(cause, ValidationError):
        deeper, sentence = _first(cause)
        return keys + deeper, sentence
    return keys, " ".join(str(cause or _sentence(mistake)).split())


_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _sentence(mistake: Any) -> str:
    kind, value, limits = mistake["type"], mistake["input"], mistake.get("ctx", {})
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"must be {words} {limits[limit]:g}, not {value!r}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'|(\d+)", limits["expected"])
        allowed = [text or number for text, number in choices]
        return f"must be one of {', '.join(allowed)}, not {shown(value)}{nearest(value, allowed)}"
    if kind == "list_type":
        return _list_sentence(value)
    if kind in ("too_short", "string_too_short"):
        least = limits["min_length"]
        return f"{value!r} is too short; it must have {least} entries at least" if least > 1 else "must not be empty"
    quotes = "; write it in quotes" if kind == "string_type" and isinstance(value, int | float) else ""
    return f"must be {_TYPES.get(kind, 'something else')}, not {shown(value)}{quotes}"


def _list_sentence(value: Any) -> str:
    """A set or one name where a list belongs: YAML reads `{a, b}` as a mapping to nothing."""
    names = list(value) if isinstance(value, dict) and not any(value.values()) else [value]
    form = f"; write [{', '.join(map(str, names))}]" if not isinstance(value, dict) or names != [value] else ""
    return f"must be a list, not {shown(value)}{form}"


# Types of values


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # without point or sign YAML's numbers are text to PyYAML


def _number(value: Any, handler: Any) -> Any:
    """A number as it was written: a whole one stays whole."""
    value = float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
    checked = handler(value)
    return value if type(value) is int else checked


def _whole(value: Any) -> Any:
    value = float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unique(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} stands twice in the list")
    return values


def _hub_id(text: str) -> str:
    if not re.fullmatch(r"[^/\s:]+/[^/\s:]+", text):
        raise ValueError(f"{text!r} is no id of the hub; write org/name")
    return text


def _name(text: Any) -> Any:
    """YAML reads a name of digits as a number."""
    text = str(text) if isinstance(text, int) and not isinstance(text, bool) else text
    if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError(
            f"{text!r} is no name: one has letters, digits, '.', '_' and '-', and starts with the first two"
        )
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


Text = Annotated[str, AfterValidator(_not_blank)]
Name = Annotated[str, BeforeValidator(_name)]
HubId = Annotated[str, AfterValidator(_hub_id), Field(description="Hugging Face hub id, org/name.")]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), WrapValidator(_number)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), WrapValidator(_number)]
Quantity = Annotated[float, Field(gt=0, le=10**11, allow_inf_nan=False), WrapValidator(_number)]  # tokens, bytes
Fraction = Annotated[float, Field(ge=0, le=1), WrapValidator(_number)]
Share = Annotated[float, Field(gt=0, le=1), WrapValidator(_number)]
Rate = Annotated[float, Field(gt=0, le=10**5), WrapValidator(_number)]  # a second
Integer = Annotated[int, Field(ge=-LARGEST, le=LARGEST), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=0, le=LARGEST), BeforeValidator(_whole)]
Whole = Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, lt=2**32), BeforeValidator(_whole)]  # what NumPy takes
Names = Annotated[list[Text], Field(min_length=1), AfterValidator(_unique)]
Unique = AfterValidator(_unique)


def by_type(expected: str, **types: Any) -> BeforeValidator:
    """Lets the type of a value, by Python's name of it, say how it is checked; unions of pydantic say all there is at once.

    Args:
        expected: what may stand there, in words.
        types: Python's name of a type -> what a value of it must be.
    """
    adapters: dict[str, TypeAdapter[Any]] = {}

    def choose(value: Any) -> Any:
        kind = type(value).__name__
        if kind not in types:
            form = f"; write [{', '.join(map(str, value))}]" if isinstance(value, dict) and "list" in types else ""
            raise ValueError(f"must be {expected}, not {shown(value)}{form}")
        if kind not in adapters:
            adapters[kind] = TypeAdapter(types[kind])
        return adapters[kind].validate_python(value, strict=True)

    return BeforeValidator(choose)


def by_key(**sections: type[Section]) -> BeforeValidator:
    """Lets the one key that a mapping has of several say which section it is: where something comes from.

    Args:
        sections: key -> the section that has it.
    """
    names = ", ".join(sections)

    def choose(content: Any) -> Any:
        if isinstance(content, Section):
            return content
        if not isinstance(content, dict):
            written = content if isinstance(content, str) else "path"
            raise ValueError(
                f"must be a mapping with one of {names}, such as {{local: {written}}}, not {shown(content)}"
            )
        present = [name for name in sections if name in content]
        if len(present) == 1:
            return sections[present[0]].model_validate(content)
        unknown = [name for name in content if not any(name in section.model_fields for section in sections.values())]
        also = f"; there is no key {unknown[0]!r}{nearest(unknown[0], sections)}" if unknown else ""
        raise ValueError(
            f"has {' and '.join(present) or 'none'} of {names}; exactly one says where it comes from{also}"
        )

    return BeforeValidator(choose)


def by_value(key: str, sections: dict[str, type[Section]]) -> BeforeValidator:
    """Lets the value of a key say which section a mapping is."""

    def choose(content: Any) -> Any:
        if isinstance(content, Section):
            return content
        if not isinstance(content, dict) or key not in content:
            raise ValueError(
                f"must be a mapping with the key {key!r}, one of {', '.join(sections)}, not {shown(content)}"
            )
        value = content[key]
        if not isinstance(value, str) or value not in sections:
            also = nearest(value, sections)
            raise ValueError(f"{key} must be one of {', '.join(sections)}, not {value!r}{also}")
        return sections[value].model_validate(content)

    return BeforeValidator(choose)
