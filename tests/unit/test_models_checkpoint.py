"""Checkpoints: the published format both ways, the published ones themselves, Auto classes, and every kind of damage."""

import contextlib
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import byte_tokenizer, refused, tiny_swiftkv, tiny_teacher
from tests.published import CHECKPOINTS, LLAMA_8B, TINY, random_like, tensors, write
from tests.unit.distill_helpers import ROOT
from tests.unit.score_helpers import SHAPE
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from pipeline.sources import check_checkpoint
from swiftkv.io import PIECE, read_ahead, read_json, write_json
from swiftkv.models import load_any, load_base, load_sharing, load_swiftkv, rewire, save_model
from swiftkv.models.checkpoint import _dispatch, check_swiftkv
from swiftkv.spec import SwiftKVSpec


def write_published(folder, teacher_qkv, shards=1):
    config = LLAMA_8B | TINY
    return write(folder, config, random_like(tensors(config, torch.float32, teacher_qkv)), shards)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_save_and_load(architecture, dtype, tmp_path, tokens, capfd):
    model = tiny_swiftkv(architecture, 2, 3, 2, dtype=dtype)
    teacher, student, expected = tmp_path / "teacher", tmp_path / "student", model(tokens).logits
    model.config.swiftkv = False  # the file is the student's whatever mode the model is in
    save_model(model, teacher)
    save_model(model, student, keep_teacher_qkv=False)
    assert model.config.swiftkv is False
    left, kept = (load_file(folder / "model.safetensors").keys() for folder in (student, teacher))
    attention = re.compile(r"model\.layers\.[2-5]\.self_attn\.(?!o_proj)\w+(?<!_swiftkv)\.")
    assert kept - left == {name for name in kept if attention.match(name)} != set()
    for folder in (teacher, student):
        for load in (load_swiftkv, load_any, AutoModelForCausalLM.from_pretrained):
            loaded = load(folder, dtype=dtype)
            assert loaded.dtype == dtype and loaded.config.swiftkv and loaded.spec == model.spec
            assert type(loaded) is type(model) and torch.equal(loaded(tokens).logits, expected)
            assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
            assert loaded.model.student_only == (folder == student) and not loaded.training
        decoder = AutoModel.from_pretrained(folder)
        assert torch.equal(decoder(tokens).last_hidden_state, loaded.model(tokens)[0])
        loaded.config.swiftkv = False
        if folder == teacher:
            assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    with refused("saved without the teacher's projections"):
        loaded(tokens)
    assert "MISSING" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "architecture, changed",
    [
        ("llama", ()),
        ("mistral", ("embed",)),
        ("qwen2", ("model.layers.4.mlp.up_proj.weight", "model.norm.weight")),
        ("qwen3_moe", ("model.layers.3.mlp.experts.gate_up_proj", "model.layers.5.mlp.gate.weight")),
        ("deepseek_v2", ("model.layers.4.mlp.experts.down_proj", "model.layers.5.mlp.gate.weight")),
    ],
)
@torch.no_grad()
def test_a_checkpoint_on_its_teacher_is_the_checkpoint(architecture, changed, tmp_path, tokens):
    """Bit for bit, and what is the teacher's exists once; also where a training changed more than the projections."""
    dtype = torch.bfloat16
    teacher = tiny_teacher(architecture, dtype)
    teacher.save_pretrained(tmp_path / "base")
    student = tiny_swiftkv(architecture, 2, 3, 2, dtype=dtype)
    names = {name for name in student.state_dict() for part in changed if part in name}
    for name in names:
        student.get_parameter(name).mul_(1.5)
    save_model(student, tmp_path / "student")
    base = load_base(tmp_path / "base", dtype)
    shared, alone = load_sharing(tmp_path / "student", base), load_swiftkv(tmp_path / "student", dtype)
    assert torch.equal(shared(tokens).logits, alone(tokens).logits) and not shared.training
    assert torch.equal(shared.generate(tokens, max_new_tokens=4), alone.generate(tokens, max_new_tokens=4))
    theirs = dict(base.named_parameters())
    own = {name for name, parameter in shared.named_parameters() if parameter is not theirs.get(name)}
    assert own == (names | set(shared.swiftkv_parameters())) - {"lm_head.weight"}
    assert torch.equal(base(tokens).logits, teacher(tokens).logits)


@pytest.mark.parametrize("settings", [{"do_sample": False, "temperature": 0.6}, {"early_stopping": True}])
def test_generation_settings_that_transformers_refuses_to_write_are_kept(settings, tmp_path):
    tiny_teacher().save_pretrained(tmp_path / "base")
    write_json(tmp_path / "base/generation_config.json", settings | {"eos_token_id": 2})
    base = load_base(tmp_path / "base")
    save_model(base, tmp_path / "tuned")
    save_model(rewire(base, SwiftKVSpec(6, 3)), tmp_path / "rewired")
    for name in ("tuned", "rewired"):
        assert (settings | {"eos_token_id": 2}).items() <= read_json(tmp_path / name / "generation_config.json").items()
        assert load_any(tmp_path / name).generation_config.to_dict() == base.generation_config.to_dict()


