"""The programs of `make probe`'s job: `NODES GPUS FOLDER` checks a node; without arguments, a rank joins an all-reduce."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.config import PROJECT
from pipeline.gpus import PRETEND, compute_with
from pipeline.run.check import Report
from swiftkv.cost import GIGA
from swiftkv.errors import UserError, one_line
from swiftkv.io import check_space, write_text

EXCHANGE = ".probe"  # a folder in which each node leaves a file for the others
# The least room of a folder for temporary files, in bytes: compiled kernels and programs.
TEMPORARY = 2e9
# How long a node waits for the files of others: their checks differ in time, and NFS keeps listings for 30 seconds.
EXCHANGE_SECONDS = 35
MEETING_SECONDS = 45
# Libraries of CUDA that are taken from LD_LIBRARY_PATH before those of the environment.
CUDA_LIBRARIES = ("libcudart.so*", "libcublas.so*", "libcudnn.so*", "libnccl.so*")
LIBRARIES = """
import deepspeed, torch, transformers, vllm
from vllm.platforms import current_platform
from vllm.utils.flashinfer import has_flashinfer
current_platform.import_kernels()
if torch.version.cuda:
    import vllm.vllm_flash_attn
with_flashinfer = "with" if has_flashinfer() else "without"
print(f"torch {torch.__version__}, vLLM {vllm.__version__} {with_flashinfer} FlashInfer, with compiled libraries")
"""


def check_node(nodes: int, gpus: int, results: Path) -> None:
    """Print a line for each check of this node.

    Args:
        nodes, gpus: of the job, and of each node.
        results: the exchange folder in the results.
    """
    from huggingface_hub import constants

    node = int(os.environ.get("SLURM_NODEID", 0))
    name = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    cache = Path(constants.HF_HUB_CACHE, EXCHANGE)
    for folder in (results, cache):
        leave(folder, node)
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    shared = "name a folder that every node sees and may write to"
    report = Report(partial(print, flush=True))
    # Subject, limit in seconds, how to mend it, check
    checks: list[tuple[str, int, str, Callable[[], str]]] = [
        ("gpus", 45, "see `nvidia-smi` there, its driver and gpu_model of site.yaml", partial(check_gpus, gpus)),
        ("libraries", 50, "make the environment anew, or use the image (docs/environment.md)", check_libraries),
        ("compiler", 30, "install gcc and python3-dev there, or use the image (docs/environment.md)", check_compiler),
        ("modules", 30, "`module purge` or unset it before the run; CUDA_HOME may name a toolkit", check_modules),
        ("TMPDIR", 10, "set TMPDIR to another folder of the node", partial(check_temporary, temporary)),
        ("read", 20, "see the file system there", partial(check_reading, cache.parent, results)),
        ("results", EXCHANGE_SECONDS + 5, shared, partial(check_shared, results, nodes, EXCHANGE_SECONDS)),
        ("HF_HOME", 10, shared, partial(check_shared, cache, nodes, 5)),
        ("names", 20, "add it to the cluster's DNS or to /etc/hosts there", partial(check_names, results, nodes)),
    ]
    for subject, seconds, mend, function in checks:
        report.check(f"{subject} ({name})", limited, function, seconds, mend)


def limited(function: Callable[[], str], seconds: int, mend: str) -> str:
    """Call a check; a `UserError` with how to mend it if it fails or takes longer than some seconds."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"no answer within {seconds} seconds")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        return function()
    except UserError:
        raise
    except Exception as error:  # whatever a library raises
        raise UserError(f"{one_line(error)}; {mend}") from None
    finally:
        signal.alarm(0)


def check_gpus(gpus: int) -> str:
    """Check that each GPU of the job computes; return their model and driver."""
    if PRETEND in os.environ:
        return f"{gpus} pretended"
    compute_with(None, gpus)
    import torch

    for number in range(gpus):
        torch.ones(1, device=f"cuda:{number}").item()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return f"{gpus} x {torch.cuda.get_device_name()}, driver {driver}, CUDA {torch.version.cuda}"


