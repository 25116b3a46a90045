"""Closeness of answers by what their prompts cost: SwiftKV for every l beside methods that need no training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from swiftkv.artifacts.drawing import PAGE, Drawing, headline, legend, line_entry, line_style, new_figure, wide_axis
from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files
from swiftkv.artifacts.records import read_records
from swiftkv.artifacts.text import heading
from swiftkv.cost import kv_bytes_per_token, prefill_flops
from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.section import Positive, Whole
from swiftkv.spec import SwiftKVSpec

LABELS = {
    "copied": "SwiftKV, copied",
    "fitted": "SwiftKV, fitted",
    "trained": "SwiftKV, trained",
    "own": "SwiftKV, fitted, for prompts alone",
    "trained own": "SwiftKV, trained, for prompts alone",
    "projected": "projections of each layer on $h_l$ (after POP)",
    "template": "keys and values of the bare template",
    "unseen": "no keys and values (after SPEED)",
    "zeros": "keys and values of zeros",
    "dropped": "layers from l on left out",
    "sibling": "a smaller model",
}
GRAYS = {"zeros": "0.3", "unseen": "0.5", "dropped": "0.7", "sibling": "0"}  # there are more curves than colors
ABSENT = ("template", "unseen", "dropped")  # nothing of the prompt has keys and values from layer l on
AXES = {
    "prompt_percent": "FLOPs of a prompt, % of the baseline's",
    "cache_percent": "KV cache a token of it, % of the baseline's",
}
MEASURES = {"kl": "KL to the teacher, nats a token", "bits_per_byte": "Bits a byte"}


def make(entry: Entry, files: Files) -> Drawing:
    """KL and bits per byte of the answers over a prompt's FLOPs and its KV cache, and the point that a budget chooses."""
    (record,) = read_records(entry, files["family"], "family")
    if not record.ok:
        raise UserError(f"{entry['name']} has nothing to draw: {record.why}")
    data = members(record.result, Dimensions.from_config(read_json(files["dimensions"][0])["config"]), entry)
    chosen, result = choose(data, entry["budget"]), record.result
    data["chosen"] = data.index == (None if chosen is None else chosen.name)
    text = f"{result['tokens']:,} tokens of the last answers of {result['documents']} held-out chats"
    notes = [
        *entry.get("notes", []),
        f"{text}; bars: standard errors over chats. FLOPs and caches of a prompt of {entry['prompt_tokens']:,} tokens.",
        "Answers and the prompt's last token run all layers. Methods that are not SwiftKV leave the model as it is and are "
        "written from their descriptions.",
        sentence(entry["budget"], chosen, result["num_hidden_layers"]),
    ]
    figure = new_figure(PAGE, 5.2, notes)
    headline(figure, heading(entry))
    grid, handles = figure.subplots(2, 2, sharex="col", sharey="row"), []
    for number, (member, label) in enumerate(LABELS.items()):
        curve, style = data[data["member"] == member], line_style(number)
        style |= {"color": GRAYS.get(member, style["color"])}
        if curve.empty:
            continue
        if member.startswith(("trained", "sibling")):
            style |= {"linestyle": "", "markersize": 7}
        for row, measure in zip(grid, MEASURES, strict=True):
            for axis, across in zip(row, AXES, strict=True):
                for size, some in curve.groupby("key_value_group_size"):
                    look = style | ({"marker": "*"} if size > 1 else {})
                    axis.errorbar(some[across], some[measure], yerr=some[f"{measure}_stderr"].fillna(0), **look)
        named = f" ({', '.join(curve['variant'])})" if member == "sibling" else ""
        handles.append(line_entry(label + named, **style))
    handles.append(line_entry("with AcrossKV", color="black", marker="*", linestyle=""))
    for row, (measure, title) in zip(grid, MEASURES.items(), strict=True):
        row[0].set_ylabel(title)
        wide_axis(row[0].yaxis, data.loc[data[measure] > 0, measure])
        for axis, across in zip(row, AXES, strict=True):
            axis.axhline(data.loc[data["member"] == "baseline", measure].iloc[0], color="0.4", linewidth=0.8)
            axis.grid(axis="y", color="0.9", linewidth=0.6)
            axis.set_axisbelow(True)
            if chosen is not None:
                axis.plot(
                    chosen[across], chosen[measure], marker="o", markersize=11, markerfacecolor="none", color="black"
                )
    for axis, title in zip(grid[-1], AXES.values(), strict=True):
        axis.set_xlabel(title)
    legend(figure, handles, [], notes)
    return Drawing(figure, data)