@pytest.mark.parametrize("own", ["TokenizersBackend", "LlamaTokenizer"])
def test_files_are_as_transformers_4_reads_them_too(own, grouped_query, tmp_path):
    """Its readers take other angles and another number of experts else, without a word, and refuse the tokenizer."""
    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64}
    byte_tokenizer().save_pretrained(tmp_path / "base")
    edit_config(tmp_path / "base", "tokenizer_config.json", tokenizer_class=own)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    model = tiny_swiftkv(grouped_query, rope_parameters=rope)
    save_model(model, tmp_path / "saved", tokenizer=tokenizer)
    saved, words = (read_json(tmp_path / "saved" / name) for name in ("config.json", "tokenizer_config.json"))
    older = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": "float32"}
    if grouped_query == "qwen3_moe":
        older["num_experts"] = model.config.num_experts
    assert older.items() <= saved.items()
    assert words["tokenizer_class"] == own.replace("TokenizersBackend", "PreTrainedTokenizerFast")
    assert load_swiftkv(tmp_path / "saved").config.rope_parameters == model.config.rope_parameters
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").get_vocab() == tokenizer.get_vocab()


@torch.no_grad()
def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_model(tiny_swiftkv(), tmp_path / "student")
    with refused("another shape"):
        load_sharing(tmp_path / "student", tiny_teacher(intermediate_size=80))
    with refused("has 8"):
        load_sharing(tmp_path / "student", tiny_teacher(num_hidden_layers=8))


@pytest.mark.parametrize("architecture", ["llama", "deepseek_v2"])
@torch.no_grad()
def test_a_rewired_model_runs_with_its_layers_dispatched(architecture, tokens):
    """With the hooks that move states from GPU to GPU, here all for one device."""
    teacher = tiny_teacher(architecture)
    modules = ["model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"]
    places = dict.fromkeys([*modules, *(f"model.layers.{index}" for index in range(6))], "cpu")
    model, expected = (rewire(teacher, SwiftKVSpec(6, 2, 3, early_exit=True)).eval() for _ in range(2))
    _dispatch(model, places)
    assert hasattr(model.early_exit_head_swiftkv, "_hf_hook")
    assert torch.equal(model(tokens).logits, expected(tokens).logits)
    assert torch.equal(model.generate(tokens, max_new_tokens=4), expected.generate(tokens, max_new_tokens=4))
    assert model.model.layers[5].self_attn.o_proj.weight is teacher.model.layers[5].self_attn.o_proj.weight


def edit_config(folder, name="config.json", **fields):
    file = folder / name
    write_json(file, read_json(file) | fields)


def edit_tensors(folder, changes):
    """Replace tensors of a checkpoint; None takes one away."""
    tensors = load_file(folder / "model.safetensors") | changes
    left = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(left, folder / "model.safetensors", metadata={"format": "pt"})


Q5, K4 = "model.layers.5.self_attn.q_proj_swiftkv.weight", "model.layers.4.self_attn.k_proj_swiftkv.weight"
UPPER = "model.layers.4.self_attn.v_proj.weight"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "llama"}, "config.json is of a 'llama' model"),
        ({"model_type": "gpt2"}, "config.json .*'gpt2'"),
        ({"num_key_value_layers": 7}, "config.json .*num_key_value_layers is 7"),
        ({"num_key_value_layers": "three"}, "config.json .*num_key_value_layers"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "float"}},
            "quantized in another way",
        ),
        ({"key_value_group_size": 3}, f"holds the tensor {K4}"),
        ({"num_key_value_layers": 2}, "no tensor model.layers.2.self_attn.k_proj_s"),
        ({Q5: None}, f"no tensor {Q5}"),
        ({"lm_head.weight": None}, "no tensor lm_head.weight"),
        ({UPPER: None}, f"no tensor {UPPER}"),
        ({K4: torch.zeros(16, 64)}, rf"model.safetensors: tensor {K4} has shape \[16, 64\]"),
    ],
)
def test_damaged_checkpoint(change, message, tmp_path):
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=True)
    if any("." in name for name in change):
        edit_tensors(folder, change)
    else:
        edit_config(folder, **change)
    assert_refused(folder, message)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_that_are_cut_short_or_absent(name, tmp_path):
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=True)
    os.truncate(folder / name, (folder / name).stat().st_size // 2)
    assert_refused(folder, name)
    (folder / name).unlink()
    assert_refused(folder, name)


def assert_refused(folder, message):
    for load in (check_swiftkv, load_swiftkv):
        with refused(message) as caught:
            load(folder)
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("rewired", [False, True])
@pytest.mark.parametrize("files", [1, 3])
def test_a_tied_head_that_is_another_than_the_embedding_is_refused(rewired, files, tmp_path):
    """transformers would take the stored head, vLLM the embedding."""
    model = tiny_swiftkv() if rewired else tiny_teacher()
    assert model.config.tie_word_embeddings
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for head, said in (tensors["lm_head.weight"], None), (tensors["lm_head.weight"] + 1e-3, "tie_word_embeddings"):
        config = model.config.to_dict() | {"dtype": "float32"}
        folder = write(tmp_path / str(said), config, tensors | {"lm_head.weight": head}, files=files)
        for read in (check_checkpoint, load_swiftkv if rewired else load_base):
            with refused(said) if said else contextlib.nullcontext():
                read(folder)


def test_nobody_is_told_to_delete_a_damaged_file_of_a_model(tmp_path):
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=True)
    (folder / "config.json").write_text("{")
    with refused("config.json is not valid JSON") as caught:
        check_checkpoint(folder)
    assert "delete it" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors", "model.safetensors.index.json"])
