"""Every entry of the contents page is made of made-up measurements, at smoke and at paper scale; of other settings none is."""

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from snakemake.utils import update_config
from tests.unit import artifact_helpers as helpers
from tests.unit.artifact_helpers import ROOT, scale, typed
from tests.unit.serving_helpers import latencies, speed

from pipeline.artifacts import contents
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.records import check_settings
from pipeline.config.points import POINTS
from pipeline.measure import run
from pipeline.measure.point import Point
from swiftkv.errors import UserError
from swiftkv.io import write_json

FORMS = {"table": ("csv", "tex", "md", "html", "json"), "figure": ("pdf", "png", "csv", "json")}


def record(config, measure, model, variant, kv_cache, settings, result, **more):
    return helpers.record(measure, model, variant, result, kv_cache=kv_cache, settings=settings, config=config, **more)


def score(config, model, variant, kv_cache, task):
    asked = config["tasks"][task]
    names = ("metric", "filter", "shots", "limit", "chat_template", "fewshot_as_multiturn")
    settings = {key: asked[key] for key in names} | {"lm_eval_task": asked["task"]}
    questions = [0.0, 1.0] * 50
    return helpers.score(model, variant, task, 0.5, kv_cache=kv_cache, questions=questions, config=config, **settings)


def fidelity(config, model, variant, kv_cache):
    return helpers.closeness(model, variant, 0.5, kv_cache=kv_cache, config=config)


def similarity(config, model):
    layers = config["models"][model]["num_hidden_layers"]
    pairwise = [[1 - abs(first - second) / layers for second in range(layers)] for first in range(layers)]
    result = {"simscore": [0.3 + 0.6 * layer / layers for layer in range(layers - 1)], "pairwise": pairwise,
              "tokens": 1000, "documents": 50, "num_hidden_layers": layers}  # fmt: skip
    return record(config, "similarity", model, "baseline", "auto", {"seed": 42}, result)


def training(config, model, variant):
    gpus = config["models"][model]["gpus"]["distill"]
    result = {"seconds": 3600.0, "hours": 1.0, "tokens": 10**6, "steps": 50, "loss_first": 2.0, "loss_last": 1.0,
              "tokens_per_second": 300.0, "tokens_per_second_per_gpu": 300.0 / gpus if gpus else None, "gpus": gpus,
              "accelerator": None, "attention": "sdpa"}  # fmt: skip
    settings = config["recipes"][config["variants"][variant]["recipe"]] | {
        "zero_stage": config["models"][model]["zero_stage"]
    }
    return record(config, "training", model, variant, "auto", settings, result)


def early_exit(config, model, variant):
    settings = config["early_exit"]

    def number(value):
        return {"value": value, "stderr": 0.01, "n": 50}

    count = settings["bins"]
    bins = [
        {
            "confidence_from": place / count,
            "confidence_to": (place + 1) / count,
            "positions": 10 * place,
            "agreement": number(place / count) if place else None,
        }
        for place in range(count)
    ]
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
    asked, gpus = typed(config).point(point), config["models"][model]["gpus"]["serve"]
    settings = {
        "point": point,
        "merge_all_layers": variant == "merge-all-layers",
        "tensor_parallel_size": max(1, gpus),
        "quantization": config["models"][model].get("quantization"),
        "threads": 2,
        **run.asked(Point.read(point, asked, gpus=gpus, threads=2)),
    }
    result = {
        "throughput": lambda: speed(1000.0),
        "latency": lambda: latencies(10.0),
        "forward_time": lambda: {
            "batch_tokens": asked["batch_tokens"],
            "repeats": 2,
            "what": "one step",
            "seconds": {name: [0.01 * tokens for tokens in asked["batch_tokens"]] for name in ("median", "min")},
        },
        "kv_capacity": lambda: {"kv_cache_tokens": 1000, "kv_cache_bytes": 10**6},
        "decode": lambda: {
            "batch_sizes": asked["batch_sizes"],
            "samples_ms": [[1.0, 2.0] for _ in asked["batch_sizes"]],
            "tpot_ms": {name: [1.5 for _ in asked["batch_sizes"]] for name in ("median", "min", "max")},
        },
    }[asked["measure"]]()
    engine = {"vllm": "0.32.0", "attention_backend": "X", "compilation": "eager", "kv_cache_tokens": 1000,
              "plugin": "swiftkv"}  # fmt: skip
    cost = {"request_speedup_limit": 1.5, "prefill_speedup_limit": 1.9, "capacity_limit": 1.3}
    return record(config, asked["measure"], model, variant, kv_cache, settings, result, engine=engine, cost=cost)


