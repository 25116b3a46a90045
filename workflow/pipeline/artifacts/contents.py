"""The contents page, `artifacts.yaml`: its entries, checked, and resolved against the models and sizes of a scale.

An entry names models by their role and variants, points and tasks by name or by a set. A scale says which model plays a
role (`roles`; null: none does), which variant stands in for one the model cannot have (`stand_ins`) and what the sets
hold (`sets`). So a scale's share is the same few lines however many artifacts there are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts import claims
from pipeline.artifacts.entry import FORMS, KINDS, Kind, columns
from pipeline.artifacts.entry import needs as needed
from pipeline.artifacts.inputs import FOLDERS, inputs, players, rows
from pipeline.artifacts.metrics import INPUTS, METRICS
from pipeline.config import Config
from pipeline.config.trained_on import check_untrained
from swiftkv.errors import UserError
from swiftkv.section import nearest, read, undefined

PROJECT = Path(__file__).parents[3]
MODELS = ("models", "large_models")  # the keys of entries that name roles
_SETS = ("variants", "points", "tasks")  # the sections whose members a set may name
Entry = Mapping[str, Any]


def kind_of(config: Config, name: str) -> Kind:
    """The kind of an entry."""
    return KINDS[config.artifacts[name].kind]


def names(config: Config, form: str | None = None) -> list[str]:
    """The artifacts this scale makes, in the order of the contents page; of one form, if given."""
    return [
        name
        for name in config.artifacts
        if left_out(config, name) is None and form in (None, kind_of(config, name).form)
    ]


def pattern(config: Config, form: str) -> str:
    """A regular expression for an artifact of one form, also of one that `check_made` refuses: only other forms do not match."""
    others = [re.escape(name) for name in config.artifacts if kind_of(config, name).form != form]
    return rf"(?!(?:{'|'.join(others) or '(?!)'})\.)[^/.]+"


def check_made(config: Config, name: str) -> None:
    """Raise a `UserError` where this scale does not make an artifact: it is not in the contents page, or for its reason."""
    if name not in config.artifacts:
        nearest = difflib.get_close_matches(name, config.artifacts, 1)
        raise UserError(
            f"there is no artifact {name!r}{f'; did you mean {nearest[0]!r}?' if nearest else ''} (artifacts.yaml lists all)"
        )
    if reason := left_out(config, name):
        raise UserError(f"{name} is not made at this scale: {reason} (artifacts.yaml)")


def left_out(config: Config, name: str) -> str | None:
    """Why this scale does not make an artifact; None if it does."""
    entry = config.entries[name]
    if not kind_of(config, name).make:
        return entry["reason"]
    scopes = entry.get("parts") or ([entry] if "models" in entry else [])
    if scopes and not any(players(config, scope["models"]) for scope in scopes):
        roles = ", ".join(dict.fromkeys(role for scope in scopes for role in scope["models"]))
        return f"no model of this scale plays the role {roles}"
    other = repeated(config, name)
    return other and f"{other} shows the same records"


def repeated(config: Config, name: str) -> str | None:
    """The first artifact of this scale and kind that shows all records of `name`; None if there is none.

    An entry about a model with published numbers repeats nothing: those beside its records are its own.
    """
    raw = config.entries[name]
    mine = _measured(config, raw)
    roles = [role for scope in _scopes(raw) for key in MODELS for role in scope.get(key, [])]
    if not mine or any(config.models[model["name"]].published for model in players(config, roles)):
        return None
    for earlier, other in config.entries.items():
        if earlier == name:
            break
        alike = all(other.get(key) == raw.get(key) for key in ("kind", "questions", "matrices"))
        if alike and mine <= _measured(config, other) and left_out(config, earlier) is None:
            return earlier
    return None


def resolve(config: Config, name: str) -> dict[str, Any]:
    """An entry with all it refers to filled in; the one thing besides files that an artifact is made of.

    Returns:
        The entry, with
        * name, form; label: "paper's Table 2", "blog's Figure 5" or "not in the paper";
        * models: [{name, title, published (its key in resources/paper), role}], doubles dropped;
        * cases: [[variant, KV-cache format], ...]; recipes: variant -> its training recipe;
        * specs: model -> variant -> fields of `SwiftKVSpec`, None for an unchanged model;
        * unmeasured: model -> variant -> why it cannot be measured, where that is so;
        * points: name -> the point with what all points share; tasks: name -> the task;
        * settings: measure -> what else its records are made with;
        * parts: as the entry's, each with models and cases.

    Raises:
        UserError: a variant cannot be made of a model, or the kind wants another number of models or points.
    """
    raw, kind = config.entries[name], kind_of(config, name)
    entry = {**raw, "name": name, "form": kind.form, "label": label(raw)}
    scopes = raw.get("parts") or ([raw] if "models" in raw else [])
    entry["models"] = players(config, (role for scope in scopes for key in MODELS for role in scope.get(key, [])))
    if "variants" in raw:
        entry["cases"] = cases(config, raw["variants"])
        del entry["variants"]
    if "parts" in raw:
        entry["parts"] = [
            {
                "title": part["title"],
                "models": [model["name"] for model in players(config, part["models"])],
                "cases": cases(config, part["variants"]),
            }
            for part in raw["parts"]
        ]
    # Served, scored, or both.
    ways = [True] * ("points" in raw) + [False] * ("tasks" in raw or "points" not in raw)
    entry["specs"], entry["unmeasured"] = {}, {}
    for model, variant, _ in rows(entry):
        entry["specs"].setdefault(model, {})[variant] = (spec := config.spec(model, variant)) and spec.fields
        reasons = [config.unmeasured(model, variant, served=served) for served in ways]
        if any(reasons):
            entry["unmeasured"].setdefault(model, {})[variant] = next(filter(None, reasons))
    shown = dict.fromkeys(variant for _, variant, _ in rows(entry))
    entry["recipes"] = {variant: recipe for variant in shown if (recipe := config.variants[variant].recipe)}
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
    name, kind = entry["name"], entry["kind"]
    place = f"config, at artifacts.{name}"
    if kind in ("answers", "alignment") or (kind == "table" and "early_exit" in needed(entry)):
        for variant, kv_cache in entry["cases"]:
            try:
                config.check_early_exit(variant)
            except UserError as error:
                raise UserError(f"{place}: {error}") from None
            if kv_cache != "auto":
                raise UserError(
                    f"{place}: early exit of {variant}/{kv_cache} is not measured, only with the model's own cache"
                )
        asked = config.early_exit.questions
        if unknown := [question for question in entry.get("questions", []) if question not in asked]:
            raise UserError(f"{place}: the question {unknown[0]!r} is not among early_exit.questions")
        return {"threshold": config.early_exit.threshold}
    if kind == "table":
        return {"orders": _orders(config, entry)} if "orders" in entry else {}
    if kind == "wiring":
        return {"num_hidden_layers": config.models[entry["models"][0]["name"]].num_hidden_layers}
    if kind == "similarity":
        small = {model["name"] for model in players(config, config.entries[name]["models"])}
        large = [model["name"] for model in entry["models"] if model["name"] not in small]
        reasons = {model["name"]: config.models[model["name"]].unmeasured("quality") for model in entry["models"]}
        return {"large_models": large, "unmeasured": {model: why for model, why in reasons.items() if why}}
    if kind == "contents":
        return {"lines": [_line(config, other) for other in config.artifacts]}
    if kind == "checks":
        return {"judged_on": _checked(config, entry)}
    if kind == "claims":
        return _judged(config)
    return {}


def _orders(config: Config, entry: Entry) -> list[list[str]]:
    """The orders with this scale's stand-ins, doubles dropped; refuses variants that the entry does not show."""
    shown, stand_ins = {variant for variant, _ in entry["cases"]}, config.stand_ins
    orders = [list(dict.fromkeys(stand_ins.get(name, name) for name in order)) for order in entry["orders"]]
    if unknown := [name for order in orders for name in order if name not in shown]:
        raise UserError(f"artifacts.{entry['name']}: orders name {unknown[0]!r}, which is not among its variants")
    return [order for order in orders if len(order) > 1]


