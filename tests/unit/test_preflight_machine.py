"""What this machine lacks for a profile is named before anything runs."""

import importlib.metadata
import os
from pathlib import Path

import pytest
from swiftkv.planning.profile import memory_mb
from swiftkv.preflight import machine
from swiftkv.preflight.checks import Report
from swiftkv.preflight.machine import GB, Gpu, check_versions, lock_file
from swiftkv.pricing.work import PlannedJob, Resources

from swiftkv.errors import UserError
from tests.programs import write_program


def job(mem_mb, threads=1, rule="distill"):
    return PlannedJob(rule, threads=threads, resources=Resources(mem_mb=mem_mb))


def test_a_full_disk(tmp_path):
    folder = tmp_path / "results" / "local"
    usage = {tmp_path: (100 * GB, 95 * GB, 5 * GB)}
    assert "5 GB free" in machine.check_space(folder, 4 * GB, usage.__getitem__)
    with pytest.raises(UserError, match=r"results/local has 5.0 GB free and at least 6.0 GB"):
        machine.check_space(folder, 6 * GB, usage.__getitem__)
    with pytest.raises(UserError, match="GB free"):
        machine.check_space(tmp_path, 10**18)


def test_a_folder_that_cannot_be_written(tmp_path):
    assert machine.check_writable(tmp_path / "results")
    assert not (tmp_path / "results").exists()
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/results")):
        with pytest.raises(UserError, match=f"{place} cannot be written to"):
            machine.check_writable(place)


def test_too_little_memory():
    jobs = [job(5000), job(5000), job(8000, threads=4, rule="measure"), PlannedJob("all")]
    room = "2 cores and 16.0 GB of memory"  # the cores alone let one measure at a time
    assert machine.check_memory(jobs, 2, 16000) == room
    assert machine.check_memory(jobs, 8, 15000).endswith("so at most 1 of rule measure at once (8.0 GB each)")
    assert "at most 3 of rule distill at once" in machine.check_memory([job(5000)], 8, 16000)
    assert "at once" not in machine.check_memory([PlannedJob("all")], 8, 16000)
    with pytest.raises(UserError, match="a job of rule measure takes 8000 MB of memory and there are 6000"):
        machine.check_memory(jobs, 2, 6000)
    assert memory_mb() > 0


def test_too_few_cores():
    assert machine.check_cores(2, 2)
    with pytest.raises(UserError, match="uses 4 cores and this machine has 2"):
        machine.check_cores(4, 2)


def gpus(tmp_path, monkeypatch, script):
    write_program(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return machine.gpus()


def test_too_few_gpus(tmp_path, monkeypatch):
    found = gpus(tmp_path, monkeypatch, 'echo "NVIDIA H100 80GB HBM3, 550.54.15, 9.0"')
    assert found == [Gpu("NVIDIA H100 80GB HBM3", "550.54.15", (9, 0))]
    assert machine.check_gpus(found, 1)
    with pytest.raises(UserError, match="shares out 8 GPUs and this machine has 1"):
        machine.check_gpus(found, 8)


def test_a_broken_or_missing_driver(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="nvidia-smi finds no GPU .*couldn't communicate"):
        gpus(tmp_path, monkeypatch, 'echo "NVIDIA-SMI has failed because it couldn\'t communicate"; exit 9')
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="nvidia-smi is not here"):
        machine.gpus()


def test_a_driver_that_is_too_old():
    found = [Gpu("A", "525.60.13", (9, 0))]
    assert machine.check_driver(found, "12.8")
    with pytest.raises(UserError, match="driver is 525.60.13 and torch's CUDA 13.0 needs 580 or newer"):
        machine.check_driver(found, "13.0")


def test_a_gpu_without_fp8():
    assert machine.check_fp8([Gpu("L4", "550", (8, 9)), Gpu("H100", "550", (9, 0))])
    with pytest.raises(UserError, match="NVIDIA A100 has compute capability 8.0 and FP8 needs 8.9"):
        machine.check_fp8([Gpu("NVIDIA A100", "550", (8, 0))])


def installed(**versions):
    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    return version


def test_versions_that_differ_from_the_lock(tmp_path):
    lock = tmp_path / "envs" / "cpu.lock"
    lock.parent.mkdir()
    lock.write_text("# comment\ntorch==2.13.0+cpu\nnumpy==2.3.1 \\\n    --hash=sha256:0\nabsent==1.0\n")
    assert lock_file(tmp_path, installed(torch="2.13.0+cpu")) == lock
    with pytest.raises(UserError, match="gpu.lock does not exist"):
        lock_file(tmp_path, installed(torch="2.13.0"))
    good = {"torch": "2.13.0+cpu", "numpy": "2.3.1", "absent": "1.0"}
    assert check_versions(lock, installed(**good)) == "3 distributions as in envs/cpu.lock"
    with pytest.raises(
        UserError, match="numpy is 2.4.0 and should be 2.3.1; absent is missing and should be 1.0, says envs/cpu.lock"
    ):
        check_versions(lock, installed(torch="2.13.0+cpu", numpy="2.4.0"))


def test_a_report_goes_on_after_a_failure():
    def fails():
        raise UserError("it is broken")

    lines = []
    report = Report(lines.append)
    assert report.check("first", fails) is None
    assert report.check("second", lambda: 2, lambda number: f"{number} found") == 2
    assert lines == ["FAIL  first: it is broken", "ok    second: 2 found"]
    with pytest.raises(UserError, match="1 of the checks failed"):
        report.end()
