"""The contents page, `artifacts.yaml`: its entries, checked, and resolved against the models and sizes of a scale.

An entry names models by their role and variants, points and tasks by name or by a set. A scale says which model plays a
role (`roles`; null: none does), which variant stands in for one the model cannot have (`stand_ins`) and what the sets
hold (`sets`). So a scale's share is the same few lines however many artifacts there are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts import claims
from pipeline.artifacts.entry import FORMS, KINDS, Kind
from pipeline.artifacts.entry import needs as needed
from pipeline.artifacts.inputs import MEASURED, PAPER, inputs, players, rows
from pipeline.config import PROJECT, Config
from swiftkv.errors import UserError
from swiftkv.section import nearest, read, undefined

_SETS = ("variants", "points", "tasks")  # the sections whose members a set may name
Entry = Mapping[str, Any]


def kind_of(config: Config, name: str) -> Kind:
    """The kind of an entry."""
    return KINDS[config.artifacts[name].kind]


def names(config: Config) -> list[str]:
    """The artifacts this scale makes, in the order of the contents page."""
    return [name for name in config.artifacts if left_out(config, name) is None]


def standard(config: Config) -> list[str]:
    """Return the artifacts that a run makes that names none."""
    return [name for name in names(config) if not config.entries[name].get("separate")]


def pattern(config: Config, form: str) -> str:
    """A regular expression for an artifact of one form, also of one that `check_made` refuses: only other forms do not match."""
    others = [re.escape(name) for name in config.artifacts if kind_of(config, name).form != form]
    return rf"(?!(?:{'|'.join(others) or '(?!)'})\.)[^/.]+"


def check_made(config: Config, name: str) -> None:
    """Raise a `UserError` where this scale does not make an artifact: it is not in the contents page, or for its reason."""
    if name not in config.artifacts:
        raise UserError(f"there is no artifact {name!r}{nearest(name, config.artifacts)}; artifacts.yaml lists all")
    if reason := left_out(config, name):
        raise UserError(f"{name} is not made at this scale: {reason} (artifacts.yaml)")


def named(config: Config, targets: Iterable[str]) -> list[str]:
    """The artifacts that targets stand for: names, sets of them, or files in whatever folder.

    Raises:
        UserError: this scale does not make one of them.
    """
    stems = (Path(target).stem for target in targets)
    found = [name for stem in stems for name in config.sets.artifacts.get(stem, [stem])]
    for name in found:
        check_made(config, name)
    return found


def left_out(config: Config, name: str) -> str | None:
    """Why this scale does not make an artifact; None if it does."""
    entry = config.entries[name]
    if not kind_of(config, name).make:
        return entry["reason"]
    if (scopes := _scopes(entry)) and not any(players(config, scope["models"]) for scope in scopes):
        return f"no model of this scale plays the role {', '.join(dict.fromkeys(_roles(entry)))}"
    if entry["kind"] in ("alignment", "reading"):  # nothing to draw without quality
        (model, *_) = players(config, _roles(entry))
        if why := config.models[model["name"]].unmeasured("quality"):
            return why
    other = repeated(config, name)
    return other and f"{other} shows the same records"


def repeated(config: Config, name: str) -> str | None:
    """The first artifact of this scale and kind that shows all records of `name`; None if there is none.

    An entry about a model with published numbers repeats nothing: those beside its records are its own.
    """
    raw = config.entries[name]
    mine = _measured(config, raw)
    if not mine or any(config.models[model["name"]].published for model in players(config, _roles(raw))):
        return None
    earlier = itertools.takewhile(lambda item: item[0] != name, config.entries.items())
    for other, entry in earlier:
        alike = all(entry.get(key) == raw.get(key) for key in ("kind", "questions", "share"))
        if alike and mine <= _measured(config, entry) and left_out(config, other) is None:
            return other
    return None


def resolve(config: Config, name: str) -> dict[str, Any]:
    """An entry with all it refers to filled in; the one thing besides files that an artifact is made of.

    Returns:
        The entry, with
        * name, form; label: "paper's Table 2", "blog's Figure 5" or "not in the paper";
        * models: [{name, title, published (its key in resources/paper)}], doubles dropped;
        * cases: [[variant, KV-cache format], ...]; recipes: variant -> its training recipe;
        * specs: model -> variant -> fields of `SwiftKVSpec`, None for an unchanged model;
        * unmeasured: model -> variant -> why it cannot be measured, where that is so;
        * points: name -> the point with what all points share; tasks: name -> the task;
        * settings: measure -> what else its records are made with;
        * parts: title (None of one without parts), models and cases of each block of rows.

    Raises:
        UserError: a variant cannot be made of a model, or the kind wants another number of models or points.
    """
    raw, kind = config.entries[name], kind_of(config, name)
    entry = {**raw, "name": name, "form": kind.form, "label": label(raw), "models": players(config, _roles(raw))}
    entry["parts"] = [
        {
            "title": scope["title"] if "parts" in raw else None,
            "models": [model["name"] for model in players(config, scope["models"])],
            "cases": cases(config, scope["variants"]),
        }
        for scope in _scopes(raw)
    ]
    if entry.pop("variants", None):
        entry["cases"] = entry["parts"][0]["cases"]
    # Served, scored, or both.
    ways = [True] * ("points" in raw) + [False] * ("tasks" in raw or "points" not in raw or "reading" in needed(raw))
    entry |= {"specs": {}, "unmeasured": {}, "recipes": {}}
    for model, variant, _ in rows(entry):
        spec, recipe = config.spec(model, variant), config.variants[variant].recipe
        entry["specs"].setdefault(model, {})[variant] = spec and spec.fields
        if why := next(filter(None, (config.unmeasured(model, variant, served=served) for served in ways)), None):
            entry["unmeasured"].setdefault(model, {})[variant] = why
        if recipe:
            entry["recipes"][variant] = recipe
    if "points" in raw:
        entry["points"] = {point: config.point(point) for point in members(config, "points", raw["points"])}
    if "tasks" in raw:
        named = members(config, "tasks", raw["tasks"])
        entry["tasks"] = {task: config.tasks[task].model_dump(exclude_unset=True) for task in named}
    entry |= _further(config, entry)
    shared = {name: getattr(config, name).model_dump() for name in ("fidelity", "similarity", "early_exit", "reading")}
    entry["settings"] = {**shared, "score": {"seed": config.scoring.seed}} if entry["models"] else {}
    for what, number in kind.exactly.items():
        if len(entry[what]) != number:
            raise UserError(
                f"artifacts.{name}: kind {raw['kind']} shows {number} of {what}, but here it has {len(entry[what])}"
            )
    return entry


def _further(config: Config, entry: dict[str, Any]) -> dict[str, Any]:
    """Return further parts of the configuration that entries of some kinds show; raises a `UserError` for impossible ones."""
    kind, name = entry["kind"], entry["name"]
    if "early_exit" in needed(entry):
        for variant, _ in entry["cases"]:
            config.check_early_exit(variant)
        if unknown := [
            question for question in entry.get("questions", []) if question not in config.early_exit.questions
        ]:
            raise UserError(f"artifacts.{name}: the question {unknown[0]!r} is not among early_exit.questions")
    if kind == "wiring":
        return {"num_hidden_layers": config.models[entry["models"][0]["name"]].num_hidden_layers}
    if kind == "contents":
        return {"lines": [_line(config, other) for other in config.artifacts]}
    return _judged(config) if kind == "claims" else {}


def _line(config: Config, name: str) -> dict[str, Any]:
    """One line of the contents page, from the configuration alone."""
    listed, missing, form = config.entries[name], left_out(config, name), kind_of(config, name).form
    models: dict[str | None, dict[str, None]] = {}  # and the roles of each
    for role in _roles(listed):
        models.setdefault(config.roles.get(role, role), {})[role] = None
    played = [
        f"{'/'.join(roles)}: {config.models[model].title if model else 'none'}" for model, roles in models.items()
    ]
    return {
        "name": name,
        "item": label(listed),
        **{key: listed[key] for key in ("title", "section", "kind")},
        "models": ", ".join(played) or None,
        "made": missing is None,
        "files": None if missing else f"{form}s/{name}.{{{','.join(FORMS[form])}}}",
        "reason": missing,
    }


def _judged(config: Config) -> dict[str, Any]:
    """Return the scene of the claims: artifacts with their numbers, models by role, artifacts and variants that are absent."""
    shown_by = {name: repeated(config, name) or name for name in claims.ARTIFACTS if name in config.artifacts}
    absent = {name: reason for name, other in shown_by.items() if (reason := left_out(config, other)) is not None}
    shown_by = {name: other for name, other in shown_by.items() if name not in absent}
    return {
        "judged_on": {other: kind_of(config, other).form for other in shown_by.values()},
        "shown_by": shown_by,
        "absent": absent,
        "roles": {role: next(iter(players(config, [role])), None) for role in config.roles},
        "points": {point: config.point(point) for point in config.serving.points},
        "chances": {name: task.chance for name, task in config.tasks.items() if task.chance is not None},
    }


def _scopes(raw: Entry) -> list[Entry]:
    """The parts of an entry as artifacts.yaml has it, or itself."""
    return raw.get("parts") or ([raw] if "models" in raw else [])


def _roles(raw: Entry) -> list[str]:
    return [role for scope in _scopes(raw) for role in scope["models"]]


def _measured(config: Config, raw: Entry) -> set[tuple[str, ...]]:
    """The measurements that an entry shows whole: model, variant, KV-cache format, input, and point or task."""
    found: set[tuple[str, ...]] = set()
    for scope in _scopes(raw):
        models = players(config, scope["models"])
        shown = cases(config, scope["variants"])
        for need in set(needed(raw)) & MEASURED.keys():
            what = MEASURED[need][1]
            names = members(config, f"{what}s", raw[f"{what}s"]) if what else [""]
            found |= {(model["name"], *case, need, name) for model in models for case in shown for name in names}
        found |= {(model["name"], family) for model in models for family in raw.get("families", ())}
    return found


def needs(config: Config, name: str) -> dict[str, list[str]]:
    """The files an artifact is made of, by name; published ones under "published"."""
    entry = resolve(config, name)
    return inputs(config, entry, needed(entry))


def label(entry: Entry) -> str:
    """How titles name the published item an artifact regenerates."""
    return "not in the paper" if entry["source"] == "ours" else f"{entry['source']}'s {entry['item']}"


def members(config: Config, section: str, named: str | list[str]) -> list[str]:
    """The names a list or a set stands for."""
    return list(getattr(config.sets, section)[named]) if isinstance(named, str) else list(named)


def cases(config: Config, named: str | list[str]) -> list[list[str]]:
    """[variant, KV-cache format] of a list or set of variants, with this scale's stand-ins, doubles dropped."""
    stand_ins, found = config.stand_ins, []
    for item in members(config, "variants", named):
        variant, _, kv_cache = stand_ins.get(item, item).partition("/")
        found.append((stand_ins.get(variant, variant), kv_cache or "auto"))
    return [list(case) for case in dict.fromkeys(found)]


