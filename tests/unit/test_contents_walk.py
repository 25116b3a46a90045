"""Every entry of the contents page is made, from made-up measurements of all it needs, at smoke and at paper scale."""

import json
from pathlib import Path

import pytest

from swiftkv import config as cfg
from swiftkv import points
from swiftkv.artifacts import contents
from swiftkv.artifacts.make import make
from swiftkv.records import describe_spec, write_json
from tests.unit.artifact_helpers import CPU, H100, ROOT, scale
from tests.unit.serving_helpers import good, latencies, speed

FORMS = {"table": ("csv", "tex", "md", "html"), "figure": ("pdf", "png", "csv")}


def record(config, measure, model, variant, kv_cache, settings, result, **more):
    """A measurement of this scale's configuration."""
    spec = cfg.spec(config, model, variant)
    gpus = config["models"][model]["gpus"]["score"]
    return {
        "measure": measure,
        "model": {"name": model, "title": config["models"][model]["title"], "kind": "hub", "id": model,
                  "revision": "1", "resolved": "1"},
        "variant": variant,
        "kv_cache": kv_cache,
        "weights": "trained" if config["variants"][variant].get("recipe") else "original",
        "spec": describe_spec(spec, 8),
        "status": "ok",
        "reason": None,
        "settings": settings,
        "result": result,
        **more,
        "provenance": {"finished": "2026-01-01T00:00:00+00:00", "wall_seconds": 1.0, "git_commit": None,
                       "git_dirty": None, "python": "3", "libraries": {}, "hardware": H100 if gpus else CPU},
    }  # fmt: skip


def score(config, model, variant, kv_cache, task):
    settings = {
        "task": task, "lm_eval_task": config["tasks"][task]["task"], "metric": config["tasks"][task]["metric"],
        "shots": config["tasks"][task]["shots"], "seed": 42, "filter": "none", "version": 1, "limit": None,
        "output_type": "multiple_choice", "chat_template": False, "fewshot_as_multiturn": False, "fewshot": "none",
        "generation": None,
    }  # fmt: skip
    questions = {"sha256": task, "values": [0.0, 1.0] * 50}
    result = {"value": 0.5, "stderr": 0.02, "n": 100, "n_total": 1000, "questions": questions}
    return record(config, "score", model, variant, kv_cache, settings, result, data={"kind": "package", "id": "x"})


def fidelity(config, model, variant, kv_cache):
    def number(value):
        return {"value": value, "stderr": 0.01 * value, "n": 50}

    close = {"kl": number(0.5), "top1_agreement": number(0.7), "perplexity": number(20.0)}
    start = None if cfg.spec(config, model, variant) is None else close
    result = {**close, "start": start, "tokens": 1000, "documents": 50}
    return record(config, "fidelity", model, variant, kv_cache, {"seed": 42}, result)


def similarity(config, model):
    layers = config["models"][model]["num_hidden_layers"]
    pairwise = [[1 - abs(first - second) / layers for second in range(layers)] for first in range(layers)]
    result = {"simscore": [0.3 + 0.6 * layer / layers for layer in range(layers - 1)], "pairwise": pairwise,
              "tokens": 1000, "documents": 50, "num_hidden_layers": layers}  # fmt: skip
    return record(config, "similarity", model, "baseline", "auto", {"seed": 42}, result)


def starts(config, model):
    total = config["models"][model]["num_hidden_layers"]

    def close(kl):
        numbers = {"kl": kl, "top1_agreement": 0.7, "perplexity": 20.0}
        return {name: {"value": value, "stderr": 0.01 * value, "n": 50} for name, value in numbers.items()}

    layers = [
        {
            "num_key_value_layers": layer,
            "prefill_reduction": 1 - layer / total,
            "copied": close(8 / layer),
            "fitted": close(1 / layer),
        }
        for layer in cfg.candidate_layers(config, model)
    ]
    result = {"layers": layers, "num_hidden_layers": total, "fit_tokens": 1000, "tokens": 1000, "documents": 50}
    return record(config, "starts", model, "baseline", "auto", {"seed": 42}, result)


def training(config, model, variant):
    gpus = config["models"][model]["gpus"]["distill"]
    result = {"seconds": 3600.0, "hours": 1.0, "tokens": 10**6, "steps": 50, "loss_first": 2.0, "loss_last": 1.0,
              "tokens_per_second": 300.0, "tokens_per_second_per_gpu": 300.0 / gpus if gpus else None, "gpus": gpus,
              "accelerator": None, "attention": "sdpa"}  # fmt: skip
    settings = cfg.recipe(config, model, config["variants"][variant]["recipe"])
    return record(config, "training", model, variant, "auto", settings, result)


