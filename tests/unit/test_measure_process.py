"""A program and all it starts are gone when the block is left; what vLLM ran, and why it failed, is read from what it prints."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.measure_helpers import alive

from pipeline.measure import engine
from pipeline.measure.engine import EngineFailure, OutOfMemory, failure, observed
from pipeline.measure.worker import serving, worker

# A stand-in for `vllm serve`: an engine process that ignores a polite end, and a server that says it is well.
FAKE = """
import argparse, http.server, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int); parser.add_argument("--host"); parser.add_argument("--served-model-name")
parser.add_argument("--die"); parser.add_argument("--hang", action="store_true")
parser.add_argument("--orphan", action="store_true")
o = parser.parse_args()
assert o.host == "127.0.0.1"
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
engine = subprocess.Popen([sys.executable, "-c", code])
print("engine", engine.pid, "server", os.getpid(), flush=True)
if o.die:
    print(o.die, flush=True)
    os._exit(3)
if o.hang:
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
def leave(*_):
    if not o.orphan:
        engine.kill(); engine.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
http.server.HTTPServer(("127.0.0.1", o.port), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path):
    """Command line of the stand-in, with options."""
    file = tmp_path / "fake_server.py"
    file.write_text(FAKE)
    return lambda *options: [sys.executable, str(file), *options]


def pids(log: Path) -> list[int]:
    """Engine and server, once the stand-in has said them."""
    for _ in range(200):
        words = log.read_text().split() if log.exists() else []
        if len(words) >= 4:
            return [int(words[1]), int(words[3])]
        time.sleep(0.05)
    raise AssertionError("the stand-in did not start")


