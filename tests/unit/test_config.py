"""The configuration: a mistake is one sentence that names the key, before anything runs; what it says of models and variants."""

import pytest
from snakemake.utils import update_config
from tests.conftest import refused
from tests.unit.artifact_helpers import fields, scale, typed

from pipeline.config import load_yaml
from pipeline.config.checks import check_config
from pipeline.run.jobs import checked
from swiftkv.distill.recipe import PackingSettings
from swiftkv.errors import UserError


@pytest.fixture
def config():
    return scale()


def merged(config, override):
    """The configuration with an override laid over it, as Snakemake does: mappings merge, all else is replaced."""
    update_config(config, override)
    return config


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
        (model(num_kv_layers=1), ", at models.llama-3.1-8b", "(did you mean 'num_key_value_layers'?)"),
        (point("batch-2k", measure="thruoghput"), ", at serving.points.batch-2k", "(did you mean 'throughput'?)"),
        (recipe(learning_rate="fast"), ", at recipes.distillation.learning_rate", "fast"),
        (model(source="my/folder"), ", at models.llama-3.1-8b.source", "hub, package, local"),
        (model(source={"local": "x"}), ", at models.llama-3.1-8b.source", "exactly one"),  # beside hub
        (model(source={"hub": "https://huggingface.co/org/name"}), ", at models.llama-3.1-8b.source.hub", "https:"),
        (model(source={"hub": "org/name@main"}), ", at models.llama-3.1-8b.source.hub", "`revision`, a key of its own"),
        (model(chat_template={"hub": "org/my--model"}), ", at models.llama-3.1-8b.chat_template.hub", "'--'"),
        (source(hub="org/name.git"), ", at data.ultrachat.sources.0.hub", "'.git'"),
        ({"tasks": {"gsm8k": {"source": {"hub": "a/b c"}}}}, ", at tasks.gsm8k.source.hub", "letters, digits"),
        (point("ngram-on", request_rates=[1, 1]), ", at serving.points.ngram-on.request_rates", "twice"),
        (source(user="{{ a }}"), ", at data.ultrachat.sources.0", "user and assistant"),
        ({"gpu_jobs": {"resources": {"gpu": 5}}}, ", at gpu_jobs.resources.gpu", "models"),
        ({"gpu_jobs": {"gres": "gpu", "resources": {"gpu_model": "h100"}}}, ", at gpu_jobs", "gres: gpu:h100"),
        # names that are not defined
        (variant(recipe="distilation"), ", at variants.swiftkv-50", "(did you mean 'distillation'?)"),
        (recipe(data="nothing"), ", at recipes.distillation", "'nothing'"),
        ({"recipes": {"new": {"like": "nothing"}}}, ", at recipes", "'nothing' is not defined"),
        ({"recipes": {"new": {"like": ["distillation"]}}}, ", at recipes", "is not defined"),
        ({"recipes": {"none": None, "new": {"like": "none"}}}, ", at recipes.none", "not null"),
        ({"recipes": {"a": {"like": "b"}, "b": {"like": "a"}}}, ", at recipes", "is itself like"),
        (model(recipe={"learning_rat": 1e-4}), ", at models.llama-3.1-8b.recipe", "did you mean 'learning_rate'?"),
        (model(recipe={"zero_stage": 3}), ", at models.llama-3.1-8b.recipe", "zero_stage"),
        (model(recipe={"data": "nothing"}), ", at recipes.distillation, for model 'llama-3.1-8b'", "'nothing'"),
        (model(checkpoints={"mine": {"hub": "a/b"}}), ", at models.llama-3.1-8b.checkpoints", "'mine'"),
        ({"scoring": {"together": ["pannel"]}}, ", at scoring.together", "(did you mean 'panel'?)"),
        ({"serving": {"together": ["lenghts"]}}, ", at serving.together", "(did you mean 'lengths'?)"),
        # what does not fit together
        (
            {"serving": {"together": ["short"]}, "sets": {"points": {"short": ["forward"]}}},
            ", at serving.together",
            "'short' has the name of one of the points",
        ),
        (
            {"serving": {"together": ["lengths", "x"]}, "sets": {"points": {"x": ["short", "batch-2k"]}}},
            ", at serving.together",
            "point 'batch-2k' is in 'lengths' and in 'x'",
        ),
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
        ({"early_exit": {"prompts": 501}}, ", at early_exit", "501 prompts cannot be drawn from the 500 chats"),
        ({"reading": {"among": 401}}, ", at reading", "among"),
        (point("forward", batch_tokens=[4096]), ", at serving.points.forward", "4096"),
        # 64 prompts of 1,000 tokens take 32 steps of 2,048; by then the first has 32 tokens.
        (point("decode", batch_sizes=[64], input_tokens=1000, output_tokens=33), ", at serving.points.decode", "33"),
        (point("batch-2k", total_tokens=2255), ", at serving.points.batch-2k", "2255"),
        ({"serving": {"engine": {"max_num_batched_tokens": 128}}}, ", at serving.engine", "256"),
        ({"serving": {"in_turns": True}}, ", at serving.in_turns", "llama-3.1"),
        ({"tasks": {"hellaswag": {"backend": "vllm"}}}, ", at tasks.hellaswag", "log-likelihoods"),
        ({"scoring": {"backend": "vllm"}} | model(gpus={"score": 0}), ", at tasks.arc-challenge", "cpu_kv_cache_gib"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(config, override, place, said):
    with pytest.raises(UserError) as error:
        check_config(merged(config, override))
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
    check_config(merged(config, override))


def test_numbers_may_be_written_as_one_writes_them(config):
    """YAML reads `{50: 16}` as a number, `1e-4` as text, and 1.0e+6 as no whole number."""
    natural = merged(config, recipe(learning_rate="1e-4", start_tokens=1.0e6))
    natural["models"]["llama-3.1-8b"]["num_key_value_layers"] = {25: 24, 50: 16, 62.5: 12}
    natural["variants"]["swiftkv-62.5"]["prefill_reduction"] = 62.5
    natural["variants"]["swiftkv-50"]["prefill_reduction"] = 50
    checked, written = check_config(natural), check_config(scale())
    assert checked.models == written.models and checked.variants == written.variants
    read = checked.recipes["distillation"]
    assert (read.learning_rate, read.start_tokens) == (1e-4, 10**6) and isinstance(read.start_tokens, int)


def test_a_row_a_gpu(config):
    read = check_config(config)
    models = ("llama-3.1-8b", "llama-3.1-70b")
    assert [read.recipe(model, "authors-2025").batch_size for model in models] == [8, 32]


def test_a_recipe_takes_the_keys_of_another(config):
    config["recipes"] |= {
        "slow": {"like": "distillation", "learning_rate": 1e-4},
        "slower": {"like": "slow", "learning_rate": 1e-5, "loss": "lm"},
    }
    config["recipes"]["distillation"]["weight_decay"] = 0.25
    read = check_config(config).recipes
    assert (read["slow"].learning_rate, read["slower"].learning_rate) == (1e-4, 1e-5)
    assert read["slower"].loss == "lm" and read["slow"].loss == "distillation"
    assert {read[name].weight_decay for name in ("slow", "slower", "lm-loss", "tuned", "tuned-quarter")} == {0.25}


def test_a_model_has_keys_of_its_own(config):
    config["models"]["llama-3.1-8b"]["recipe"] = {"learning_rate": 1e-4, "max_length": 4096}
    read = check_config(config)
    own, others = (read.recipe(name, "distillation") for name in ("llama-3.1-8b", "llama-3.2-3b"))
    assert (own.learning_rate, own.max_length) == (1e-4, 4096)
    assert (others.learning_rate, others.max_length) == (3e-4, 8192)
    assert read.recipe("llama-3.1-8b", "lm-loss").learning_rate == 1e-4


@pytest.mark.parametrize(
    ("keys", "impossible"), [({"hidden_state_weight": 0.01}, "lm-loss"), ({"start": "fitted"}, "fine-tuning")]
)
def test_a_model_s_keys_need_not_fit_recipes_that_it_is_not_trained_with(config, keys, impossible):
    config["models"]["llama-3.1-8b"]["recipe"] = keys
    read = check_config(config)
    assert keys.items() <= read.recipe("llama-3.1-8b", "distillation").model_dump().items()
    assert impossible not in read.recipes_sharing("llama-3.1-8b", "distillation", PackingSettings)
    with refused("llama-3.1-8b"):
        read.recipe("llama-3.1-8b", impossible)


def test_batches_are_only_checked_on_models_of_this_scale(config):
    config["recipes"] = {name: entry | {"batch_size": 4} for name, entry in config["recipes"].items()}
    with refused("batch_size 4"):
        check_config(config)
    config["roles"] = dict.fromkeys(config["roles"])
    check_config(config)
    part = {"title": "x", "models": ["llama-3.1-8b"], "variants": ["baseline"]}  # which an artifact names itself
    config["artifacts"] = {"a": {"kind": "quality", "parts": [part]}}
    with refused("for model 'llama-3.1-8b': batch_size 4 is not a multiple of 8 ranks"):
        check_config(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n  b:\n    c: 1\n    c: 2\n", "line 4: key 'c' stands twice"),
        ("a: [{b: 1, b: 2}]\n", "line 1: key 'b' stands twice"),
        ("a: [1\nb: 2\n", "not valid YAML"),
        ("- a\n- b\n", "has no keys at its top level"),
        ("# nothing\n", "has no keys at its top level"),
        ("models:\n  no: {title: Off}\n", "line 2: key no means False in YAML; write it in quotes"),
        ("roles: {~: small}\n", "line 1: key ~ means None"),
    ],
)
def test_yaml_that_does_not_say_what_its_writer_thinks_is_refused(tmp_path, text, said):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with refused(said):
        load_yaml(file)
    file.write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, 'no': 3}\n")
    load_yaml(file)