def _line(config: Config, name: str) -> dict[str, Any]:
    """One line of the contents page, from the configuration alone."""
    listed, missing, form = config.entries[name], left_out(config, name), kind_of(config, name).form
    roles = dict.fromkeys(role for scope in _scopes(listed) for key in MODELS for role in scope.get(key, []))
    models: dict[str | None, list[str]] = {}  # and the roles of each
    for role in roles:
        models.setdefault(config.roles.get(role, role), []).append(role)
    played = [
        f"{'/'.join(parts)}: {config.models[model].title if model else 'none'}" for model, parts in models.items()
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


def _checked(config: Config, entry: Entry) -> dict[str, str]:
    """Return the forms of the artifacts that are checked, by name."""
    place, found = f"config, at artifacts.{entry['name']}.checks", {}
    others = [other for other in config.artifacts if other != entry["name"]]
    for name in dict.fromkeys(check["artifact"] for check in entry["checks"]):
        if name not in others:
            raise UserError(f"{place}: {undefined(name, 'artifacts', others)}")
        if reason := left_out(config, name):
            raise UserError(f"{place}: {name} is not made at this scale: {reason}")
        found[name] = kind_of(config, name).form
    return found


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
        "stand_ins": {variant: other for variant, other in config.stand_ins.items() if variant != other},
        "points": {point: config.point(point) for point in config.serving.points},
    }


