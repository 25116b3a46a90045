"""A full disk ends a rule with one sentence and leaves nothing that looks finished."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.programs import run, write_lines
from tests.unit.distill_helpers import GOLDEN, STAGE, command, losses, make_inputs

from swiftkv.errors import command_line
from swiftkv.io import read_json

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount():
    command = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small tmpfs in a namespace")


def test_writing_text(tmp_path):
    chats, heldout, disk = tmp_path / "chats.jsonl", tmp_path / "heldout.jsonl", tmp_path / "disk"
    write_lines(chats, [{"question": f"{i} {'word ' * 50}", "answer": "x"} for i in range(300)])
    write_lines(heldout, [{"messages": [{"role": "user", "content": "another"}]}])
    disk.mkdir()
    source = [{"name": "x", "local": str(chats), "user": "{{ question }}", "assistant": "{{ answer }}"}]
    words = [*STAGE, "corpus", f"--sources={json.dumps(source)}", "--seed=0", f"--heldout={heldout}"]
    words += [f"--output={disk / 'train'}", f"--record={disk / 'source'}"]
    script = 'mount -t tmpfs -o size=32k none "$0" && "$@"; status=$?; find "$0" -type f >&2; exit $status'
    ended = run(*UNSHARE, "sh", "-c", script, disk, sys.executable, *words)
    assert ended.returncode == 1 and "error: the disk is full" in ended.stderr and "Traceback" not in ended.stderr
    assert not [line for line in ended.stderr.splitlines() if line.endswith(("/train", "/source"))]


def test_a_library_that_reports_it_in_words():
    @command_line
    def main():
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    with pytest.raises(SystemExit, match="^error: the disk is full"):
        main()


def train_on_disk(folder, option, place, script):
    """Run a shell script in a namespace: $0 is disk/, where an output of the training "$@" goes."""
    make_inputs(folder)
    (folder / "disk").mkdir()
    words = command(folder, folder)
    words[words.index(option) + 1] = str(folder / place)
    return run(*UNSHARE, "sh", "-c", script, folder / "disk", *words)


def test_saving_a_state_of_a_training(tmp_path):
    """What was saved before still counts: with more room the training goes on to the golden losses."""
    script = (
        'mount -t tmpfs -o size=700k none "$0" && "$@"; echo "status $?" >&2; find "$0" -name "*.part" >&2; '
        'mount -o remount,size=8m "$0" && "$@"'
    )
    done = train_on_disk(tmp_path, "--state-dir", "disk", script)
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("status 1\n")
    assert "error: the disk is full" in before and "Traceback" not in before
    assert ".part" not in after and "continuing after step" in after
    assert losses(tmp_path) == pytest.approx(read_json(GOLDEN)["losses"], rel=1e-4)


def test_a_checkpoint_that_will_not_fit_ends_a_training_before_its_first_step(tmp_path):
    script = 'mount -t tmpfs -o size=64k none "$0" && "$@"'
    done = train_on_disk(tmp_path, "--checkpoint", "disk/checkpoint", script)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path}/disk has 0.0 GB free and at least ")
    assert not (tmp_path / "state").exists()
