"""A training that is killed, stopped or finds its state damaged goes on and ends as if nothing had been."""

import contextlib
import datetime
import os
import re
import shutil
import signal
import subprocess
import time
from unittest import mock

import psutil
import pytest
import torch
from tests.programs import ROOT, environment
from tests.unit.distill_helpers import assert_alike, command, log, run, train
from torch.distributed.launcher.api import LaunchConfig

from pipeline.training import gpus_used
from swiftkv import device
from swiftkv.io import read_json

pytestmark = pytest.mark.thorough


def wait_for_steps(process, folder, steps):
    """Until the training has logged more than `steps` steps, or has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(folder.glob("state/*/log.csv"))
        if logs and len(logs[0].read_text().splitlines()) > steps + 1:
            return
        time.sleep(0.002)


def test_killed_twice_and_resumed_the_losses_are_the_same_bits(inputs, finished, tmp_path):
    for steps in (4, 7):
        process = subprocess.Popen(command(inputs, tmp_path), env=environment(), stderr=subprocess.DEVNULL)
        wait_for_steps(process, tmp_path, steps)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "record.json").exists()
    said = train(inputs, tmp_path)
    assert "continuing after step" in said
    assert_alike(tmp_path, finished)


def test_lost_outputs_of_a_finished_training_are_only_saved_again(inputs, finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path)
    total = len(log(finished))
    assert f"continuing after step {total} of {total}" in said and "training" not in said
    assert (tmp_path / "log.csv").read_bytes() == (finished / "log.csv").read_bytes()
    assert_alike(tmp_path, finished)
    results = [read_json(folder / "record.json")["result"] for folder in (tmp_path, finished)]
    assert results[0] == results[1]


def test_state_of_another_recipe_is_neither_used_nor_lost(inputs, finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path, recipe={"learning_rate": 2e-3, "max_steps": 2})
    assert "training from the start" in said and len(log(tmp_path)) == 2
    states = [read_json(file) for file in (tmp_path / "state").glob("*/state.json")]
    assert len(states) == 2 and all(entry["state_seconds"] > 0 for state in states for entry in state["checkpoints"])


@pytest.mark.parametrize("torn", [1, 2])
def test_a_torn_state_is_skipped(inputs, finished, tmp_path, torn):
    """The training goes on from the state before, or starts again, and ends in the same bits."""
    shutil.copytree(finished / "state", tmp_path / "state")
    newest, older = sorted(tmp_path.glob("state/*/step-*.safetensors"), key=lambda file: file.stat().st_mtime)[::-1]
    for file in (newest, older)[:torn]:  # as after a crash of the file system: the length is right
        file.write_bytes(file.read_bytes()[:-4096] + bytes(4096))
    said = train(inputs, tmp_path)
    assert f"{newest} is missing or damaged" in said and ("continuing after step" in said) == (torn == 1)
    assert_alike(tmp_path, finished)


def test_ranks_wait_while_the_first_writes_what_is_large():
    """421 GB at 0.1 GB/s are 70 minutes; of NCCL 10 are the default, of gloo 30. All ranks meet in one place."""
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with mock.patch.dict(os.environ, ranks), contextlib.ExitStack() as stack:
        device.join_ranks()
        stack.callback(torch.distributed.destroy_process_group)
        backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options._timeout > datetime.timedelta(minutes=70)
        # What groups of NCCL's get that DeepSpeed makes.
        assert torch.distributed.distributed_c10d._get_default_timeout("nccl") > datetime.timedelta(minutes=70)


@pytest.mark.parametrize("stage, ranks", [(2, (2, 1)), (3, (2, 4))])
def test_stopped_and_resumed_on_other_ranks_the_losses_stay(inputs, finished, tmp_path, stage, ranks):
    """A training stopped at step 4 and continued by another number of ranks: losses within 1e-5 of one that was not."""
    changes = {"zero_stage": stage, "micro_batch_size": 1}
    stopped = run(command(inputs, tmp_path, ranks=ranks[0], recipe=changes) + ["--minutes", "0.0001"])
    assert (
        stopped.returncode != 0
        and "stopped before the time of its job ends, its state saved after step 1" in stopped.stderr
    )
    assert not (tmp_path / "checkpoint").exists()
    said = train(inputs, tmp_path, ranks=ranks[1], recipe=changes)
    assert "continuing after step 1 of" in said
    assert_alike(tmp_path, finished, 1e-5, 2e-4)


def test_torchrun_waits_as_long_as_a_job_tells_it(monkeypatch):
    """The variable of the workflow's launcher: this torch reads it, and would otherwise kill ranks after 30 seconds."""
    (seconds,) = set(
        re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", (ROOT / "workflow/rules/cluster.smk").read_text())
    )
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", seconds)
    assert LaunchConfig(1, 1, 1).shutdown_timeout == int(seconds) >= 1800  # 405B: 228 GB


@pytest.mark.parametrize("number, ranks", [(signal.SIGUSR1, 1), (signal.SIGTERM, 2)])
def test_a_signal_saves_the_state_and_ends_the_training(inputs, finished, tmp_path, number, ranks):
    """As SLURM sends it, to all processes of a job, torchrun among them."""
    changes = {"micro_batch_size": 1, "checkpoint_every": 1000}
    process = subprocess.Popen(
        command(inputs, tmp_path, ranks=ranks, recipe=changes), env=environment(), stderr=subprocess.PIPE, text=True
    )
    wait_for_steps(process, tmp_path, 1)
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            each.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode != 0 and f"stopped by {number.name}, its state saved after step" in said, said
    said = train(inputs, tmp_path, ranks=ranks, recipe=changes)
    assert "continuing after step" in said
    assert_alike(tmp_path, finished, 1e-6, 2e-4)


def test_a_training_that_diverges_ends_before_its_next_state_and_is_not_tried_again(inputs, tmp_path):
    """Decay throws the weights further off in steps 1 and 2, which are saved, and step 3 finds it; the next attempt ends
    before it loads a model."""
    changes = {"learning_rate": 1.0, "weight_decay": 1e9, "warmup_ratio": 0.0, "checkpoint_every": 1}
    done = run(command(inputs, tmp_path, recipe=changes))
    sentences = {line for line in done.stderr.splitlines() if line.startswith("error: ")}
    assert done.returncode != 0 and len(sentences) == 1, done.stderr
    (sentence,) = sentences
    assert sentence.startswith("error: step 3 of ") and "the loss is nan" in sentence
    (state,) = tmp_path.glob("state/*")
    assert {path.name for path in state.glob("step-*")} == {"step-1.safetensors", "step-2.safetensors"}
    assert str(state / "diverged.txt") in sentence and [path.name for path in tmp_path.iterdir()] == ["state"]
    again = run(command(inputs, tmp_path, recipe=changes | {"checkpoint_minutes": 1}))
    assert again.returncode != 0 and again.stderr.strip().splitlines() == [sentence]


def test_the_time_of_all_attempts_is_shared_out_by_what_they_ran_on():
    """8 GPUs for an hour and 4 of another kind for 2 are 16 GPU-hours, and 16/3 GPUs over the time."""
    assert gpus_used([[8, "A100", 3600.0], [4, "H100", 7200.0]]) == (16 / 3, "A100/H100")
