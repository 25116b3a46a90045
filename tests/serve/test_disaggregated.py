"""A prompt computed in one engine and answered by another in its own process, over NIXL; where NIXL is installed."""

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.serve.conftest import engine_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="needs `pip install nixl`"),
]
ENGINE = {"block_size": 32, "max_num_batched_tokens": 64, "enable_prefix_caching": True}
SECONDS = 600


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("shape", [(4, 4), (10, 1)], ids=["groups of 4", "no groups"])
def test_answers_from_another_engines_caches_equal_huggingface(checkpoint, compare, prompts, tmp_path, shape):
    folder = checkpoint("llama", *shape)
    case = tmp_path / "case.json"
    case.write_text(json.dumps({"model": str(folder), "engine": ENGINE, "prompts": prompts}))
    processes = []
    try:
        for role in ("prefill", "decode"):
            own = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            command = [sys.executable, Path(__file__).with_name("disaggregated.py"), role, case, tmp_path]
            environment = engine_environment(tmp_path / role) | own | {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self"}
            with (tmp_path / f"{role}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
        for role, process in zip(("decode", "prefill"), reversed(processes), strict=True):
            assert process.wait(SECONDS) == 0, (tmp_path / f"{role}.log").read_text()[-4000:]
    finally:
        for process in processes:
            process.kill()
    compare(folder, prompts, json.loads((tmp_path / "answers.json").read_text()))
