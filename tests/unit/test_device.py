"""The number format that `auto` means, the GPU of a rank, and ranks that do not meet."""

import os
import subprocess
import sys

import pytest
import torch
from tests.programs import ROOT, run, succeed

from pipeline.engines.process import free_port
from swiftkv import device

IMPORTS = """
import importlib, pkgutil
from unittest.mock import patch
import swiftkv, torch

with patch("torch.cuda.is_available", side_effect=RuntimeError("looked for GPUs")):
    for module in pkgutil.walk_packages(swiftkv.__path__, "swiftkv."):
        if not module.name.startswith("swiftkv.serve."):  # needs vLLM, which asks once it is imported
            importlib.import_module(module.name)
import swiftkv.models
from vllm import LLM
"""


def test_importing_the_method_looks_for_no_gpu_so_that_vllm_can_fork_afterwards():
    succeed(sys.executable, "-c", IMPORTS)


SAVES = """
import sys
from swiftkv.models import save_model
from tests.conftest import tiny_teacher

save_model(tiny_teacher(), sys.argv[1])
"""


def test_a_model_is_saved_on_a_processor_without_a_warning_of_missing_gpus(tmp_path):
    """DeepSpeed's, which accelerate imports."""
    saved = run(sys.executable, "-c", SAVES, tmp_path / "model", cwd=ROOT)
    assert (saved.returncode, saved.stdout, saved.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "has, kernels, expected",
    [
        ({"avx2"}, "AVX2", torch.float32),
        ({"avx512_f", "avx512_bf16"}, "AVX512", torch.bfloat16),
        ({"avx512_f", "amx_bf16"}, "AVX512", torch.bfloat16),
        ({"avx512_f", "avx512_bf16"}, "AVX2", torch.float32),  # torch held to AVX2 by ATEN_CPU_CAPABILITY
    ],
)
def test_auto_is_bfloat16_where_the_device_multiplies_it(has, kernels, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kernels)
    assert device.compute_dtype("cpu") == expected
    assert device.compute_dtype("cuda") == torch.bfloat16
    assert device.dtype_name("auto", "cpu") == str(expected).removeprefix("torch.")
    assert device.dtype_name("float16", "cpu") == "float16"


def test_a_rank_takes_the_gpu_of_its_place_on_its_node(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)
    monkeypatch.setattr(device, "compute_device", lambda: "cpu")  # there is none to add on
    monkeypatch.setenv("RANK", "13")
    monkeypatch.setenv("LOCAL_RANK", "5")
    device.join_ranks()
    assert taken == [5]


JOIN = "from datetime import timedelta; from swiftkv.device import join_ranks; join_ranks(timedelta(seconds=4))"
HANG = "import time, torch; torch.distributed.init_process_group('gloo'); time.sleep(60)"


@pytest.mark.parametrize("other", [None, HANG], ids=["never comes", "hangs after the start"])
def test_a_rank_that_is_left_alone_ends_with_one_sentence(other):
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def rank(number, code):
        environment = os.environ | address | {"RANK": str(number)}
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)

    ranks = [rank(number, code) for number, code in enumerate((JOIN, other)) if code]
    try:
        _, said = ranks[0].communicate(timeout=50)
    finally:
        for process in ranks:
            process.kill()
    (sentence,) = (line for line in said.splitlines() if line.startswith("error: "))
    assert ranks[0].returncode == 1 and "Traceback" not in said
    assert "rank 0 of 2" in sentence and f"127.0.0.1:{address['MASTER_PORT']}" in sentence