def test_only_a_variant_with_a_head_can_exit_early(config):
    typed(config).check_early_exit("swiftkv-50-early-exit")
    assert fields(config, "llama-3.1-8b", "swiftkv-50-early-exit")["early_exit"] is True
    with refused("'baseline' has no early exit head; .* are: swiftkv-50-early-exit"):
        typed(config).check_early_exit("baseline")


def test_generated_answers_come_from_vllm_on_several_gpus_or_where_asked_for(config):
    def engine(variant="swiftkv-50", kv_cache="auto", task="gsm8k", model="llama-3.1-70b"):
        return typed(config).scoring_engine(model, variant, kv_cache, task)

    assert engine()["gpus"] == 4 and engine(model="llama-3.1-8b") is None
    config["scoring"]["backend"] = "transformers"
    assert engine() is None
    config["scoring"]["backend"] = "vllm"
    assert engine(model="llama-3.1-8b")["gpus"] == 1
    shared = {key: value for key, value in config["serving"]["engine"].items() if key != "start_timeout"}
    assert engine() == engine("baseline", task="mmlu") == {"gpus": 4, **shared}
    # log-likelihoods of prompts, one scale a token, and heads that vLLM cannot serve stay with transformers
    assert engine(task="winogrande") is None and engine(task="mmlu-completion") is None
    assert engine(kv_cache="fp8") is None
    assert engine("swiftkv-50-mqa2") and engine("swiftkv-50-mha") is None
    config["tasks"]["gsm8k"]["backend"] = "transformers"
    assert engine() is None
    check_config(config)
    config["scoring"]["backend"], config["tasks"]["gsm8k"]["backend"] = "transformers", "vllm"
    assert engine() and engine(task="mmlu") is None


