"""The lm-eval model: shared prompt tokens change nothing but the time."""

import itertools

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from score_helpers import SHAPE
from tests.conftest import byte_tokenizer, refused, tiny_swiftkv, tiny_teacher

from pipeline.quality import lm as module
from pipeline.quality.lm import CachedLM
from swiftkv.io import write_json
from swiftkv.models import load_any, rewire
from swiftkv.quantize.kv_cache import new_cache
from swiftkv.spec import SwiftKVSpec

PREFIX = "Question: 1 + 1\nAnswer: 2\n\n"
PAIRS = [
    (PREFIX + "Question: 2 + 2\nAnswer:", " 4"),
    (PREFIX + "Question: 2 + 2\nAnswer:", " 5 apples"),
    (PREFIX + "Question: 2 + 2\nAnswer:", " 5"),
    (PREFIX + "Question: where?\nAnswer:", " here"),
    (PREFIX + "Question: 2 + 2\nAnswer:", " 4"),  # the same request twice
    (PREFIX, "Question"),
]


@pytest.fixture(params=["base", "swiftkv", "own", "latent"])
def model(request):
    # float64: an FP8 cache turns float32's last bits into visible steps.
    if request.param == "base":
        return tiny_teacher(**SHAPE).double()
    if request.param == "own":
        return rewire(tiny_teacher(**SHAPE), SwiftKVSpec(6, 3, own_key_values=True)).double().eval()
    model = tiny_swiftkv("deepseek_v2" if request.param == "latent" else "llama", 3, 2, **SHAPE).double()
    model.set_experts_implementation("eager")  # torch's grouped product has no float64
    return model


def requests(kind, arguments):
    return [Instance(kind, {}, argument, number) for number, argument in enumerate(arguments)]


@pytest.mark.parametrize("kv_cache", ["auto", "fp8"])
@pytest.mark.parametrize("nodes", [1, 40])
def test_loglikelihoods_equal_separate_rows(model, kv_cache, nodes, monkeypatch):
    monkeypatch.setitem(module.NODES, "cpu", nodes)
    monkeypatch.setattr(module, "SCORES", nodes)  # attention in pieces of all sizes
    lm = CachedLM(model, byte_tokenizer(), kv_cache)
    answers = lm.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True)
    for (context, continuation), (value, greedy) in zip(PAIRS, answers, strict=True):
        context, continuation = lm._encode_pair(context, continuation)
        row = torch.tensor([context + continuation])
        with torch.no_grad():
            cache, keep = new_cache(kv_cache, model.config), len(continuation) + 1
            logits = model(row, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits[0]
        log_probabilities = logits[:-1].log_softmax(dim=-1)
        expected = log_probabilities.gather(1, torch.tensor(continuation)[:, None]).sum().item()
        assert value == pytest.approx(expected, rel=1e-5)
        assert greedy == (log_probabilities.argmax(dim=-1).tolist() == continuation)


def test_loglikelihoods_of_a_bfloat16_model_are_not_rounded():
    """As GPUs run it: the logits are bfloat16, and what is computed of them is float32. In bfloat16 the sums here have
    steps of up to 8 nats."""
    model, answer = tiny_teacher(dtype=torch.bfloat16, **SHAPE), " they are those that you have been asked for" * 4
    lm, logits = CachedLM(model, byte_tokenizer()), []
    model.register_forward_hook(lambda _model, _inputs, output: logits.append(output.logits))
    for context, length in itertools.product(("Question", "Ask"), (3, 60, 170)):
        pair = (PREFIX + context, answer[:length])
        ((value, _),) = lm.loglikelihood(requests("loglikelihood", [pair]), disable_tqdm=True)
        assert logits[-1].dtype == torch.bfloat16
        _, continuation = lm._encode_pair(*pair)
        likely = logits[-1][0, -len(continuation) :].double().log_softmax(dim=-1)
        expected = likely.gather(1, torch.tensor(continuation)[:, None]).sum().item()
        # Every sum, over a continuation and in a softmax over the vocabulary, may round once a term.
        terms = len(continuation) + SHAPE["vocab_size"]
        assert value == pytest.approx(expected, rel=terms * torch.finfo(torch.float32).eps, abs=0)


def test_long_contexts_lose_their_start(model):
    lm = CachedLM(model, byte_tokenizer())
    lm._max_length = 8
    contexts = list(range(3, 43)), list(range(36, 43))
    long, short = lm._loglikelihood_tokens([(None, context, [50, 51]) for context in contexts])
    assert long[0] == pytest.approx(short[0])


def test_what_is_no_number_is_no_answer():
    model = tiny_teacher(**SHAPE)
    model.model.layers[5].mlp.up_proj.weight.data[0, 0] = torch.nan
    lm = CachedLM(model, byte_tokenizer(), batch_size=2)
    with refused("a log-likelihood is nan: the weights are damaged"):
        lm.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True)
    settings = {"until": [], "max_gen_toks": 3, "do_sample": False}
    with refused("the logits of an answer are NaN: the weights are damaged"):
        lm.generate_until(requests("generate_until", [(PREFIX, settings)]), disable_tqdm=True)


