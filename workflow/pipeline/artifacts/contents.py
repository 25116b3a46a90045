"""Check the entries of `artifacts.yaml`, and resolve them against the models and sizes of a scale.

An entry names models by role, and variants, points and tasks by name or by a set. A scale defines the model of each role
(`roles`; null: there is none), the variant that replaces one the model cannot have (`stand_ins`) and the members of the
sets (`sets`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.artifacts import Content, Entry, claims
from pipeline.artifacts.entry import FORMS, KINDS, Kind, needed_inputs
from pipeline.artifacts.inputs import MEASURED, PAPER, files_of, models_of, rows
from pipeline.config import PROJECT, Config
from swiftkv.errors import UserError
from swiftkv.section import nearest, read, undefined


def kind_of(config: Config, name: str) -> Kind:
    """Return the kind of an entry."""
    return KINDS[config.artifacts[name].kind]


def names(config: Config) -> list[str]:
    """Return the artifacts that this scale makes, in the order of artifacts.yaml."""
    return [name for name in config.artifacts if left_out(config, name) is None]


def standard(config: Config) -> list[str]:
    """Return the artifacts that a run makes that names none."""
    return [name for name in names(config) if not config.entries[name].get("separate")]


def pattern(config: Config, form: str) -> str:
    """Return a regular expression that matches every name but those of artifacts of another form."""
    others = [re.escape(name) for name in config.artifacts if kind_of(config, name).form != form]
    return rf"(?!(?:{'|'.join(others) or '(?!)'})\.)[^/.]+"


def check_made(config: Config, name: str) -> None:
    """Raise a `UserError` if this scale does not make an artifact: it is not in artifacts.yaml, or left out for a reason."""
    if name not in config.artifacts:
        raise UserError(f"there is no artifact {name!r}{nearest(name, config.artifacts)}; artifacts.yaml lists all")
    if reason := left_out(config, name):
        raise UserError(f"{name} is not made at this scale: {reason} (artifacts.yaml)")


def named(config: Config, targets: Iterable[str]) -> list[str]:
    """Return the artifacts of some targets: names, sets of names, or files in any folder.

    Raises:
        UserError: this scale does not make one of them.
    """
    stems = (Path(target).stem for target in targets)
    artifacts = [name for stem in stems for name in config.sets.artifacts.get(stem, [stem])]
    for name in artifacts:
        check_made(config, name)
    return artifacts


def left_out(config: Config, name: str) -> str | None:
    """Return why this scale does not make an artifact; None if it does."""
    entry = config.entries[name]
    if not kind_of(config, name).make:
        return entry["reason"]
    if (roles := _roles(entry)) and not models_of(config, roles):
        return f"no model of this scale plays the role {', '.join(dict.fromkeys(roles))}"
    if entry["kind"] in ("alignment", "reading"):  # nothing to draw without quality
        (model, *_) = models_of(config, roles)
        if why := config.models[model["name"]].unmeasured("quality"):
            return why
    other = repeated(config, name)
    return other and f"{other} shows the same records"


def repeated(config: Config, name: str) -> str | None:
    """Return the first artifact of this scale and kind that shows all records of `name`; None if there is none.

    An entry about a model with published numbers repeats nothing, as it shows these beside its records.
    """
    raw = config.entries[name]
    records = _measured(config, raw)
    if not records or any(config.models[model["name"]].published for model in models_of(config, _roles(raw))):
        return None
    for other, entry in config.entries.items():
        if other == name:
            break
        same_kind = all(entry.get(key) == raw.get(key) for key in ("kind", "questions", "share"))
        if same_kind and records <= _measured(config, entry) and left_out(config, other) is None:
            return other
    return None


def resolve(config: Config, name: str) -> Entry:
    """Resolve an entry; with its files, it determines the artifact.

    Returns:
        The entry, with
        * name, form; label: "paper's Table 2", "blog's Figure 5" or "not in the paper";
        * models: [{name, title, published (its key in resources/paper)}], each once;
        * cases: [[variant, KV-cache format], ...]; recipes: variant -> its training recipe;
        * specs: model -> variant -> fields of `SwiftKVSpec`, None for an unchanged model;
        * unmeasured: model -> variant -> why it cannot be measured, where that is so;
        * points: name -> the point with the settings that all share; tasks: name -> the task; of an entry without, none;
        * settings: measure -> further settings of its records;
        * parts: title (None of one without parts), models and cases of each block of rows.

    Raises:
        UserError: a variant cannot be made of a model, or the kind wants another number of models or points.
    """
    raw, kind = config.entries[name], kind_of(config, name)
    entry = {**raw, "name": name, "form": kind.form, "label": item_label(raw), "models": models_of(config, _roles(raw))}
    entry["parts"] = [
        {
            "title": part["title"] if "parts" in raw else None,
            "models": [model["name"] for model in models_of(config, part["models"])],
            "cases": cases(config, part["variants"]),
        }
        for part in _parts(raw)
    ]
    entry["parts"] = _available(config, entry["parts"])
    if entry.pop("variants", None):
        entry["cases"] = entry["parts"][0]["cases"]
    scored = "tasks" in raw or "points" not in raw or "reading" in needed_inputs(raw)
    ways = [True] * ("points" in raw) + [False] * scored  # served, scored, or both
    entry |= {"specs": {}, "unmeasured": {}, "recipes": {}}
    for model, variant, _ in rows(entry):
        spec, recipe = config.spec(model, variant), config.variants[variant].recipe
        entry["specs"].setdefault(model, {})[variant] = spec and spec.fields
        if why := next(filter(None, (config.unmeasured(model, variant, served=served) for served in ways)), None):
            entry["unmeasured"].setdefault(model, {})[variant] = why
        if recipe:
            entry["recipes"][variant] = recipe
    points, tasks = (members(config, section, raw.get(section, [])) for section in ("points", "tasks"))
    entry["points"] = {point: config.point(point) for point in points}
    entry["tasks"] = {task: config.tasks[task].model_dump(exclude_unset=True) for task in tasks}
    entry |= _further(config, entry)
    shared = {key: getattr(config, key).model_dump() for key in ("fidelity", "similarity", "early_exit", "reading")}
    entry["settings"] = {**shared, "score": {"seed": config.scoring.seed}} if entry["models"] else {}
    for key, number in kind.exactly.items():
        if len(entry[key]) != number:
            raise UserError(
                f"artifacts.{name}: kind {raw['kind']} shows {number} of {key}, but here it has {len(entry[key])}"
            )
    return entry


def _further(config: Config, entry: Entry) -> Content:
    """Return further parts of the configuration that entries of some kinds show; raises a `UserError` for impossible ones."""
    kind, name = entry["kind"], entry["name"]
    if "early_exit" in needed_inputs(entry):
        for variant, _ in entry["cases"]:
            config.check_early_exit(variant)
        for question in entry.get("questions", []):
            if question not in config.early_exit.questions:
                raise UserError(f"artifacts.{name}: the question {question!r} is not among early_exit.questions")
    if kind in ("wiring", "headline"):
        return {"num_hidden_layers": config.models[entry["models"][0]["name"]].num_hidden_layers}
    if kind == "curves":
        return {"published_models": models_of(config, entry.get("published_models", []))}
    if kind == "contents":
        return {"lines": [_line(config, other) for other in config.artifacts]}
    return _judged_on(config) if kind == "claims" else {}


def _line(config: Config, name: str) -> Content:
    """Return one line of the contents page."""
    listed, missing, form = config.entries[name], left_out(config, name), kind_of(config, name).form
    roles: dict[str | None, dict[str, None]] = {}  # by model
    for role in _roles(listed):
        roles.setdefault(config.roles.get(role, role), {})[role] = None
    models = [f"{'/'.join(roles[model])}: {config.models[model].title if model else 'none'}" for model in roles]
    return {
        "name": name,
        "item": item_label(listed),
        **{key: listed[key] for key in ("title", "section", "kind")},
        "models": ", ".join(models) or None,
        "made": missing is None,
        "files": None if missing else f"{form}s/{name}.{{{','.join(FORMS[form])}}}",
        "reason": missing,
    }


def _judged_on(config: Config) -> Content:
    """Return the artifacts, models, points, chance levels and stand-ins that claims are judged on."""
    shown_by = {name: repeated(config, name) or name for name in claims.ARTIFACTS if name in config.artifacts}
    absent = {name: reason for name, other in shown_by.items() if (reason := left_out(config, other)) is not None}
    return {
        "judged_on": {other: kind_of(config, other).form for name, other in shown_by.items() if name not in absent},
        "shown_by": shown_by,
        "absent": absent,
        "roles": {role: next(iter(models_of(config, [role])), None) for role in config.roles},
        "points": {point: config.point(point) for point in config.serving.points},
        "stand_ins": {variant: other for variant, other in config.stand_ins.items() if variant != other},
        "chances": {name: task.chance for name, task in config.tasks.items() if task.chance is not None},
    }


def _parts(raw: Entry) -> list[Entry]:
    """Return the parts of an unresolved entry, or the entry as the only one; none if it has no models."""
    return raw.get("parts") or ([raw] if "models" in raw else [])


def _roles(raw: Entry) -> list[str]:
    return [role for part in _parts(raw) for role in part["models"]]


def _measured(config: Config, raw: Entry) -> set[tuple[str, ...]]:
    """Return the measurements that an entry shows whole: model, variant, KV-cache format, input, and point or task."""
    measured = set()
    for part in _parts(raw):
        models = [model["name"] for model in models_of(config, part["models"])]
        measured |= set(itertools.product(models, raw.get("families", ())))
        for need in set(needed_inputs(raw)) & MEASURED.keys():
            key = MEASURED[need][1]
            names = members(config, f"{key}s", raw[f"{key}s"]) if key else [""]
            shown = itertools.product(models, cases(config, part["variants"]), names)
            measured |= {(model, *case, need, name) for model, case, name in shown}
    return measured


def input_files(config: Config, name: str) -> dict[str, list[str]]:
    """Return the input files of an artifact by input; published numbers under "published"."""
    entry = resolve(config, name)
    files = {need: list(dict.fromkeys(files_of(config, entry, need))) for need in needed_inputs(entry)}
    published = [f"{PAPER}/{stem}.csv" for stem in entry.get("published", [])]
    return files | ({"published": published} if published else {})


def item_label(entry: Entry) -> str:
    """Return the name of the published item that an artifact regenerates, for titles."""
    return "not in the paper" if entry["source"] == "ours" else f"{entry['source']}'s {entry['item']}"


def members(config: Config, section: str, listed: str | list[str]) -> list[str]:
    """Return the members of a set given by its name, or of a list."""
    return list(getattr(config.sets, section)[listed] if isinstance(listed, str) else listed)


def cases(config: Config, listed: str | list[str]) -> list[list[str]]:
    """Return [variant, KV-cache format] of a list or set of variants, replaced by this scale's stand-ins, each once."""
    stand_ins, shown = config.stand_ins, []
    for item in members(config, "variants", listed):
        variant, _, kv_cache = stand_ins.get(item, item).partition("/")
        shown.append((stand_ins.get(variant, variant), kv_cache or "auto"))
    return [list(case) for case in dict.fromkeys(shown)]