def check_libraries() -> str:
    """Import the libraries, the compiled ones of vLLM too, in a process of their own."""
    run = subprocess.run([sys.executable, "-c", LIBRARIES], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = run.stdout.splitlines() or [f"Python ended with status {run.returncode}"]
    # vLLM goes on without its compiled libraries, with a warning.
    broken = [line for line in lines if "Failed to import" in line]
    if run.returncode or broken:
        raise ImportError((broken or lines)[-1])
    return lines[-1]


def check_compiler() -> str:
    """Compile a program with Python's headers, as Triton does."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    headers = sysconfig.get_path("include")
    command = [compiler, "-fsyntax-only", f"-I{headers}", "-x", "c", "-"]
    run = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True)
    if run.returncode:
        raise OSError(next((line for line in run.stderr.splitlines() if "error" in line), f"{compiler} fails"))
    return f"{compiler}, headers in {headers}"


def check_modules() -> str:
    """Check that no environment variable puts other packages or another CUDA before those of the environment."""

    def entries(variable: str) -> list[Path]:
        return [Path(entry) for entry in os.environ.get(variable, "").split(os.pathsep) if entry]

    for entry in entries("PYTHONPATH"):
        if not entry.resolve().is_relative_to(PROJECT):
            raise OSError(f"PYTHONPATH has {entry}, where packages come before those of the environment")
    for folder in entries("LD_LIBRARY_PATH"):
        if any(file for name in CUDA_LIBRARIES for file in folder.glob(name)):
            raise OSError(f"LD_LIBRARY_PATH has {folder}, whose CUDA comes before that of the environment")
    import torch

    # Where FlashInfer looks
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=f"{home}/bin" if home else f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if nvcc is None:
        return "none of other packages or another CUDA; no nvcc"
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = match[1] if (match := re.search(r"release ([\d.]+)", version)) else "unknown"
    if torch.version.cuda and release.split(".")[0] != torch.version.cuda.split(".")[0]:
        raise OSError(f"{nvcc} is of CUDA {release} and torch of {torch.version.cuda}, so FlashInfer cannot compile")
    return f"none of other packages or another CUDA; {nvcc} of CUDA {release}"


def check_temporary(folder: Path) -> str:
    """Check that a folder for temporary files takes files and, by the length of its path, the sockets of vLLM."""
    check_space(folder, TEMPORARY)
    place = Path(os.environ.get("VLLM_RPC_BASE_PATH", folder), f"{os.getpid():036}")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    place.unlink()
    place = folder / f"probe-{os.getpid()}"
    place.write_bytes(bytes(2**20))  # a quota may be below the free space
    place.unlink()
    return f"{folder}, {shutil.disk_usage(folder).free / GIGA:.0f} GB free"


def check_reading(cache: Path, results: Path) -> str:
    """Measure how fast this node reads the largest file of the hub cache, or a new one if there is none of 256 MB."""
    file = max(cache.glob("*/blobs/*"), key=lambda file: file.stat().st_size, default=None)
    if file is None or file.stat().st_size < 2**28:
        file = results / f"read-{socket.gethostname()}-{os.getpid()}"
        with file.open("wb") as new:
            for _ in range(16):
                new.write(os.urandom(2**24))
            os.fsync(new.fileno())
    with file.open("rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # not from this node's memory
        begin, size = time.monotonic(), 0
        while size < 4 * GIGA and time.monotonic() < begin + 6 and (piece := source.read(2**24)):
            size += len(piece)
        speed = size / (time.monotonic() - begin) / GIGA
    return f"{speed:.2f} GB/s from {file}; `make plan` assumes planning.gpu.load_gb"


def leave(folder: Path, node: int) -> None:
    """Leave the host name of this node for the others, if the folder is here and can be written to."""
    with contextlib.suppress(OSError):  # check_shared tells
        if folder.is_dir():
            write_text(folder / f"node-{node}", socket.gethostname())


def hosts(folder: Path, nodes: int, seconds: float = 0) -> list[str]:
    """Return the host names that nodes left in a folder; wait some seconds for those of all."""
    files, deadline = [folder / f"node-{node}" for node in range(nodes)], time.monotonic() + seconds
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [file.read_text(encoding="utf-8") for file in files if file.exists()]


def check_shared(folder: Path, nodes: int, seconds: float) -> str:
    """Check that the nodes and the machine of `make probe` see the same folder; wait some seconds for other nodes."""
    place = folder.parent.absolute()
    if not folder.is_dir():
        raise OSError(f"{place} is not the folder of this name where `make probe` runs")
    seen = len(hosts(folder, nodes, seconds))
    if seen < nodes:
        raise OSError(f"{place} shows the files of {seen} of {nodes} nodes")
    return f"{place} is seen by all nodes, {shutil.disk_usage(folder).free / GIGA:.0f} GB free"


def check_names(folder: Path, nodes: int) -> str:
    """Check that this node finds an address of every node's host name, and of another node not its own."""
    names = sorted(set(hosts(folder, nodes)))
    for name in names:
        try:
            address = socket.getaddrinfo(name, None)[0][4][0]
        except OSError:
            raise OSError(f"no address of {name}, a node of this job") from None
        if name != socket.gethostname() and ipaddress.ip_address(address).is_loopback:
            raise OSError(f"{name}, another node, has here the address {address}, which is this node's own")
    return f"addresses of {', '.join(names)}"


def check_all_reduce() -> None:
    """Sum 1 GB over all ranks, 1 MB without GPUs, and print the speed on the first one."""
    if "RANK" not in os.environ:
        print("ok    all-reduce: one GPU has none")
        return
    import torch
    from torch import distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    limit = datetime.timedelta(seconds=MEETING_SECONDS)
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=limit)
    ranks, times = distributed.get_world_size(), []
    numbers = torch.ones(2**28 if cuda else 2**18, device="cuda" if cuda else "cpu")
    for _ in range(3):
        begin = time.monotonic()
        distributed.all_reduce(numbers)
        value = numbers[-1].item()  # waits for it
        times.append(time.monotonic() - begin)
    if value != ranks**3:
        raise ArithmeticError(f"{ranks} ranks add to {value} and not to {ranks**3}")
    if distributed.get_rank() == 0:
        size = numbers.nbytes / GIGA
        speed = 2 * (ranks - 1) / ranks * size / min(times)
        print(f"ok    all-reduce: {size:.3f} GB over {ranks} ranks by {distributed.get_backend()}, {speed:.1f} GB/s")
    distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check_node(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        try:
            check_all_reduce()
        except Exception as error:  # whatever a library raises
            sys.exit(f"rank {os.environ['RANK']} on {socket.gethostname()}: {one_line(error)}")