def test_a_teacher_s_states_are_stored_for_every_start_and_every_comparison(config):
    config["recipes"]["distillation"] |= {"hidden_state_weight": 1.0, "teacher_states": "stored"}
    for layer, stored in ((-2, [31, 24]), (30, [30, 24]), (-1, [24])):  # what leaves the last layer is there anyway
        config["recipes"]["distillation"]["hidden_state_layer"] = layer
        config["models"]["llama-3.1-8b"]["num_key_value_layers"] = {"25": 24}
        assert typed(config).stored_layers("llama-3.1-8b", "distillation") == stored


def test_only_what_is_repeated_is_measured_in_turns(config):
    config["serving"]["in_turns"], config["serving"]["points"]["batch-8k"]["repeats"] = True, 1
    points = ("batch-2k", "batch-8k", "interactive-2k", "kv-capacity")
    assert ["in_turns" in typed(config).point(name) for name in points] == [True, False, False, False]


@pytest.mark.parametrize("other", ["memory-80gib", "graphs-2k", "interactive-2k", "forward"])
def test_points_that_need_different_engines_are_not_measured_together(config, other):
    both = {"sets": {"points": {"both": ["batch-2k", other]}}, "serving": {"together": ["both"]}}
    with refused(f"config, at serving.together: .*'batch-2k' and '{other}' of set 'both'"):
        checked(merged(config, both))


@pytest.mark.parametrize(("serve", "said"), [({}, "gpus has no serve"), ({"serve": 0}, "cpu_kv_cache_gib")])
def test_a_served_model_says_where(config, serve, said):
    config["models"]["small"] = config["models"]["llama-3.1-8b"] | {"gpus": {"distill": 8, "score": 1, **serve}}
    with refused(f"config, at here: .*small.*{said}"):
        typed(config).check_served("small", "here")


def test_what_cannot_be_measured_has_a_reason(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50", served=True) is None
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa", served=False) is None
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa", served=True) is None
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa2", served=True) is None
    assert "32 does not divide 8" in typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mha", served=True)
    del config["models"]["llama-3.1-8b"]["architecture"]
    assert "only 1 is known to" in typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa2", served=True)
    config["models"]["llama-3.1-8b"]["unavailable"] = {"quality": "because"}
    assert typed(config).unmeasured("llama-3.1-8b", "baseline", served=False) == "because"
    assert typed(config).unmeasured("llama-3.1-8b", "baseline", served=True) is None


def test_latent_attention_lacks_what_planning_refuses(config):
    model = "deepseek-v2-lite"
    assert typed(config).unmeasured(model, "swiftkv-45-across2", served=False) is None
    assert "shares no KV cache between layers" in typed(config).unmeasured(model, "baseline", served=True)
    del config["models"][model]["unavailable"]
    assert typed(config).unmeasured(model, "baseline", served=True) is None
    assert "KV sharing is not supported for MLA" in typed(config).unmeasured(model, "swiftkv-45", served=True)
    config["models"][model]["num_key_value_layers"]["50"] = 14
    with refused("'swiftkv-50-mqa' cannot be made of model 'deepseek-v2-lite': latent attention"):
        fields(config, model, "swiftkv-50-mqa")
    assert fields(config, model, "swiftkv-50-tuned")["num_key_value_layers"] == 14
    with refused("fitted start of latent attention has no AcrossKV groups"):
        fields(config, model, "swiftkv-50-across4-tuned")
