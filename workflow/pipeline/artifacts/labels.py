"""Name variants, models and points in artifacts."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.artifacts import Content, Entry
from pipeline.artifacts.frame import MERGED
from pipeline.text import enumeration, length_label, percent
from swiftkv.spec import SwiftKVSpec

OWN_KEY_VALUES = "for prompts alone"  # where answers keep their own keys and values
PAPER_RECIPE = "distillation"  # the recipe of the paper's variants


def variant_label(spec: Content | None) -> str:
    """Name a variant in the words of the paper's Table 1, with the exact reduction of its model.

    Args:
        spec: fields of a `SwiftKVSpec`; None is the unchanged model.
    """
    if spec is None:
        return "Baseline"
    known = SwiftKVSpec(**spec)
    label = f"{percent(known.prefill_reduction)} SingleInputKV"
    if known.key_value_group_size > 1:
        label += f" + {known.key_value_group_size}× AcrossKV"
    return label + _further(spec)


def _further(spec: Content) -> str:
    ways = {"early exit": spec.get("early_exit"), OWN_KEY_VALUES: spec.get("own_key_values")}
    return "".join([heads_label(spec), *(f", {way}" for way, on in ways.items() if on)])


def heads_label(spec: Content | None) -> str:
    """Return the KV heads of the rewired layers as the end of a label; empty if they are the teacher's."""
    heads = (spec or {}).get("num_key_value_heads")
    return f", {heads} KV head{'s' if heads > 1 else ''}" if heads else ""


def skipped_label(spec: Content | None) -> str:
    """Name a variant by the layers that prompts skip; arguments as of `variant_label`."""
    if spec is None:
        return "unchanged model"
    known = SwiftKVSpec(**spec)
    total, group = known.num_hidden_layers, known.key_value_group_size
    shared = f", {group} share a cache" if group > 1 else ""
    return f"prompts skip {total - known.num_key_value_layers} of {total} layers{shared}{_further(spec)}"


def case_label(entry: Entry, variant: str, kv_cache: str = "auto") -> str:
    """Name a case of an entry if its models agree on it, else by the variant's name: in tables in the paper's words.

    The training recipe follows if it is not the paper's, or if the entry's variants have several; the variant's name follows
    if another variant would have the same label.
    """
    words = _with_recipe(entry, variant)
    others = {other for specs in entry["specs"].values() for other in specs} - {variant}
    if any(_with_recipe(entry, other) == words for other in others):
        words += f" ({variant})"
    return words + (" (FP8 KV)" if kv_cache == "fp8" else "")


def _with_recipe(entry: Entry, variant: str) -> str:
    recipe, words = entry["recipes"].get(variant), _words(entry, variant)
    if recipe not in (None, PAPER_RECIPE):
        return f"{words}, {recipe}"
    mixed = len(set(entry["recipes"].values())) > 1
    return f"{words}, paper's recipe" if recipe and mixed else words


def _words(entry: Entry, variant: str) -> str:
    if variant == MERGED:
        return "Merge-all-Layers"
    specs = [specs[variant] for specs in entry["specs"].values() if variant in specs]
    for name in (skipped_label, variant_label) if entry["form"] == "figure" else (variant_label,):
        if len(names := {name(spec) for spec in specs}) == 1:
            return names.pop()
    return "Baseline" if variant == "baseline" else variant


def point_label(entry: Entry, point: str) -> str:
    """Name a point by its memory limit if any point of the entry has one, else by its input length."""
    settings = entry["points"]
    limits = {each.get("memory_gib") for each in settings.values()}
    limit = settings[point].get("memory_gib")
    if limits != {None}:
        return "not limited" if limit is None else f"{limit:g} GB"
    return f"{length_label(settings[point]['input_tokens'])} input"


def title(entry: Entry) -> str:
    """Return the title of an entry with a capital."""
    return entry["title"][0].upper() + entry["title"][1:]


def heading(entry: Entry) -> str:
    """Return the heading of an artifact: its title with the published item that it regenerates; a table's has its models too."""
    if entry["form"] == "figure" and entry["source"] == "ours":
        return title(entry)
    models = enumeration([model["title"] for model in entry["models"]]) if entry["form"] == "table" else ""
    return f"{f'{models}: ' + entry['title'] if models else title(entry)} ({entry['label']})"


def source(entry: Entry, notes: Sequence[str]) -> str:
    """Return the published item that a figure regenerates, with the models that its notes do not name."""
    named = " ".join(notes)
    models = [model["title"] for model in entry["models"] if model["title"] not in named]
    item = "Not in the paper" if entry["source"] == "ours" else f"After the {entry['label']}"
    return "; ".join([item, *models]) + "."
