"""Commands, memory, folders without weights, and the records of serving points, without starting vLLM."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tests.conftest import byte_tokenizer, refused, tiny_swiftkv
from tests.programs import ROOT
from tests.unit.artifact_helpers import scale, typed
from tests.unit.measure_helpers import LLAMA, SPEC, command, measure, point, subject, write_dummy
from transformers import AutoTokenizer

from pipeline.engines.environment import engine_environment
from pipeline.engines.log import OutOfMemory
from pipeline.measure import offline, run
from pipeline.measure import point as served
from pipeline.measure.offline import peak_tflops
from pipeline.measure.point import vllm_command
from pipeline.measure.run import cost, headline
from pipeline.measure.subject import BASELINE
from pipeline.measure.turns import VARIANT
from swiftkv import device
from swiftkv.cost import GIBI, parameter_count
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec


def option(command, name):
    return command[command.index(name) + 1]


def test_throughput_sends_the_paper_s_requests(tmp_path):
    asked = point("throughput", input_tokens=2000, output_tokens=256, total_tokens=15_000_000)
    words = command(subject(tmp_path / "m"), asked)
    assert words[1:3] == ["-m", "pipeline.measure.engine_program"]
    assert asked.recorded["num_prompts"] == 6649  # Appendix B.2: 15M tokens of 2,000 + 256
    assert asked.warm_up | {"seed": 0} == {"do": "throughput", "prompts": 1, "seed": 0, "input": 2000, "output": 8}
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--enable-chunked-prefill"} <= set(words)
    # A point may be compiled where others are not.
    ngram = {"method": "ngram", "num_speculative_tokens": 5}
    asked = point("latency", enforce_eager=False, speculative=ngram, request_rates=[1], seconds=1)
    words = command(subject(tmp_path / "m"), asked)
    assert words[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"] and "--enforce-eager" not in words
    assert json.loads(option(words, "--speculative-config")) == ngram
    assert option(words, "--generation-config") == "vllm"  # the model's would limit lengths and penalize tokens


@pytest.mark.parametrize("gpus", [0, 1])
def test_points_with_and_without_speculation_are_scheduled_alike(gpus, tmp_path, monkeypatch):
    """By itself vLLM schedules asynchronously where nothing is speculated, on GPUs."""
    model, engines = subject(tmp_path / "m"), set()
    for name, stated in {"ngram-on": gpus, "ngram-off": gpus, "first-8k": 0}.items():
        asked = run.read_point(name, typed(scale()).point(name), gpus=gpus, threads=1)
        assert ("--no-async-scheduling" in vllm_command(model, asked, 128, {})) == stated
        monkeypatch.setattr(type(asked), "memory", Mock(side_effect=OutOfMemory("full")))
        assert measure(model, asked, tmp_path / name)["settings"]["async_scheduling"] is (False if stated else None)
        engines.add(run.engine_key(asked))
    assert len(engines) == 2 + gpus


def test_variants_differ_only_in_what_makes_them_variants(tmp_path):
    asked = point("decode", input_tokens=100, batch_sizes=[1], repeats=1)

    def words(**changes):
        return command(subject(tmp_path / "m", **changes), asked)

    base = words()
    assert str(tmp_path / "m") in base and words(variant="swiftkv-50", spec=SPEC) == base
    merged = words(merge_all_layers=True)
    place = merged.index("--hf-overrides")
    assert json.loads(merged[place + 1]) == {"architectures": ["LlamaMergeAllLayersForCausalLM"]}
    assert merged[:place] + merged[place + 2 :] == base
    assert option(words(kv_cache="fp8"), "--kv-cache-dtype") == "fp8"
    assert option(words(weights="dummy"), "--load-format") == "dummy"
    assert option(words(quantization="fp8"), "--quantization") == "fp8"


@pytest.mark.parametrize("prompt, output, length", [(100, 16, 256), (2000, 256, 2432), (8000, 192, 8192)])
def test_sequence_length_is_rounded_and_never_beyond_the_model(prompt, output, length):
    assert point("kv_capacity", input_tokens=prompt, output_tokens=output).max_model_len(LLAMA) == length
    with refused("8193 positions, but the model has 8192"):
        point("kv_capacity", input_tokens=8000, output_tokens=193).max_model_len(LLAMA)


def test_the_environment_uses_every_thread_and_hides_nothing(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("ARCTIC_INFERENCE_ENABLED", "1")  # as on a machine that serves with it
    ours, gpus = engine_environment(gpus=0, threads=2), engine_environment(4, 1)
    assert ours["OMP_NUM_THREADS"] == "2" and ours["HF_HUB_OFFLINE"] == ours["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in ours and ours["VLLM_LOGGING_LEVEL"] == "INFO"
    assert ours["GLOO_SOCKET_IFNAME"] == "lo" and "VLLM_ENABLE_V1_MULTIPROCESSING" not in gpus
    assert gpus["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert (ours["VLLM_PLUGINS"], ours["ARCTIC_INFERENCE_ENABLED"]) == ("swiftkv", "0")


def cache(folder, kind="auto", **point_settings):
    return point("kv_capacity", **point_settings).memory(subject(folder / "m", kv_cache=kind))[served.CACHE_BYTES]


def test_a_limit_of_a_processor_is_for_weights_and_cache(tmp_path):
    assert cache(tmp_path) == GIBI
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        left = cache(tmp_path, memory_gib=0.5, engine={"dtype": dtype})
        assert left == GIBI // 2 - size * parameter_count(LLAMA)
    with pytest.raises(OutOfMemory, match="the weights take 0.001 GiB of the 0.0001 GiB there are"):
        cache(tmp_path, memory_gib=0.0001)


@pytest.mark.parametrize("limit", [None, 0.5])
def test_a_float32_processor_has_room_for_the_tokens_of_16_bits(tmp_path, monkeypatch, limit):
    sizes = {}
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(device, "compute_dtype", lambda place, dtype=dtype: dtype)
        asked = {"memory_gib": limit, "engine": {"dtype": "auto"}}
        assert option(command(subject(tmp_path / "m"), point("kv_capacity", **asked)), "--dtype") in str(dtype)
        sizes[dtype] = [cache(tmp_path, kind, **asked) for kind in ("auto", "fp8")]
    assert sizes[torch.float32] == [2 * sizes[torch.bfloat16][0], sizes[torch.bfloat16][1]]


def test_a_cache_that_the_processor_has_no_kernel_for_is_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    record = measure(subject(tmp_path / "m", kv_cache="fp8"), point("kv_capacity"), tmp_path / "work")
    assert (record["status"], record["result"]) == ("unavailable", None) and "AVX-512" in record["reason"]


DEVICE = served.InstalledGpu("NVIDIA H100 80GB HBM3", 80 * GIBI)


@pytest.mark.parametrize("limit, share", [(None, 0.9), (40, 0.5), (80, 0.9)])
def test_a_gpu_limit_is_a_share_of_the_device(tmp_path, monkeypatch, limit, share):
    monkeypatch.setattr(served, "installed_gpus", lambda: [DEVICE])
    asked = point("kv_capacity", gpus=1, memory_gib=limit)
    assert asked.memory(subject(tmp_path / "m")) == {served.GPU_SHARE: share}


def test_no_room_for_the_weights_is_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.measure.run.require_fp8_cache", lambda *_: None)  # no engine starts here
    model = subject(tmp_path / "m", spec=SPEC, kv_cache="fp8", weights="trained")
    (model.folder / "origin.json").write_text('{"id": "theirs"}')  # a published checkpoint
    record = measure(model, point("kv_capacity", memory_gib=1e-4), tmp_path / "work")
    assert (record["measure"], record["status"], record["result"]) == ("kv_capacity", "oom", None)
    assert (record["weights"], record["checkpoint"]) == ("published", {"id": "theirs"})
    assert headline(record).startswith("OOM, the weights take")
    settings = record["settings"]
    assert (settings["point"], settings["memory_gib"], settings["command"]) == ("a-point", 1e-4, None)
    assert settings["kv_cache_scales"] == "one a tensor" and record["spec"]["kv_cache_reduction"] == 0.25
    json.dumps(record, allow_nan=False)


def test_costs_are_those_of_the_cost_model(tmp_path):
    made = cost(subject(tmp_path / "m", spec=SPEC), 2000, 256)
    assert made["capacity_limit"] == pytest.approx(8 / 6)
    assert 1 < made["request_speedup_limit"] < made["prefill_speedup_limit"] < 2
    assert cost(subject(tmp_path / "m", kv_cache="fp8"), 9, 9)["capacity_limit"] == 2
    assert cost(subject(tmp_path / "m", merge_all_layers=True), 9, 9)["capacity_limit"] == 8


@pytest.mark.parametrize(
    "name, gpus, tokens, tflops, parameters",
    [("llama-3.1-8b", 1, 30_000, 480, 8e9), ("llama-3.1-70b", 4, 16_000, 560, 70e9)],
)
def test_normalized_flops_are_the_paper_s(name, gpus, tokens, tflops, parameters):
    # Section 4.3's two pairs of tokens/s and TFLOP/s a GPU mean two FLOPs for each of a nominal number of parameters.
    config = read_json(ROOT / f"resources/architectures/{name}.json")["config"]
    one = point("throughput", gpus=gpus, input_tokens=8000, output_tokens=256, total_tokens=1)
    result, exact = one.result(config, 8256 / tokens, 989.4), parameter_count(config) / parameters
    assert result["tokens_per_second"] == pytest.approx(tokens)
    assert result["tokens_per_second_per_gpu"] == pytest.approx(tokens / gpus)
    assert result["normalized_tflops_per_gpu"] == pytest.approx(tflops * exact, rel=1e-9) and 1 < exact < 1.01
    assert result["mfu_percent"] == pytest.approx(100 * tflops * exact / 989.4)


def test_of_experts_those_count_that_a_token_passes():
    config = read_json(ROOT / "resources/architectures/qwen3-30b-a3b.json")["config"]
    one = point("throughput", gpus=1, input_tokens=8000, output_tokens=256, total_tokens=1)
    result = one.result(config, 8256 / 20_000, 989.4)
    assert result["normalized_tflops_per_gpu"] == pytest.approx(121.7, rel=1e-3)
    assert result["mfu_percent"] == pytest.approx(12.3, rel=1e-2)


@pytest.mark.parametrize(
    "gpu, dtype, quantization, peak",
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", None, 989.4),
        ("NVIDIA H200", "bfloat16", "fp8", 1978.9),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", "fp8", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None, None),
    ],
)
def test_utilization_is_stated_only_where_the_peak_is_known(gpu, dtype, quantization, peak):
    assert peak_tflops(gpu, dtype, quantization) == peak


def test_a_dummy_config_is_the_one_a_checkpoint_has(tmp_path):
    from swiftkv.models import save_model

    model = tiny_swiftkv("llama", num_key_value_layers=3, key_value_group_size=2)
    save_model(model.to(torch.bfloat16), tmp_path / "trained")
    trained = read_json(tmp_path / "trained/config.json")
    ordinary = {k: v for k, v in trained.items() if not k.startswith(("swiftkv", "num_key_value_layers", "key_value"))}
    ordinary |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    write_dummy(ordinary, SwiftKVSpec(6, 3, 2), tmp_path / "dummy")
    assert read_json(tmp_path / "dummy/config.json") == trained
    assert not list((tmp_path / "dummy").glob("*.safetensors"))


def test_the_tokenizer_of_a_dummy_is_one_of_numbered_words(tmp_path):
    write_dummy(LLAMA, None, tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    tokens = [5, 0, 511, 17]
    assert len(tokenizer) == 512 and tokenizer(tokenizer.decode(tokens))["input_ids"] == tokens


def test_answers_are_scored_by_the_best_of_the_accepted_ones(monkeypatch):
    tokenizer, asked = byte_tokenizer(), ["Title: T", "Background: B", "Question: Q", "red", "light blue"]
    monkeypatch.setattr(offline, "plain_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr(offline, "choose_questions", lambda chats: [asked])
    texts = {VARIANT: "It is light blue.", BASELINE: "The Light Blue!"}
    ids = {side: [tokenizer(text)["input_ids"]] for side, text in texts.items()}
    replies = {side: [{"tokens": tokens, "first_token_seconds": 1}] for side, tokens in ids.items()}
    run = SimpleNamespace(subject=SimpleNamespace(folder=""), chats="", alternate=lambda jobs, warm_up: replies)
    result = point("answer", questions=1, draw={}).numbers(run)
    scores = [
        [result[side][name][0] for name in ("exact_match", "contained", "f1")]
        for side in ("answers", "baseline_answers")
    ]
    assert scores == [[0, 1, pytest.approx(2 / 3)], [1, 1, 1]]
