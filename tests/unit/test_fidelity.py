"""KL to the teacher, top-1 agreement and perplexity, also of a checkpoint that others trained."""

import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from score_helpers import SHAPE, SPEC, write_chats, write_source
from tests.conftest import as_trained, byte_tokenizer, refused, tiny_swiftkv, tiny_teacher

from pipeline.config.settings import Fidelity
from pipeline.quality.fidelity import compare_positions, measure_fidelity
from pipeline.sources import TOKENIZER_FILES, read_source
from pipeline.sources.published import fetch_checkpoint
from swiftkv.chats import choose_chats, tokenize_chat
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, rewire, save_model
from swiftkv.quantize.kv_cache import new_cache

DRAW = Fidelity(documents=5, max_length=40, seed=0)
WHOLE = Fidelity(documents=5, max_length=400, seed=0)


def test_a_small_kl_over_a_large_vocabulary_is_exact():
    generator, head = torch.Generator().manual_seed(0), torch.nn.Linear(8, 50_000, bias=False)
    torch.nn.init.normal_(head.weight, std=2.0, generator=generator)
    teacher = torch.randn(9, 8, generator=generator)
    student = teacher + 1e-2 * torch.randn(9, 8, generator=generator)
    found = compare_positions(teacher, [(student, head)], head, list(range(9)))[0, :, 0].sum().item()
    p, q = (head.double()(states.double())[:-1].log_softmax(dim=-1) for states in (teacher, student))
    assert found == pytest.approx((p.exp() * (p - q)).sum().item(), rel=2e-3) and 1e-4 < found < 1e-1


@torch.no_grad()
def likely(model, ids):
    """Log-probabilities of the next token at each position but the last, [positions, vocabulary]."""
    return model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)


def kl(teacher, student, ids, begin=0):
    p, q = (likely(model, ids)[begin:] for model in (teacher, student))
    return (p.exp() * (p - q)).sum().item(), len(p)


@pytest.fixture
def teacher(tmp_path, source):
    return load_base(tmp_path / "checkpoint")


@pytest.fixture
def chats(tmp_path):
    return write_chats(tmp_path / "heldout.jsonl")


@pytest.fixture
def measured(tmp_path, source, chats, monkeypatch):
    """Function that measures a model: what it is, its spec, its cache and the draw; positions are compared in parts."""
    monkeypatch.setattr("pipeline.quality.fidelity.POSITIONS", 7)

    def measured(model=None, spec=None, kv_cache="auto", draw=DRAW):
        if model is not None:
            save_model(model, tmp_path / "measured", tokenizer=byte_tokenizer())
        folder = model and tmp_path / "measured"
        return measure_fidelity(source, folder, "v", spec, kv_cache, chats, draw, tmp_path / "out.json")

    return measured


def test_baseline_is_its_own_teacher(measured, teacher, chats):
    written = measured()
    assert (written["measure"], written["weights"], written["spec"]) == ("fidelity", "original", None)
    record = written["result"]
    assert record["kl"] == {"value": 0.0, "stderr": 0.0, "n": 5}
    assert record["top1_agreement"] == {"value": 1.0, "stderr": 0.0, "n": 5}
    assert record["start"] is None
    documents = list(drawn(chats, DRAW))
    total = sum(likely(teacher, ids)[range(len(ids) - 1), ids[1:]].sum().item() for ids in documents)
    assert record["tokens"] == sum(len(ids) - 1 for ids in documents)
    assert record["perplexity"]["value"] == pytest.approx(math.exp(-total / record["tokens"]), rel=1e-4)


def drawn(chats, draw):
    for chat in choose_chats(chats, draw.documents, draw.seed):
        yield tokenize_chat(byte_tokenizer(), chat["messages"], draw.max_length)


def test_untrained_checkpoint_equals_the_start(measured, teacher):
    record = measured(rewire(teacher, SPEC), SPEC)
    result = record["result"]
    for key in ("kl", "answer_kl", "top1_agreement", "perplexity"):
        assert result[key] == result["start"][key]
    assert result["kl"]["value"] > 0.01
    assert 0 < result["top1_agreement"]["value"] < 1
    assert record["weights"] == "trained"
    assert record["spec"]["prefill_reduction"] == 0.5
    assert record["spec"]["kv_cache_reduction"] == pytest.approx(1 / 6)


def answers(chats):
    """Token ids of each chat, and how many of them are before its last message, an answer."""
    for chat in choose_chats(chats, WHOLE.documents, WHOLE.seed):
        before = tokenize_chat(byte_tokenizer(), chat["messages"][:-1], add_generation_prompt=True)
        yield tokenize_chat(byte_tokenizer(), chat["messages"], WHOLE.max_length), len(before)


