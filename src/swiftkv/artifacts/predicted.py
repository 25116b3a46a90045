"""What the model of time predicts of serving points, as records: drawn like measured ones, in artifacts of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swiftkv.artifacts.inputs import dimensions_of
from swiftkv.artifacts.kind import Config, Entry, Files
from swiftkv.artifacts.records import Record, Records
from swiftkv.artifacts.serving import Serving, ratio
from swiftkv.cost import parameter_count, speedup_limits
from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.measure.kind import Numbers
from swiftkv.measure.point import Point
from swiftkv.measure.run import KINDS
from swiftkv.predict.device import Device
from swiftkv.predict.engine import Limits, roofline_speedup
from swiftkv.predict.memory import cache_tokens
from swiftkv.predict.step import Served
from swiftkv.records import describe_spec, read_json
from swiftkv.spec import SwiftKVSpec


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """What each model is served on at this scale, and which variants keep one layer's cache."""

    def on(name: str) -> dict[str, Any]:
        model = config.models[name]
        planning, gpus = config.planning, model.gpus.serve or 0
        device = (planning.gpu if gpus else planning.cpu).device
        path = dimensions_of(config, name)
        return {"device": device, "gpus": gpus, "fp8": model.quantization == "fp8", "dimensions": path}

    merged = [variant for variant, _ in entry["cases"] if config.variants[variant].merge_all_layers]
    return {"served_on": {model["name"]: on(model["name"]) for model in entry["models"]}, "merged": merged}


def read_predicted(
    entry: Entry,
    files: Files,
    measure: str,
    numbers: Callable[[Served, Limits, Point, Mapping[str, Any]], Numbers | None],
) -> Serving:
    """An entry with records of what is predicted of its cells.

    Args:
        files: "dimensions" of its models and "devices" that they are served on.
        measure: the kind of all its points.
        numbers: the result of a point from what is served, the engine, the point and the model's config.json; None where one
            request does not fit.

    Raises:
        UserError: a point of another kind, or a file that is missing or damaged.
    """
    records: dict[tuple[str, str, str, str], Record] = {}
    for model in entry["models"]:
        on = entry["served_on"][model["name"]]
        config = read_json(_file(files["dimensions"], on["dimensions"]))["config"]
        device = Device.read(_file(files["devices"], f"{on['device']}.json"))
        for name, asked in entry["points"].items():
            if asked["measure"] != measure:
                raise UserError(f"{entry['name']} predicts {measure} points, but {name} is a {asked['measure']} one")
            point = Point.read(name, asked, gpus=on["gpus"], threads=device.cores)
            engine, kind = point.engine, KINDS[measure]
            settings = {"point": name, "tensor_parallel_size": point.tensor_parallel_size}
            lengths, waiting = kind.lengths(point), kind.waiting(point)
            for variant, kv_cache in entry["cases"]:
                fields = entry["specs"][model["name"]][variant]
                spec = None if fields is None else SwiftKVSpec(**fields)
                arch, merged = Dimensions.from_config(config), variant in entry["merged"]
                served = Served(arch, spec, device, point.gpus or point.threads, on["fp8"], kv_cache == "fp8", merged)
                cache = cache_tokens(served, parameter_count(config, spec), engine, point.settings.memory_gib)
                limits = Limits(engine["max_num_batched_tokens"], engine["max_num_seqs"], cache)
                found = numbers(served, limits, point, config)
                records[model["name"], variant, kv_cache, name] = Record(
                    measure,
                    model,
                    variant,
                    kv_cache,
                    "oom" if found is None else "ok",
                    "by the model the KV cache does not hold one request" if found is None else None,
                    spec=describe_spec(spec, arch.num_key_value_heads),
                    settings=settings | {"merge_all_layers": merged},
                    result=found or {},
                    engine={"compilation": "eager" if engine["enforce_eager"] else "compiled"},
                    cost={
                        "request_speedup_limit": speedup_limits(arch, spec, *lengths)["request_speedup"],
                        "roofline_speedup_limit": roofline_speedup(served, limits, *lengths, waiting),
                    },
                    provenance={"hardware": _hardware(device, point.gpus)},
                )
    shown = {**entry, "notes": notes(entry)}
    return Serving(shown, Records(measure, records, entry.get("unmeasured", {})), predicted=True)


def notes(entry: Entry, *, measured: bool = False) -> list[str]:
    """What every artifact with predictions says below it.

    Args:
        measured: whether it also shows what was measured.
    """
    devices = sorted({on["device"] for on in entry["served_on"].values()})
    files = ", ".join(f"resources/devices/{name}.json" for name in devices)
    return [
        f"{'Predicted' if measured else 'Nothing here was measured'}: FLOPs, bytes and all-reduces of every engine step "
        f"(swiftkv.predict), with the constants of {files}, fitted on baselines alone. The table prediction says how far off "
        "they are.",
        *entry.get("notes", []),
    ]


def error_percent(value: float | None, expected: float | None) -> float | None:
    """How far a number is off, in percent of what it should be; None where one of both is missing."""
    share = ratio(value, expected)
    return None if share is None else 100 * (share - 1)


def _file(files: list[Path], path: str) -> Path:
    """The one of these files that is `path`, wherever the folder of the project is."""
    return next(file for file in files if str(file).endswith(path))


def _hardware(device: Device, gpus: int) -> dict[str, Any]:
    if gpus:
        return {"gpus": [device.name] * gpus}
    return {"processor": device.name, "cores": device.cores, "gpus": []}