def test_a_pointer_of_git_lfs_is_called_so(name, tmp_path):
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=True, shards=3)
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")
    assert_refused(folder, f"{name} .*`git lfs pull`")
    with refused("git lfs pull"):
        check_checkpoint(folder)


def test_missing_shard_and_damaged_index(tmp_path):
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=False, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with refused("model-00002-of-00003.safetensors does not exist"):
        load_swiftkv(folder)
    for content in ("{", '{"metadata": {}}', "[]"):
        (folder / "model.safetensors.index.json").write_text(content)
        with refused("index.json"):
            load_swiftkv(folder)


def test_no_weights_are_made_up(tmp_path):
    """By transformers' own functions either."""
    tiny_teacher().save_pretrained(tmp_path / "base")
    folder = write_published(tmp_path / "checkpoint", teacher_qkv=False)
    edit_tensors(tmp_path / "base", {"model.norm.weight": None})
    edit_tensors(folder, {Q5: None})
    with refused("has no tensor model.norm.weight"):
        load_base(tmp_path / "base")
    with refused(f"has no tensor {Q5}"):
        AutoModelForCausalLM.from_pretrained(folder)
    with refused("has no tensor layers.5"):
        AutoModel.from_pretrained(folder)


def test_interrupted_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    model = tiny_swiftkv()
    save_model(model, tmp_path / "saved")
    before = {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}
    monkeypatch.setattr(type(model), "save_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        save_model(model, tmp_path / "saved")
    assert {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_the_python_of_the_readme_and_of_training_runs(tmp_path, monkeypatch):
    pages = [ROOT / "README.md", ROOT / "docs/training.md"]
    lines = "".join(re.findall(r"```python\n(.*?)```", "".join(page.read_text() for page in pages), re.DOTALL))
    lines = lines.replace("num_hidden_layers=16", "num_hidden_layers=6").replace("value_layers=8", "value_layers=3")
    monkeypatch.chdir(tmp_path)
    save_model(tiny_swiftkv(**SHAPE), re.search('folder = "(.*)"', lines)[1], tokenizer=byte_tokenizer())
    save_model(tiny_teacher(), re.search('load_base."(.*)"', lines)[1])
    exec(lines, {})
    assert load_swiftkv("rewired").config.num_key_value_layers == 3


@pytest.mark.parametrize(
    "name, teacher_qkv, group",
    [*((name, True, 1) for name in CHECKPOINTS), ("8B", True, 2), ("8B", False, 2), ("8B-FP8", False, 2)],
)
def test_tiny_weights_of_that_form_load_and_come_back_bit_for_bit(name, teacher_qkv, group, tmp_path, tokens):
    config = CHECKPOINTS[name] | TINY | {"key_value_group_size": group}
    dtype = getattr(torch, config["torch_dtype"])
    weights = random_like(tensors(config, dtype, teacher_qkv))
    folder = write(tmp_path / "published", config, weights, files=3)
    model = load_swiftkv(folder, dtype)
    assert model.spec == SwiftKVSpec(6, 3, group)
    with torch.no_grad():
        assert model(tokens).logits.isfinite().all()
    save_model(model, tmp_path / "ours")
    saved, ours = load_file(tmp_path / "ours" / "model.safetensors"), read_json(tmp_path / "ours" / "config.json")
    assert saved.keys() == weights.keys()
    for tensor, weight in weights.items():
        # We keep scales in float32, the same numbers.
        assert saved[tensor].dtype == weight.dtype or tensor.endswith("_scale")
        assert torch.equal(saved[tensor].float(), weight.float()), tensor
    same = ("architectures", "model_type", "swiftkv", "num_key_value_layers", "key_value_group_size")
    assert {key: ours[key] for key in same} == {key: config[key] for key in same}
    assert not [key for key in ours if key.startswith("swiftkv_")]


def test_all_of_a_checkpoint_is_read_ahead(tmp_path):
    def bytes_read():
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])

    sizes = [2 * PIECE + 10, 3]
    for number, size in enumerate(sizes):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(size))
    before = bytes_read()
    read_ahead(tmp_path)
    assert sum(sizes) <= bytes_read() - before < sum(sizes) + 10**5