MAKERS = {
    "scores": score,
    "fidelity": fidelity,
    "similarity": similarity,
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
    if not name:  # its figures are drawn, but not written: at smoke scale the same kinds are
        monkeypatch.setattr(Figure, "savefig", lambda figure, place, **_: Path(place).write_text("drawn"))
    whole = scale(name)
    whole["pathvars"] = {key: str(tmp_path / key) for key in whole["pathvars"]}
    config, results = typed(whole), tmp_path / "results"
    contents.check(config)
    made = contents.names(config)
    assert len(made) >= 35
    for artifact in [each for each in made if each != "claims"] + ["claims"]:  # it reads the others
        entry = json.loads(json.dumps(contents.resolve(config, artifact)))
        needed = contents.needs(config, artifact)
        for path in (path for paths in needed.values() for path in paths if not path.startswith("resources/")):
            if not Path(path).exists():
                provide(whole, path)
        outputs = {form: results / f"{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]}
        make_artifact(entry, needed, list(outputs.values()))
        for path in outputs.values():
            assert path.stat().st_size > 0, path
        if entry["form"] == "table":
            text = outputs["md"].read_text()
            for model in entry["models"]:
                assert model["title"] in text, (artifact, model["title"])


@pytest.mark.parametrize(
    ("artifact", "change", "key", "recorded", "shown"),
    [
        ("figure3", {"serving": {"points": {"batch-2k": {"input_tokens": 64}}}}, "input_tokens", "128", "64"),
        ("figure3", {"serving": {"engine": {"gpu_memory_utilization": 0.5}}}, "gpu_memory_utilization", "0.9", "0.5"),
        (
            "figureB1",
            {"serving": {"points": {"interactive-2k": {"request_rates": [8]}}}},
            "request_rates",
            "[4]",
            "[8]",
        ),
        ("decode", {"serving": {"points": {"decode": {"memory_gib": 1}}}}, "memory_gib", "null", "1"),
        ("kv_capacity", {"serving": {"seed": 7}}, "seed", "0", "7"),
        ("figure2", {"variants": {"swiftkv-50": {"acrosskv": 2}}}, "spec", '_group_size": 1', '_group_size": 2'),
        ("tableB1", {"tasks": {"gsm8k": {"limit": 9}}}, "limit", "2", "9"),
        ("panel", {"scoring": {"seed": 7}}, "seed", "42", "7"),
        ("recipes", {"fidelity": {"seed": 7}}, "seed", "42", "7"),
        ("early_exit", {"early_exit": {"threshold": 0.5}}, "threshold", "0.95", "0.5"),
    ],
)
def test_records_of_other_settings_are_refused(tmp_path, artifact, change, key, recorded, shown):
    config = scale("smoke")
    config["pathvars"] = {key: str(tmp_path / key) for key in config["pathvars"]}
    before = typed(config)
    needed = contents.needs(before, artifact)
    for path in (path for paths in needed.values() for path in paths if not path.startswith("resources/")):
        provide(config, path)
    entry = json.loads(json.dumps(contents.resolve(before, artifact)))
    check_settings(entry, needed)
    update_config(config, change)
    with pytest.raises(UserError) as refused:
        make_artifact(contents.resolve(typed(config), artifact), needed, [])
    found, wanted = str(refused.value).split(", but ", 1)
    assert re.fullmatch(rf"{tmp_path}/\S+\.json was measured with {key} .*", found) and recorded in found, found
    assert wanted.startswith(f"{artifact} shows {key} ") and shown in wanted, wanted
    assert wanted.endswith(f"; delete it and run again, or set {key} back in the configuration")


VALUES = {
    "warmups": 2, "memory_gib": 3, "enforce_eager": False, "dataset": "heldout", "min_requests": 7,
    "refine_steps": 2, "speculative": {"method": "ngram", "num_speculative_tokens": 2},
    "request_rates": [9], "batch_tokens": [9], "batch_sizes": [9],
    "input_tokens": 99, "output_tokens": 99,
    "total_tokens": 999, "seconds": 99, "repeats": 99,
}  # fmt: skip


@pytest.mark.parametrize("kind", POINTS)
def test_a_record_holds_all_that_its_point_says(kind):
    keys = {name: key for name, key in POINTS[kind].model_fields.items() if name != "measure"}
    required = {name for name, key in keys.items() if key.is_required()}
    engine = typed(scale()).serving.engine.of_a_run
    shared = {"measure": kind, "seed": 0, "engine": engine} | ({"output_tokens": 9} if "output_tokens" in keys else {})
    least = shared | {key: [1] if isinstance(VALUES[key], list) else 1 for key in required}

    def settings(**changes):
        return run.asked(Point.read("a-point", least | changes, gpus=0, threads=1))

    for change in [{key: VALUES[key]} for key in keys] + [
        {"seed": 1},
        {"engine": engine | {"dtype": "x"}},
    ]:
        assert settings(**change) != settings(), change