def _available(config: Config, parts: list[Content]) -> list[Content]:
    """Leave out variants that are read from checkpoints which a part's models lack, unless nothing else would be left."""
    fetched = {name for name, variant in config.variants.items() if variant.rewired and not variant.recipe}
    shown = []
    for part in parts:
        known = set.intersection(fetched, *(config.models[model].checkpoints.keys() for model in part["models"]))
        shown.append(part | {"cases": [case for case in part["cases"] if case[0] not in fetched - known]})
    return [part for part in shown if part["cases"]] or parts


def check_artifacts(config: Config) -> None:
    """Raise a `UserError` for the first mistake in artifacts.yaml or in the names of a scale; it names the place."""
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
    published = {file.stem for root in (Path(), PROJECT) for file in (root / PAPER).glob("*.csv")}
    for name, entry in config.entries.items():
        place = f"config, at artifacts.{name}"
        if entry["kind"] not in KINDS:
            raise UserError(f"{place}: {undefined(entry['kind'], 'the kinds', sorted(KINDS))}")
        read(KINDS[entry["kind"]].entry, entry, place)
        for stem in entry.get("published", []):
            if stem not in published:
                raise UserError(f"{place}: {undefined(stem, PAPER, sorted(published))}")
        for part in (entry, *entry.get("parts", [])):
            _check_part(config, part, place)
    for name in names(config):  # some refer to others, so after all are well-formed
        resolved = resolve(config, name)
        for model in resolved["models"] if resolved["points"] else []:
            config.check_served(model["name"], f"artifacts.{name}")


def _check_part(config: Config, part: Entry, place: str) -> None:
    for role in [*part.get("models", []), *part.get("published_models", [])]:
        if role not in (known := {**config.roles, **config.models}):
            like = nearest(role, known)
            raise UserError(
                f"{place}: {role!r} is neither a role nor a model{like}; roles are {', '.join(config.roles)}"
            )
    for section in ("variants", "points", "tasks"):
        listed, sets = part.get(section), getattr(config.sets, section)
        if isinstance(listed, str) and listed not in sets:
            form = f"; for one of {section} write [{listed}]" if listed in _defined(config, section) else ""
            raise UserError(f"{place}: {undefined(listed, f'sets.{section}', sets)}{form}")
        if isinstance(listed, list):
            _check_names(config, section, listed, place.removeprefix("config, at "))
    for variant, _ in cases(config, part.get("variants", [])):
        if config.variants[variant].merge_all_layers and ("points" not in part or "tasks" in part):
            raise UserError(f"{place}: variant {variant!r} can only be served, so it needs points and has no quality")


def _defined(config: Config, section: str) -> Content:
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