def members(result: Mapping[str, Any], dimensions: Dimensions, entry: Entry) -> pd.DataFrame:
    """One row a member and l: what its prompts cost, in percent of the baseline's, and how close its answers are."""
    tokens, depth = entry["prompt_tokens"], result["num_hidden_layers"]
    whole = sum(prefill_flops(dimensions, None, tokens).values()), kv_bytes_per_token(dimensions, None)
    rows = []
    for found in result["members"]:
        layer, size = found["num_key_value_layers"], found["key_value_group_size"]
        own = dimensions if "config" not in found else Dimensions.from_config(found["config"])
        spec = None if own is not dimensions else SwiftKVSpec(depth, layer, size)
        cost = [sum(prefill_flops(own, spec, tokens).values()), kv_bytes_per_token(own, spec)]
        if found["member"] in ABSENT:
            cost[0] -= 2 * tokens * (depth - layer) * sum(dimensions.key_value_weights())
            cost[1] = cost[1] * layer // depth
        bits, error = (
            result["tokens"] / (result["bytes"] * math.log(2)) * factor
            for factor in (
                math.log(found["perplexity"]["value"]),
                (found["perplexity"]["stderr"] or math.nan) / found["perplexity"]["value"],
            )
        )
        rows.append(
            {
                "member": found["member"] + (" own" if found["variant"] in entry["own"] else ""),
                "variant": found["variant"],
                "num_key_value_layers": layer,
                "key_value_group_size": size,
                **{axis: 100 * part / all_ for axis, part, all_ in zip(AXES, cost, whole, strict=True)},
                "kl": found["kl"]["value"],
                "kl_stderr": found["kl"]["stderr"],
                "top1_agreement": 100 * found["top1_agreement"]["value"],
                "bits_per_byte": bits,
                "bits_per_byte_stderr": error,
            }
        )
    return pd.DataFrame(rows).astype({"kl_stderr": float})


def choose(data: pd.DataFrame, budget: Mapping[str, float]) -> pd.Series | None:
    """Of SwiftKV before training for prompts alone: the cheapest prompt within a KL, or the least KL within a cost; or None."""
    (measure, limit), own = next(iter(budget.items())), data[data["member"] == "own"]
    within = own[own[measure] <= limit].sort_values("prompt_percent" if measure == "kl" else "kl")
    return None if within.empty else within.iloc[0]


def sentence(budget: Mapping[str, float], chosen: pd.Series | None, depth: int) -> str:
    """What the budget recommends."""
    ((measure, limit),) = budget.items()
    said = f"{limit:g} nats a token" if measure == "kl" else f"{limit:g} % of a prompt's FLOPs"
    if chosen is None:
        return f"Budget of {said}: no l measured stays within it."
    return (
        f"Budget of {said}: l = {chosen['num_key_value_layers']} of {depth} (circle), KL {chosen['kl']:.3f} with "
        f"{chosen['prompt_percent']:.0f} % of a prompt's FLOPs."
    )


def _own(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Trained variants whose answers keep their own keys and values."""
    return {"own": [name for name in config.family_variants if config.variants[name].own_key_values]}


KIND = ArtifactKind(
    "figure",
    ("models",),
    ("family", "dimensions"),
    make,
    own={"budget": dict[Literal["kl", "prompt_percent"], Positive], "prompt_tokens": Whole},
    exactly={"models": 1},
    extra=_own,
    scored=True,
)