def _scopes(raw: Entry) -> list[Entry]:
    """The parts of an entry as artifacts.yaml has it, or itself."""
    return raw.get("parts") or ([raw] if any(key in raw for key in MODELS) else [])


def _measured(config: Config, raw: Entry) -> set[tuple[str, ...]]:
    """The measurements that an entry shows whole: model, variant, KV-cache format, input, and point or task."""
    found: set[tuple[str, ...]] = set()
    several = {"serving": "points", "scores": "tasks"}
    for scope in _scopes(raw):
        models = players(config, [role for key in MODELS for role in scope.get(key, [])])
        shown = cases(config, scope["variants"]) if "variants" in scope else [("", "")]
        for need in set(needed(raw)) & set(INPUTS.values()):
            names = members(config, several[need], raw[several[need]]) if need in several else [""]
            found |= {(model["name"], *case, need, name) for model in models for case in shown for name in names}
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
            like = nearest(entry["kind"], KINDS)
            raise UserError(
                f"{place}: there is no kind {entry['kind']!r}{like}; the kinds are {', '.join(sorted(KINDS))}"
            )
        read(KINDS[entry["kind"]].entry, entry, place)
        if "tasks" not in entry and entry["kind"] == "table" and any(name not in METRICS for name in columns(entry)):
            raise UserError(f"{place}: columns of tasks need the key 'tasks'")
        for key, folder in FOLDERS.items():
            for stem in entry.get(key, []):
                if not any((root / folder / f"{stem}.csv").is_file() for root in (Path(), PROJECT)):
                    known = sorted(file.stem for file in (PROJECT / folder).glob("*.csv"))
                    raise UserError(f"{place}: {undefined(stem, folder, known)}")
        for scope in (entry, *entry.get("parts", [])):
            _check_scope(config, scope, place)
    for name in names(config):  # after all are known to be well-formed, as some speak of others
        resolved = resolve(config, name)
        for model in resolved["models"] if "points" in resolved else []:
            config.check_served(model["name"], f"artifacts.{name}")
        if "tasks" in resolved:
            tasks = [other for task in resolved["tasks"] for other in config.scored_together(task)]
            scored = dict.fromkeys(variant for _, variant, _ in rows(resolved))
            check_untrained(config, dict.fromkeys(tasks), scored, f"artifacts.{name}")


def _check_scope(config: Config, scope: Entry, place: str) -> None:
    for role in [role for key in MODELS for role in scope.get(key, [])]:
        if role not in config.roles and role not in config.models:
            like = nearest(role, [*config.roles, *config.models])
            raise UserError(
                f"{place}: {role!r} is neither a role nor a model{like}; roles are {', '.join(config.roles)}"
            )
    for section in _SETS:
        named = scope.get(section)
        if isinstance(named, str) and named not in getattr(config.sets, section):
            form = f"; for one of {section} write [{named}]" if named in _defined(config, section) else ""
            raise UserError(f"{place}: {undefined(named, f'sets.{section}', getattr(config.sets, section))}{form}")
        if isinstance(named, list):
            _check_names(config, section, named, place.removeprefix("config, at "))
    for variant, _ in cases(config, scope["variants"]) if "variants" in scope else []:
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
