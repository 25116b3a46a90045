"""`make probe` plans a job as large as the largest, and a node's checks see what a real SLURM here cannot have."""

import socket
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from tests.conftest import refused
from tests.programs import write_program
from tests.unit.slurm_stand_ins import GPU_JOB, SETTINGS, jobs

from pipeline.run import probe, probe_rank


def test_the_job_is_as_large_as_the_largest_and_in_its_partition(tmp_path):
    wide = GPU_JOB | {"gpu": 16, "nodes": 2, "mpi": "srun", "tasks": 2, "tasks_per_gpu": 0, "_nodes": 2, "mem_mib": 1}
    job = probe.largest(jobs(("score", GPU_JOB), ("distill", wide | {"gpu": 8}), ("distill", wide), ("pack", {})))
    # The plugin would choose this one for a job of minutes.
    limits = {"max_gpu": 32, "max_runtime": "1-00:00:00", "max_threads": 128}
    partitions = {"partitions": {"h100": limits, "test": limits | {"max_runtime": "1:00:00"}}}
    (tmp_path / "partitions.yaml").write_text(yaml.safe_dump(partitions))
    settings = SimpleNamespace(**vars(SETTINGS) | {"partition_config": tmp_path / "partitions.yaml"})
    expected = {name: value for name, value in wide.items() if name not in ("_nodes", "mem_mib")}
    expected |= {"runtime": probe.MINUTES}
    assert probe.probe_resources(job, settings) == expected | {"slurm_partition": "h100"}
    assert probe.probe_resources(job, None) == expected
    with refused("nothing to probe"):
        probe.largest(jobs(("pack", {})))


def test_another_nodes_name_leads_to_this_node(tmp_path, monkeypatch):
    (tmp_path / "node-0").write_text("n1")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [(0, 0, 0, "", ("127.0.1.1", 0))])
    with pytest.raises(OSError, match="n1, another node"):
        probe_rank.check_names(tmp_path, 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")  # its own may be, as Debian has it
    assert "n1" in probe_rank.check_names(tmp_path, 1)


def test_a_compiler_of_another_cuda(tmp_path, monkeypatch):
    write_program(tmp_path / "bin/nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    for name, value in {"CUDA_HOME": str(tmp_path), "PYTHONPATH": "", "LD_LIBRARY_PATH": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "12.4" in probe_rank.check_modules()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(OSError, match="CUDA 12.4"):
        probe_rank.check_modules()


def test_sockets_of_a_long_folder(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    with pytest.raises(OSError, match="too long"):
        probe_rank.check_temporary(long)
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/tmp")
    assert str(long) in probe_rank.check_temporary(long)
    assert not list(long.iterdir())


def test_a_check_that_hangs_or_fails_says_how_to_mend_it():
    def broken():
        raise RuntimeError("driver\ntoo old")

    with refused("driver too old; install another"):
        probe_rank.limited(broken, 5, "install another")
    with refused("no answer within 1 seconds; restart it"):
        probe_rank.limited(lambda: str(time.sleep(60)), 1, "restart it")