PROMPTS = [PREFIX + "Question: 2 + 2\nAnswer:", PREFIX + "Question: a much longer one\nAnswer:", PREFIX + "Q"]


def test_generation_equals_hflm(model):
    settings = {"until": [], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
    arguments = [(prompt, settings) for prompt in PROMPTS]
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"[{number}]" for number in range(SHAPE["vocab_size"] - len(tokenizer))])
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id == SHAPE["vocab_size"]  # the embedding has no row for it
    plain = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    expected = plain.generate_until(requests("generate_until", arguments), disable_tqdm=True)
    assert any(expected)
    lm = CachedLM(model, tokenizer, batch_size=3)
    assert lm.generate_until(requests("generate_until", arguments), disable_tqdm=True) == expected


OWN_SETTINGS = [
    {"max_new_tokens": 2},
    {"max_length": 12},
    {"min_new_tokens": 12},
    {"max_time": 1e-4},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": list(range(60, 110))},
    {"forced_eos_token_id": 2},
    {"stop_strings": ["e", "a", "t", "o", "n", "i"]},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "temperature": 3.0},
    {"return_dict_in_generate": True, "output_scores": True},
    {"cache_implementation": "static"},
]


@pytest.mark.parametrize("own", OWN_SETTINGS, ids=lambda own: next(iter(own)))
def test_the_task_alone_decides_how_answers_are_generated(own, tmp_path):
    """A checkpoint's generation_config.json neither cuts answers nor changes the choice of tokens; its end tokens stay."""
    tiny_swiftkv(**SHAPE).save_pretrained(tmp_path)
    prompt = byte_tokenizer()(PROMPTS[0], return_tensors="pt")

    def answer(**generation):
        write_json(tmp_path / "generation_config.json", generation)
        lm = CachedLM(load_any(tmp_path, torch.float32), byte_tokenizer())
        begin, mask = prompt.input_ids.shape[1], prompt.attention_mask
        tokens = lm._model_generate(prompt.input_ids, begin + 12, [], attention_mask=mask, do_sample=False)
        return tokens[0, begin:].tolist()

    plain = answer(eos_token_id=0)
    assert len(plain) == 12 and answer(eos_token_id=0, **own) == plain
    end = plain.index(plain[5]) + 1
    assert answer(eos_token_id=[0, plain[5]], **own) == plain[:end]


def test_generation_uses_the_fp8_cache(model):
    tokenizer, settings = byte_tokenizer(), {"until": [], "max_gen_toks": 8, "do_sample": False}
    lm = CachedLM(model, tokenizer, "fp8", batch_size=3)
    arguments = [(prompt, settings) for prompt in PROMPTS]
    answers = lm.generate_until(requests("generate_until", arguments), disable_tqdm=True)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        row = tokenizer.encode(prompt, return_tensors="pt")
        cache = new_cache("fp8", model.config)
        generated = model.generate(row, past_key_values=cache, max_new_tokens=8, do_sample=False)[0, row.shape[1] :]
        assert answer == tokenizer.decode(generated, skip_special_tokens=True)