def check(config: Config) -> None:
    """Raise a `UserError` that names the place in the contents page for the first mistake in it."""
    for section, sets in config.sets:
        for name, listed in sets.items():
            _check_names(config, section, listed, f"sets.{section}.{name}")
    for role, model in config.roles.items():
        if role in config.models:
            raise UserError(f"config, at roles.{role}: a model has this name too; give the role another")
        if model is not None and model not in config.models:
            raise UserError(f"config, at roles.{role}: {undefined(model, 'models', config.models)}")
    for both in config.stand_ins.items():
        _check_names(config, "variants", both, "stand_ins")
    for name, entry in config.entries.items():
        place = f"config, at artifacts.{name}"
        if entry["kind"] not in KINDS:
            raise UserError(f"{place}: {undefined(entry['kind'], 'the kinds', sorted(KINDS))}")
        read(KINDS[entry["kind"]].entry, entry, place)
        for stem in entry.get("published", []):
            if not any((root / PAPER / f"{stem}.csv").is_file() for root in (Path(), PROJECT)):
                known = sorted(file.stem for file in (PROJECT / PAPER).glob("*.csv"))
                raise UserError(f"{place}: {undefined(stem, PAPER, known)}")
        for scope in (entry, *entry.get("parts", [])):
            _check_scope(config, scope, place)
    for name in names(config):  # after all are known to be well-formed, as some speak of others
        resolved = resolve(config, name)
        for model in resolved["models"] if "points" in resolved else []:
            config.check_served(model["name"], f"artifacts.{name}")


