"""What the typed configuration says of models, variants, scores and points."""

import pytest
from tests.unit.artifact_helpers import fields, scale, typed

from pipeline.config import check
from swiftkv.errors import UserError


@pytest.fixture
def config():
    return scale()


def test_spec_of_a_variant(config):
    assert fields(config, "llama-3.1-8b", "baseline") is None
    assert fields(config, "llama-3.1-8b", "swiftkv-62.5") == {
        "num_hidden_layers": 32,
        "num_key_value_layers": 12,
        "key_value_group_size": 1,
        "num_key_value_heads": None,
    }
    assert fields(config, "llama-3.1-8b", "swiftkv-50-early-exit")["early_exit"] is True


def test_only_a_variant_with_a_head_can_exit_early(config):
    typed(config).check_early_exit("swiftkv-50-early-exit")
    with pytest.raises(UserError, match="'baseline' has no early exit head; .* are: swiftkv-50-early-exit"):
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
    assert engine("swiftkv-50-mqa2") is None
    config["tasks"]["gsm8k"]["backend"] = "transformers"
    assert engine() is None
    check(config)
    config["scoring"]["backend"], config["tasks"]["gsm8k"]["backend"] = "transformers", "vllm"
    assert engine() and engine(task="mmlu") is None


def test_a_teacher_s_states_are_stored_for_every_start_and_every_comparison(config):
    config["recipes"]["distillation"] |= {"hidden_state_weight": 1.0, "teacher_states": "stored"}
    for layer, stored in ((-2, [31, 24]), (30, [30, 24]), (-1, [24])):  # what leaves the last layer is there anyway
        config["recipes"]["distillation"]["hidden_state_layer"] = layer
        config["models"]["llama-3.1-8b"]["num_key_value_layers"] = {"25": 24}
        assert typed(config).stored_layers("llama-3.1-8b", ["distillation"]) == stored


def test_only_what_is_repeated_is_measured_in_turns(config):
    config["serving"]["in_turns"], config["serving"]["points"]["batch-2k"]["repeats"] = True, 2
    points = ("batch-2k", "batch-8k", "interactive-2k", "kv-capacity")
    assert ["in_turns" in typed(config).point(name) for name in points] == [True, False, False, False]


def test_what_vllm_cannot_score_is_refused(config):
    config["tasks"]["hellaswag"]["backend"] = "vllm"
    with pytest.raises(UserError, match="config, at tasks.hellaswag: .* log-likelihoods"):
        check(config)
    del config["tasks"]["hellaswag"]["backend"]
    config["scoring"]["backend"], config["models"]["llama-3.1-8b"]["gpus"]["score"] = "vllm", 0
    with pytest.raises(UserError, match="'llama-3.1-8b' .*cpu_kv_cache_gib"):
        check(config)


@pytest.mark.parametrize(("serve", "said"), [({}, "gpus has no serve"), ({"serve": 0}, "cpu_kv_cache_gib")])
def test_a_served_model_says_where(config, serve, said):
    config["models"]["small"] = config["models"]["llama-3.1-8b"] | {"gpus": {"distill": 8, "score": 1, **serve}}
    with pytest.raises(UserError, match=f"config, at here: .*small.*{said}"):
        typed(config).check_served("small", "here")


def test_what_cannot_be_measured_has_a_reason(config):
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50", served=True) is None
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa", served=False) is None
    assert typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mqa", served=True) is None
    assert "key/value heads" in typed(config).unmeasured("llama-3.1-8b", "swiftkv-50-mha", served=True)
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
    with pytest.raises(
        UserError, match="'swiftkv-50-mqa' cannot be made of model 'deepseek-v2-lite': latent attention"
    ):
        fields(config, model, "swiftkv-50-mqa")
    assert fields(config, model, "swiftkv-50-tuned")["num_key_value_layers"] == 14
    with pytest.raises(UserError, match="fitted start of latent attention has no AcrossKV groups"):
        fields(config, model, "swiftkv-50-across4-tuned")


def test_a_variant_a_model_cannot_have_is_named(config):
    with pytest.raises(UserError, match="'swiftkv-45' asks for 45 % prefill reduction, but models.llama-3.1-8b"):
        fields(config, "llama-3.1-8b", "swiftkv-45")
    config["variants"]["swiftkv-50"]["acrosskv"] = 17
    with pytest.raises(UserError, match="'swiftkv-50' cannot be made of model 'llama-3.1-8b': .*17"):
        fields(config, "llama-3.1-8b", "swiftkv-50")


def test_a_model_that_an_artifact_names_itself_is_checked_too(config):
    config["models"]["mine"] = config["models"]["llama-3.1-8b"] | {"gpus": {"distill": 24, "score": 1}}
    check(config)
    part = {"title": "x", "models": ["mine"], "variants": ["baseline"]}
    config["artifacts"] = {"a": {"kind": "quality", "parts": [part]}}
    with pytest.raises(UserError, match="for model 'mine': batch_size 32 is not a multiple of 24 ranks"):
        check(config)
