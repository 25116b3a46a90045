"""A pretend cluster for each file of tests, and the project's own SLURM profile fitted to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.programs import ROOT, read_yaml
from tests.slurm.cluster import running

from pipeline.gpus import PRETEND


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of eight pretend H100s each."""
    with running(tmp_path_factory.mktemp("slurm")) as started:
        yield started


class Workflow:
    """The smoke scale under profiles/slurm, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.override = read_yaml(ROOT / "profiles/smoke/override.yaml")
        self.profile = read_yaml(ROOT / "profiles/slurm/profile.yaml")
        gpus = {
            "tiny-random": ({"distill": 1, "score": 1, "serve": 0}, {"distill": 1}),
            "tiny-random-moe": ({"distill": 2, "score": 1, "serve": 0}, {"distill": 2}),
        }
        for name, (number, nodes) in gpus.items():
            self.override["models"][name] |= {"gpus": number, "nodes": nodes}
        for recipe in self.override["recipes"].values():
            recipe["micro_batch_size"] = 1  # two ranks share a batch of two
        # vLLM looks for real GPUs where a model is served on some; here its jobs ask for one and compute on the processor.
        site = read_yaml(ROOT / "profiles/slurm/site.yaml")["gpu_jobs"]
        self.profile["set-resources"]["measure"] = site["resources"] | {"gpu": 1, "mem_mb": 4000}
        self.profile |= {
            "configfile": [str(ROOT / "profiles/slurm/site.yaml"), str(folder / "override.yaml")],
            "jobs": 8,
            "retries": 0,
            "latency-wait": 10,
            "slurm-logdir": str(folder / "slurm-logs"),
            "slurm-init-seconds-before-status-checks": 1,  # a poll that finds nothing lets the next one wait ten more
        }
        subprocess.run(["generate-slurm-partition-config", "-o", folder / "partitions.yaml"], check=True)
        written = read_yaml(folder / "partitions.yaml")
        # A partition that others use for jobs without GPUs; here it is of the same nodes.
        del written["partitions"]["cpu"]["max_gpu"]
        del written["partitions"]["spare"]  # cancels its jobs for others
        (folder / "partitions.yaml").write_text(yaml.safe_dump(written))

    def write(self):
        for name in ("profile", "override"):
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(getattr(self, name), sort_keys=False))

    def command(self, *arguments):
        self.write()
        words = [Path(sys.executable).with_name("snakemake"), "--snakefile", ROOT / "Snakefile", *arguments]
        return [str(word) for word in [*words, "--directory", self.folder, "--profile", self.folder]]

    def environment(self):
        """What it runs in; a thread a process, for a machine with fewer cores than the cluster pretends to have."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", PRETEND: "1"}

    def run(self, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment(), capture_output=True, text=True)

    def start(self, *arguments):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self.command(*arguments), env=self.environment(), **quiet)


@pytest.fixture
def workflow(tmp_path):
    return Workflow(tmp_path)