def early_exit(config, model, variant):
    settings = config["early_exit"]

    def number(value):
        return {"value": value, "stderr": 0.01, "n": 50}

    count = settings["bins"]
    bins = [
        {"confidence_from": place / count, "confidence_to": (place + 1) / count, "positions": 10 * place,
         "agreement": number(place / count) if place else None}
        for place in range(count)
    ]  # fmt: skip
    run = {"tokens": 3, "exited": 1, "prefill_seconds": 0.1, "decode_seconds": 0.2, "text": "1. Red\n2. Blue & 100 %"}
    result = {
        "alignment": {"all": {"positions": sum(part["positions"] for part in bins), "agreement": number(0.5)},
                      "above_threshold": {"positions": 10 * (count - 1), "agreement": number(0.9)},
                      "bins": bins, "documents": 50},
        "decoding": {"exited": number(0.4), "time_ratio": number(0.8), "equal_tokens": number(0.5),
                     "seconds_per_token": {"early_exit": 0.01, "full_depth": 0.02}, "prompts": 8},
        "answers": [
            {"question": text, "prompt_tokens": 9, "equal_tokens": 2, "early_exit": run, "full_depth": run | {"exited": 0}}
            for text in settings["questions"]
        ],
    }  # fmt: skip
    return record(config, "early_exit", model, variant, "auto", settings, result)


def serving(config, point, model, variant, kv_cache):
    asked = points.point(config, point)
    settings = {
        "point": point, "merge_all_layers": variant == "merge-all-layers", "dtype": "bfloat16", "num_prompts": 10,
        "max_num_batched_tokens": asked["engine"]["max_num_batched_tokens"], "max_num_seqs": 256, "seed": 0,
        "enforce_eager": True, "tensor_parallel_size": max(1, config["models"][model]["gpus"]["serve"]),
        "memory_gib": asked.get("memory_gib"), "quantization": config["models"][model].get("quantization"),
        "speculative": asked.get("speculative"), "input_tokens": asked.get("input_tokens"),
        "output_tokens": asked["output_tokens"], "dataset": asked.get("dataset"), "threads": 2,
    }  # fmt: skip
    result = {
        "throughput": lambda: speed(1000.0),
        "latency": lambda: latencies(10.0),
        "goodput": lambda: {"workloads": {name: good(10.0) for name in asked["workloads"]}},
        "forward_time": lambda: {
            "batch_tokens": asked["batch_tokens"], "repeats": 2, "what": "one step",
            "seconds": {name: [0.01 * tokens for tokens in asked["batch_tokens"]] for name in ("median", "min")},
        },
        "kv_capacity": lambda: {"kv_cache_tokens": 1000, "kv_cache_bytes": 10**6},
        "decode": lambda: {
            "batch_sizes": asked["batch_sizes"], "samples_ms": [[1.0, 2.0] for _ in asked["batch_sizes"]],
            "tpot_ms": {name: [1.5 for _ in asked["batch_sizes"]] for name in ("median", "min", "max")},
        },
    }[asked["measure"]]()  # fmt: skip
    engine = {"vllm": "0.32.0", "attention_backend": "X", "compilation": "eager", "kv_cache_tokens": 1000,
              "plugin": "swiftkv"}  # fmt: skip
    cost = {"request_speedup_limit": 1.5, "prefill_speedup_limit": 1.9, "capacity_limit": 1.3}
    return record(
        config, asked["measure"], model, variant, kv_cache, settings, result, engine=engine, cost=cost
    )  # fmt: skip


MAKERS = {
    "scores": score,
    "fidelity": fidelity,
    "similarity": similarity,
    "starts": starts,
    "training": training,
    "early_exit": early_exit,
    "serving": serving,
}


def provide(config, path):
    """Make up the measurement file that a kind asks for; another artifact's CSV is there already."""
    where = Path(path).relative_to(config["pathvars"]["results"]).with_suffix("").parts
    if where[0] in MAKERS:
        write_json(path, MAKERS[where[0]](config, *where[1:]))
    elif where[0] == "models":
        dimensions = json.loads((ROOT / "resources/architectures/llama-3.1-8b.json").read_text())["config"]
        layers = config["models"][where[1]]["num_hidden_layers"]
        write_json(path, {"name": where[1], "config": dimensions | {"num_hidden_layers": layers}})
    else:
        assert where[0] in ("tables", "figures") and Path(path).exists(), path


@pytest.mark.parametrize("name", ["smoke", ""], ids=["smoke", "paper"])
def test_every_entry_is_made(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = scale(name)
    config["pathvars"] = {key: str(tmp_path / key) for key in config["pathvars"]}
    contents.check(config)
    results = Path(config["pathvars"]["results"])
    made = contents.names(config)
    assert len(made) > 35
    for artifact in [each for each in made if each != "claims"] + ["claims"]:  # it reads the others
        entry = json.loads(json.dumps(contents.resolve(config, artifact)))
        needed = contents.needs(config, artifact)
        for path in (path for paths in needed.values() for path in paths if not path.startswith("resources/")):
            if not Path(path).exists():
                provide(config, path)
        outputs = {form: results / f"{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]}
        make(entry, {key: [Path(path) for path in paths] for key, paths in needed.items()}, outputs)
        for path in outputs.values():
            assert path.stat().st_size > 0, path
        if entry["form"] == "table":
            text = outputs["md"].read_text()
            for model in entry["models"]:
                assert model["title"] in text, (artifact, model["title"])