def test_kl_of_last_answers_is_that_of_their_tokens(measured, teacher, chats):
    write_chats(chats, before=({"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}))
    models = teacher, rewire(teacher, SPEC)
    result = measured(models[1], SPEC, draw=WHOLE)["result"]
    totals, counts = zip(*(kl(*models, ids, prompt - 1) for ids, prompt in answers(chats)), strict=True)
    assert result["answer_kl"]["value"] == pytest.approx(sum(totals) / sum(counts), rel=1e-4)
    best = [[likely(model, ids).argmax(-1) for model in models] for ids, _ in answers(chats)]
    agreed = torch.cat([teacher == student for teacher, student in best]).double()
    assert 0.1 < agreed.mean() < 0.9 and result["top1_agreement"]["value"] == pytest.approx(agreed.mean().item())


@pytest.mark.parametrize("kv_cache", ["auto", "fp8"])
def test_answers_with_their_own_keys_and_values_are_compared_as_they_are_generated(measured, teacher, chats, kv_cache):
    spec = replace(SPEC, key_value_group_size=1, own_key_values=True)
    student, total, tokens = rewire(teacher, spec), 0.0, 0
    result = measured(student, spec, kv_cache, WHOLE)["result"]
    assert not {"kl", "perplexity", "chats"} & result.keys()
    for document, prompt in answers(chats):
        cache, rows = new_cache(kv_cache, student.config), []
        for part in (document[:prompt], *([token] for token in document[prompt:-1])):
            rows.append(student(torch.tensor([part]), past_key_values=cache, logits_to_keep=1).logits[0, -1])
        q, p = torch.stack(rows).float().log_softmax(-1), likely(teacher, document)[prompt - 1 :]
        total, tokens = total + (p.exp() * (p - q)).sum().item(), tokens + len(p)
    # Steps of one token round otherwise in bfloat16, and FP8 turns last bits into steps.
    assert result["answer_kl"]["value"] == pytest.approx(total / tokens, rel=1e-2 if kv_cache == "auto" else 5e-2)


def test_model_fine_tuned_as_a_whole_is_compared_with_its_own_head(measured, teacher, chats, tmp_path):
    tuned = load_base(tmp_path / "checkpoint")
    with torch.no_grad():
        tuned.lm_head.weight.mul_(1.1)
    record = measured(tuned)
    assert (record["weights"], record["spec"], record["result"]["start"]) == ("trained", None, None)
    totals, counts = zip(*(kl(teacher, tuned, ids) for ids in drawn(chats, DRAW)), strict=True)
    assert record["result"]["kl"]["value"] == pytest.approx(sum(totals) / sum(counts), rel=1e-3)


def test_large_keys_in_an_fp8_cache_are_said(tmp_path, chats, capsys):
    """As Qwen2 has them from its biases."""
    model = tiny_teacher("qwen2", **SHAPE)
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data[3::8] = 100.0  # one in each head
    source = write_source(model, tmp_path)
    record = measure_fidelity(source, None, "baseline", None, "fp8", chats, DRAW, tmp_path / "out.json")
    keys = record["result"]["fp8_keys"]
    assert keys["bound"] == pytest.approx(8 * 8**0.5) and 99 < keys["largest"] < 120
    assert "warning: keys of up to 1" in capsys.readouterr().out


def test_too_few_gpus_are_one_sentence(measured, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in ("transformers.integrations.accelerate", "accelerate.utils.modeling"):
        monkeypatch.setattr(f"{module}.get_max_memory", lambda *_: {"cpu": 2**40})
    with refused("all of it is left over.*raise gpus.score"):
        measured(kv_cache="fp8")


@pytest.fixture
def released(tmp_path):
    """A checkpoint as someone else would publish it."""
    folder = tmp_path / "released"
    save_model(
        tiny_swiftkv(num_key_value_layers=3, key_value_group_size=2, **SHAPE), folder, tokenizer=byte_tokenizer()
    )
    return folder


def fetch(released, source, folder):
    return fetch_checkpoint(source, "published", {"local": str(released)}, SPEC, folder)


@pytest.fixture
def added(source, tmp_path):
    """What may be published of a checkpoint that shares its base's files."""
    base = read_source(source)["path"]
    model = as_trained(rewire(load_base(base, torch.float32), SPEC))
    save_model(model, tmp_path / "linked", base=base)
    (tmp_path / "added").mkdir()
    for name in ("swiftkv.safetensors", "config.json"):
        shutil.copy(tmp_path / "linked" / name, tmp_path / "added")
    return tmp_path / "added"


@pytest.mark.parametrize("form", ["released", "added"])
def test_it_is_measured_as_what_it_is(source, form, tmp_path, chats, request):
    released = request.getfixturevalue(form)
    identity = fetch(released, source, tmp_path / "fetched")
    assert identity["kind"] == "local" and identity["id"] == str(released) and "sha256" in identity["resolved"]
    output = tmp_path / "fidelity.json"
    record = measure_fidelity(source, tmp_path / "fetched", "published", SPEC, "auto", chats, DRAW, output)
    assert record["weights"] == "published" and record["checkpoint"] == identity
    assert record["result"]["kl"]["value"] > 0.01


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_size", 128),
        ("model_type", "qwen2_swiftkv"),
        ("num_key_value_layers", 4),
        ("swiftkv_num_key_value_heads", 2),
    ],
)
def test_another_model_or_variant_is_refused(source, released, tmp_path, field, value):
    config = read_json(released / "config.json")
    write_json(released / "config.json", config | {field: value})
    with refused(f"cannot be variant 'published' of model 'tiny': its {field} is {value!r}"):
        fetch(released, source, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_a_tokenizer_is_read_before_weights_are_downloaded(source, released, tmp_path, monkeypatch):
    asked = []
    hub = SimpleNamespace(download=lambda patterns: asked.append(patterns) or released, identity={})
    monkeypatch.setattr("pipeline.sources.HubRepository", lambda kind, source: hub)
    (released / "chat_template.jinja").unlink()
    with refused("no chat template"):
        fetch_checkpoint(source, "published", {"hub": "org/theirs"}, SPEC, tmp_path / "fetched")
    assert asked == [TOKENIZER_FILES]
