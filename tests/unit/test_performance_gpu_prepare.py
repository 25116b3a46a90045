"""How the environment of a GPU machine without a package index travels: what is carried, and how damage is noticed."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_PIP = """#!/usr/bin/env {python}
import json, os, pathlib, runpy, sys
words = sys.argv[1:]
if words[:2] != ["-m", "pip"]:
    os.execv({python!r}, [{python!r}, *words])
if "--report" in words:
    assert any(word.startswith("snakemake") for word in words) and "--find-links" in words
    entries = [("vllm", "0.26.0"), ("torch", "2.11.0"), ("Some_Thing", "1.0"), ("numpy", "2.3.5"), ("tilelang", "0.1")]
    report = {{"install": [{{"metadata": {{"name": n, "version": v}}}} for n, v in entries]}}
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
elif "wheel" in words:
    folder = pathlib.Path(words[words.index("--wheel-dir") + 1])
    (folder / "connection_pool-0.0.3-py3-none-any.whl").write_bytes(b"made")
elif "download" in words:
    folder = pathlib.Path(words[words.index("--dest") + 1])
    names = ["arctic_inference-0.3.0.tar.gz"]
    if "--requirement" in words:
        names = pathlib.Path(words[words.index("--requirement") + 1]).read_text().split()
    for name in names:
        (folder / name.replace("==", "-")).write_bytes(os.urandom(3000))
else:
    print("pip", *words)
"""


def gpu_prepare(*words, **options):
    command = ["bash", "performance/gpu_prepare.sh", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def test_packages_travel_in_parts_and_damage_is_noticed(tmp_path):
    python = tmp_path / "python"
    python.write_text(FAKE_PIP.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "present").write_text("torch==2.11.0+cu130\nnumpy==2.5.2\ntransformers==5.17.0\n")
    environment = os.environ | {"PYTHON": str(python), "PART": "4096"}

    def prepare(*words):
        return gpu_prepare(*words, env=environment)

    packed = prepare("pack", tmp_path / "travel", tmp_path / "present", "0.26.0")
    assert packed.returncode == 0, packed.stderr
    # torch is there, another numpy is not what vLLM needs, tilelang is for other models.
    assert (tmp_path / "travel/carry").read_text().split() == ["vllm==0.26.0", "some-thing==1.0", "numpy==2.3.5"]
    parts = sorted((tmp_path / "travel").glob("part-*"))
    assert len(parts) > 2
    for part in parts:
        assert prepare("collect", part, tmp_path / "place").returncode == 0
    joined = prepare("install", tmp_path / "place", tmp_path / "site")
    assert (tmp_path / "place/wheels/vllm-0.26.0").stat().st_size == 3000, joined.stderr
    piece = next((tmp_path / "place").glob("piece-*"))
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    damaged = prepare("install", tmp_path / "place", tmp_path / "site")
    assert damaged.returncode == 1 and "missing or damaged" in damaged.stderr


@pytest.mark.parametrize("words", [[], ["pack", "DIR"], ["venv", "DIR", "0.26.0"], ["rm", "-rf", "x"]])
def test_a_wrong_call_says_how_to_call_it(words):
    run = gpu_prepare(*words)
    assert run.returncode == 1 and run.stderr.startswith("error: usage: gpu_prepare.sh pack DIR PRESENT VLLM | ")


def test_the_list_of_what_is_there_must_be_given(tmp_path):
    run = gpu_prepare("pack", tmp_path / "travel", tmp_path / "present", "0.26.0")
    assert run.returncode == 1 and "present is missing or empty" in run.stderr
    assert not (tmp_path / "travel").exists()
