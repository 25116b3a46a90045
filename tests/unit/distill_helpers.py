"""A tiny model on disk, packed rows for it, and the training program as a subprocess."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swiftkv.distill.packing import pack, write_packed
from tests.conftest import tiny_teacher

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "workflow" / "scripts"
GOLDEN = ROOT / "tests" / "golden"
SPEC = {"num_hidden_layers": 6, "num_key_value_layers": 3, "key_value_group_size": 2}
RECIPE = {
    "data": "tiny", "batch_size": 4, "micro_batch_size": 2, "max_length": 64, "epochs": 4, "checkpoint_every": 3,
    "learning_rate": 1e-3, "dtype": "float32", "seed": 7,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """Whitespace words; unknown ones are <unk>."""
    words = ["<pad>", "<unk>", "<end>", "<user>", "<assistant>", *(f"w{i}" for i in range(100))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="<end>")
    wrapped.chat_template = TEMPLATE
    return wrapped


def random_samples(count: int, longest: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 128, random.integers(2, longest + 1)).astype(np.int32) for _ in range(count)]


def make_inputs(folder: Path) -> None:
    """model/, source.json and packed.safetensors in `folder`."""
    tiny_teacher().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    (folder / "source.json").write_text(json.dumps({"name": "tiny", "path": str(folder / "model")}))
    arrays, counts = pack(random_samples(40, 40), 64, 7, 0)
    write_packed(folder / "packed.safetensors", arrays, counts)


def command(
    inputs: Path, output: Path, recipe: dict | None = None, spec: dict | None = None, ranks: int = 1
) -> list[str]:
    """The command line of one training; its files go to `output`."""
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    arguments = {
        "--model-source": inputs / "source.json",
        "--spec": json.dumps(spec or SPEC),
        "--recipe": json.dumps(RECIPE | (recipe or {})),
        "--data": inputs / "packed.safetensors",
        "--state-dir": output / "state",
        "--checkpoint": output / "checkpoint",
        "--loss-log": output / "log.csv",
    }
    if (inputs / "states.safetensors").exists():
        arguments["--teacher-states"] = inputs / "states.safetensors"
    return [*launcher, str(SCRIPTS / "distill.py"), *(str(word) for pair in arguments.items() for word in pair)]


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")} | changes


def run(words: list[str], **changes: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, env=environment(**changes), timeout=300)


def train(inputs: Path, output: Path, **arguments) -> str:
    """Run a training to its end; what it said."""
    done = run(command(inputs, output, **arguments))
    assert done.returncode == 0, done.stderr
    return done.stderr


def losses(log: Path) -> list[str]:
    """Step and loss of every row, as written, with all digits."""
    with log.open(newline="") as file:
        return [f"{row['step']} {row['loss']}" for row in csv.DictReader(file)]
