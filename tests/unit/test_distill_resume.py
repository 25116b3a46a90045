"""A training that is killed, stopped or finds its state damaged goes on and ends as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time

import psutil
import pytest
import torch

from tests.unit.distill_helpers import command, environment, log, losses, run, tensors, train


def wait_for_steps(process, folder, steps):
    """Until the training has logged more than `steps` steps, or has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = list(folder.glob("state/*/log.csv"))
        if logs and len(logs[0].read_text().splitlines()) > steps + 1:
            return
        time.sleep(0.002)


def test_killed_twice_and_resumed_the_losses_are_the_same_bits(inputs, finished, tmp_path):
    total = len(log(finished))
    for steps in (4, 7):
        process = subprocess.Popen(command(inputs, tmp_path), env=environment(), stderr=subprocess.DEVNULL)
        wait_for_steps(process, tmp_path, steps)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "record.json").exists()
    said = train(inputs, tmp_path)
    assert "continuing after step" in said
    assert len(losses(tmp_path / "log.csv")) == total
    assert losses(tmp_path / "log.csv") == losses(finished / "log.csv")
    one, other = tensors(finished), tensors(tmp_path)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_lost_outputs_of_a_finished_training_are_only_saved_again(inputs, finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path)
    total = len(log(finished))
    assert f"continuing after step {total} of {total}" in said and "training" not in said
    assert (tmp_path / "log.csv").read_bytes() == (finished / "log.csv").read_bytes()
    results = [json.loads((folder / "record.json").read_text())["result"] for folder in (tmp_path, finished)]
    assert results[0] == results[1]
    assert all(torch.equal(a, b) for a, b in zip(tensors(tmp_path).values(), tensors(finished).values(), strict=True))


def test_state_of_another_recipe_is_neither_used_nor_lost(inputs, finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path, recipe={"learning_rate": 2e-3, "max_steps": 2})
    assert "training from the start" in said and len(log(tmp_path)) == 2
    assert len(list((tmp_path / "state").glob("*/state.json"))) == 2


@pytest.mark.parametrize("harm", ["zeroed", "gone"])
def test_a_torn_state_is_skipped(inputs, finished, tmp_path, harm):
    """The training goes on from the state before and ends in the same bits."""
    shutil.copytree(finished / "state", tmp_path / "state")
    newest, older = sorted(tmp_path.glob("state/*/step-*.safetensors"), key=step_of, reverse=True)
    if harm == "zeroed":  # as after a crash of the file system: the length is right
        newest.write_bytes(newest.read_bytes()[:-4096] + bytes(4096))
    else:
        newest.unlink()
    said = train(inputs, tmp_path)
    assert f"{newest} is missing or damaged" in said and f"continuing after step {step_of(older)} of" in said
    assert losses(tmp_path / "log.csv") == losses(finished / "log.csv")
    assert all(torch.equal(a, b) for a, b in zip(tensors(tmp_path).values(), tensors(finished).values(), strict=True))


def step_of(file):
    return int(file.stem.removeprefix("step-"))


def test_without_a_whole_state_it_starts_again(inputs, finished, tmp_path):
    shutil.copytree(finished / "state", tmp_path / "state")
    for file in tmp_path.glob("state/*/step-*.safetensors"):
        file.write_bytes(b"torn")
    said = train(inputs, tmp_path)
    assert said.count("is missing or damaged") == 2 and "continuing" not in said
    assert losses(tmp_path / "log.csv") == losses(finished / "log.csv")


@pytest.mark.parametrize(("stage", "ranks"), [(2, (2, 1)), (3, (1, 2)), (3, (2, 4))])
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
    assert [row["loss"] for row in log(tmp_path)] == pytest.approx([row["loss"] for row in log(finished)], abs=1e-5)
    expected = tensors(finished)
    for name, tensor in tensors(tmp_path).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-4)


@pytest.mark.parametrize(("number", "ranks"), [(signal.SIGUSR1, 1), (signal.SIGTERM, 2)])
def test_a_signal_saves_the_state_and_ends_the_training(inputs, finished, tmp_path, number, ranks):
    changes = {"micro_batch_size": 1, "checkpoint_every": 1000}
    process = subprocess.Popen(
        command(inputs, tmp_path, ranks=ranks, recipe=changes), env=environment(), stderr=subprocess.PIPE, text=True
    )
    wait_for_steps(process, tmp_path, 1)
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        if ranks == 1 or each is not process:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode != 0 and f"stopped by {number.name}, its state saved after step" in said, said
    said = train(inputs, tmp_path, ranks=ranks, recipe=changes)
    assert "continuing after step" in said and len(log(tmp_path)) == len(log(finished))
    assert [row["loss"] for row in log(tmp_path)] == pytest.approx([row["loss"] for row in log(finished)], abs=1e-6)