@pytest.mark.parametrize("options", [(), ("--orphan",)])
def test_a_server_is_gone_with_its_engine_when_the_block_is_left(fake, tmp_path, options):
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="measuring failed"), serving(fake(*options), "m", log, timeout=20):
        numbers = pids(log)
        assert all(map(alive, numbers))
        raise RuntimeError("measuring failed")
    assert not any(map(alive, numbers))  # at once: leaving the block waits for it


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        (["--hang"], EngineFailure, "did not answer within 1 seconds"),
        (["--die", "ERROR x.py:1] ValueError: no such option"], EngineFailure, "status 3: ValueError: no such option"),
        (["--die", "ValueError: No available memory for the cache blocks. Try"], OutOfMemory, "not enough memory"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(fake, tmp_path, options, kind, sentence):
    with pytest.raises(kind, match=sentence) as error, serving(fake(*options), "m", tmp_path / "log", timeout=1):
        pass
    assert "\n" not in str(error.value)
    assert not any(map(alive, pids(tmp_path / "log")))


PROGRAM = """
import pathlib, sys, time
from pipeline.measure.worker import serving
with serving(sys.argv[2:], "m", pathlib.Path(sys.argv[1]), timeout=20):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_program_leaves_nothing_behind(fake, tmp_path, number):
    log = tmp_path / "log"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log), *fake("--orphan")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests run in the background of a script inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stdout.readline() == "up\n"
    numbers = pids(log)
    os.killpg(program.pid, number)
    assert program.wait(30) != 0
    end = time.monotonic() + 30
    while any(map(alive, numbers)):
        assert time.monotonic() < end
        time.sleep(0.05)


ECHO = """
import subprocess, sys
from pipeline.measure.worker import answer
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore])
answer(sys.argv[1], lambda message: {"child": child.pid, "answer": 1 / message})
"""


def start(program, tmp_path):
    return worker([sys.executable, "-c", program], tmp_path / "log", os.environ, "the worker")


def test_a_worker_answers_until_a_job_fails_and_leaves_nothing_behind(tmp_path):
    with start(ECHO, tmp_path) as divide:
        found = divide.ask(2)
        assert found["answer"] == 0.5 and alive(found["child"])
        with pytest.raises(EngineFailure, match="the worker ended with status 1: ZeroDivisionError: division by zero"):
            divide.ask(0)
    assert not alive(found["child"])


# Printed by vLLM 0.32.0 on a CPU; long fields cut out.
CPU_LOG = """\
(MainProcess pid=11) INFO 11-21 06:34:45 [model.py:733] Resolved architecture: LlamaForCausalLM
(MainProcess pid=11) WARNING 11-21 06:34:45 [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.
(EngineCore pid=12) INFO 11-21 06:34:55 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='MODEL', speculative_config=None, tokenizer='MODEL', dtype=torch.bfloat16, max_seq_len=128, load_format=auto, tensor_parallel_size=1, quantization=None, quantization_config=None, enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, seed=0, served_model_name=MODEL, enable_prefix_caching=False, enable_chunked_prefill=True, pooler_config=None, compilation_config={'mode': <CompilationMode.NONE: 0>, 'backend': 'inductor', 'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'cudagraph_num_of_warmups': 0}
(EngineCore pid=12) INFO 11-21 06:35:05 [cpu_worker.py:260] Explicitly set (0.02/19.34) GiB for KV cache on node 0.
(EngineCore pid=12) INFO 11-21 06:35:05 [kv_cache_utils.py:2327] CPU KV cache size: 19,456 tokens, Maximum concurrency for 128 tokens per request: 152.00x
"""  # noqa: E501
CUDA_LOG = """\
(EngineCore pid=2) INFO 08-25 14:58:33 [core.py:133] Initializing a V1 LLM engine (v0.26.0) with config: model='MODEL', dtype=torch.bfloat16, quantization=fp8, enforce_eager=False, kv_cache_dtype=fp8, device_config=cuda, enable_prefix_caching=False, enable_chunked_prefill=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_num_of_warmups': 1}
(EngineCore pid=2) INFO 08-25 14:58:34 [cuda.py:482] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN'].
(EngineCore pid=2) INFO 08-25 14:58:34 [flash_attn.py:776] Using FlashAttention version 3
(EngineCore pid=2) INFO 08-25 14:58:50 [gpu_worker.py:760] Available KV cache memory: 54.31 GiB
(EngineCore pid=2) INFO 08-25 14:58:50 [kv_cache_utils.py:2327] GPU KV cache size: 1,234,567 tokens, Maximum concurrency for 163,840 tokens per request: 7.54x
"""  # noqa: E501
FAST = "INFO 11-21 [settings.py:61] SwiftKV: layers 14 to 29 read 16 KV cache(s) made from layer 14's input; {}\n"


def test_a_cpu_log():
    assert observed(CPU_LOG, kv_cache_dtype="auto", swiftkv=False) | {"vllm": None} == {
        "vllm": None,
        "attention_backend": "CPU_ATTN",
        "has_flashinfer": None,
        "compilation": "eager",
        "kv_cache_tokens": 19456,
        "kv_cache_gib": None,
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
        "chunked_prefill": True,
        "dtype": "bfloat16",
        "quantization": None,
        "fast_prefill": False,
    }


def test_a_cuda_log(monkeypatch):
    monkeypatch.setattr(engine, "has_flashinfer", lambda: True)
    seen = observed(CUDA_LOG, kv_cache_dtype="fp8", swiftkv=False)
    assert seen["attention_backend"] == "FLASH_ATTN" and seen["has_flashinfer"]
    assert seen["compilation"] == "compiled, vllm_compile, CUDA graphs full_and_piecewise"
    assert (seen["kv_cache_tokens"], seen["kv_cache_gib"], seen["kv_cache_dtype"]) == (1234567, 54.31, "fp8")
    assert seen["quantization"] == "fp8"


@pytest.mark.parametrize("found", [True, False])
def test_vllm_itself_says_whether_it_has_flashinfer(found, tmp_path, monkeypatch):
    (tmp_path / "vllm/utils").mkdir(parents=True)
    for folder in ("vllm", "vllm/utils"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "vllm/utils/flashinfer.py").write_text(
        f"print('WARNING')\n\n\ndef has_flashinfer():\n    return {found}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert engine.has_flashinfer.__wrapped__() is found


@pytest.mark.parametrize(
    ("words", "fast"),
    [("prompt tokens skip 16 layers (for ...", True), ("every token runs at full depth", False), ("?", None)],
)
def test_the_mode_is_what_the_plugin_says(words, fast):
    assert observed(CPU_LOG + FAST.format(words), kv_cache_dtype="auto", swiftkv=True)["fast_prefill"] is fast


NO_BLOCKS = (
    "(EngineCore pid=1) ERROR 11-21 [core.py:99] ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.\n"
)
TOO_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (640), (0.01 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated ...\n"
)
CUDA_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity\n"


@pytest.mark.parametrize("log", [NO_BLOCKS, TOO_SMALL, CUDA_MEMORY])
def test_too_little_memory_is_a_value(log):
    error = failure(
        "vllm serve", 1, CPU_LOG + log + "RuntimeError: Engine core initialization failed. See root cause", "LOG"
    )
    assert isinstance(error, OutOfMemory)
    assert "\n" not in str(error) and str(error).startswith("vLLM has not enough memory: ")


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "(EngineCore pid=2) ERROR [x.py:2] RuntimeError: Worker failed with error 'Unsupported', please check\n"
            "(Worker pid=1) ERROR 11-21 [x.py:1] RuntimeError: Unsupported CPU attention configuration: head_dim=16\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n",
            "vllm serve ended with status 1: RuntimeError: Unsupported CPU attention configuration: head_dim=16",
        ),
        (
            "pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, too long [type=x]\n",
            "vllm serve ended with status 1: ValidationError: 1 validation error for ModelConfig: too long",
        ),
        ("usage: vllm\nvllm: error: unrecognized arguments: --no\n", "unrecognized arguments: --no"),
        ("Killed\n", "vllm serve ended with status 1: Killed"),
        ("", "vllm serve ended with status 1: it printed nothing"),
        # Another process holds the memory: not a property of the model.
        (
            "ValueError: Available memory on node 0 (1.0/20.0 GiB) on kv cache allocation is less than requested\n",
            "ValueError: Available memory on node 0",
        ),
    ],
)
def test_any_other_failure_is_one_sentence(log, sentence):
    error = failure("vllm serve", 1, log, "LOG")
    assert isinstance(error, EngineFailure) and not isinstance(error, OutOfMemory)
    assert sentence in str(error) and "\n" not in str(error)