def _check_scope(config: Config, scope: Entry, place: str) -> None:
    for role in scope.get("models", []):
        if role not in (known := {**config.roles, **config.models}):
            like = nearest(role, known)
            raise UserError(
                f"{place}: {role!r} is neither a role nor a model{like}; roles are {', '.join(config.roles)}"
            )
    for section in _SETS:
        named, sets = scope.get(section), getattr(config.sets, section)
        if isinstance(named, str) and named not in sets:
            form = f"; for one of {section} write [{named}]" if named in _defined(config, section) else ""
            raise UserError(f"{place}: {undefined(named, f'sets.{section}', sets)}{form}")
        if isinstance(named, list):
            _check_names(config, section, named, place.removeprefix("config, at "))
    for variant, _ in cases(config, scope.get("variants", [])):
        if config.variants[variant].merge_all_layers and ("points" not in scope or "tasks" in scope):
            raise UserError(f"{place}: variant {variant!r} can only be served, so it needs points and has no quality")


def _defined(config: Config, section: str) -> Mapping[str, Any]:
    return config.serving.points if section == "points" else getattr(config, section)


def _check_names(config: Config, section: str, items: Iterable[str], place: str) -> None:
    defined = _defined(config, section)
    for item in items:
        name, _, kv_cache = item.partition("/") if section == "variants" else (item, "", "")
        if name not in defined:
            where = "serving.points" if section == "points" else section
            raise UserError(f"config, at {place}: {undefined(name, where, defined)}")
        if kv_cache not in ("", "fp8"):
            raise UserError(f"config, at {place}: {item!r} asks for a KV cache in {kv_cache!r}; there is only /fp8")
