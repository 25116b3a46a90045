"""Programs as users start them, and stand-ins for those that they call."""

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import yaml
from safetensors.numpy import save_file

from swiftkv.io import write_json

ROOT = Path(__file__).parents[1]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")


def read_yaml(path):
    return yaml.safe_load(path.read_text())


def write_lines(path, rows):
    """Write a line of JSON for each row, compressed if the name says so; the path as settings have it."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def write_model(folder, config):
    """What is read of a model before it is loaded: config.json, a tokenizer with a chat template, and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    template = {"chat_template": "{{ messages }}"}
    for name, content in (("config", config), ("tokenizer", {}), ("tokenizer_config", template)):
        write_json(folder / f"{name}.json", content)
    save_file({"weight": np.ones((64, 64), np.float32)}, folder / "model.safetensors")
    return folder


def environment(path=(), **variables):
    """This one's, with programs of `path` and of this Python first; the hub is not asked."""
    places = os.pathsep.join(map(str, [*path, Path(sys.executable).parent, os.environ["PATH"]]))
    return os.environ | {"PATH": places, "HF_HUB_OFFLINE": "1"} | variables


def run(*words, cwd=None, path=(), **variables):
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=cwd, env=environment(path, **variables), capture_output=True, text=True)


def succeed(*words, **changes):
    """Run a program that has to end well; what it printed."""
    ended = run(*words, **changes)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout


def alive(pid):
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def write_program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def snakemake(*words):
    """Run Snakemake in this process, which need not import everything anew."""
    from snakemake import cli
    from snakemake.logging import logger

    filters, printed, said, status = list(logger.filters), io.StringIO(), io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            cli.main([str(word) for word in words])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        said.write("" if isinstance(end.code, int) else f"{end.code}\n")
    finally:
        logger.filters[:] = filters  # the Snakefile adds its own
    return subprocess.CompletedProcess(words, status, printed.getvalue(), said.getvalue())
