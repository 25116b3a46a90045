"""Training state on disk, so that a killed training goes on exactly where its last state left it.

`<state folder>/<fingerprint>/` holds `state.json` (written last, atomically: it names the finished DeepSpeed checkpoint
that counts), that checkpoint, and `log.csv`. The fingerprint is of everything that decides the result, so a changed
recipe, spec, model or data set starts in a folder of its own and an earlier state is neither mistaken for it nor lost.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.records import read_json, write_json
from swiftkv.spec import SwiftKVSpec

SAMPLE = 2**20
# Where the teacher's states come from and when states are saved does not change the result.
NEUTRAL = ("checkpoint_every", "teacher_states", "gradient_checkpointing")


def digest(path: Path) -> str:
    """SHA-256 over the size and up to 64 evenly spaced MiB of a file: quick also for very large weights."""
    total = hashlib.sha256(str(size := path.stat().st_size).encode())
    with path.open("rb") as file:
        for part in range(64):
            file.seek(max(0, (size - SAMPLE) * part // 63) if size > 64 * SAMPLE else part * SAMPLE)
            total.update(file.read(SAMPLE))
    return total.hexdigest()


def fingerprint(recipe: Recipe, spec: SwiftKVSpec | None, model: Path, data: Path) -> dict[str, Any]:
    """What decides the result of a training: recipe, spec (or None), the model's weights and the packed data."""
    fields = {name: value for name, value in dataclasses.asdict(recipe).items() if name not in NEUTRAL}
    files = sorted(model.glob("*.safetensors")) + [model / "config.json"]
    return {
        "recipe": fields,
        "spec": None if spec is None else dataclasses.asdict(spec),
        "model": {file.name: digest(file) for file in files},
        "data": digest(data),
    }


class TrainingState:
    """The folder of one training."""

    def __init__(self, folder: str | Path, identity: dict[str, Any], ranks: int) -> None:
        """Find the state of this very training, if there is one.

        Raises:
            UserError: it was written by another number of ranks, or is damaged.
        """
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self.others = [path.name for path in Path(folder).glob("*/state.json") if path.parent.name != key]
        self.folder = Path(folder) / key
        self.log = self.folder / "log.csv"
        self.identity, self.ranks = identity, ranks
        self._file = self.folder / "state.json"
        self.found = read_json(self._file) if self._file.exists() else None
        if self.found is not None and self.found["ranks"] != ranks:
            raise UserError(
                f"the training state in {self.folder} was written by {self.found['ranks']} ranks, but this run has "
                f"{ranks}; continue with {self.found['ranks']}, or delete the folder to start again"
            )

    def save(self, engine: Any, step: int, progress: dict[str, Any]) -> None:
        """Save the state after optimizer step `step`; all ranks call this. Older states go once it counts."""
        from deepspeed import comm

        name = f"step-{step}"
        if comm.get_rank() == 0:  # what an interrupted save left
            shutil.rmtree(self.folder / name, ignore_errors=True)
        comm.barrier()
        engine.save_checkpoint(str(self.folder), tag=name, save_latest=False, exclude_frozen_parameters=True)
        comm.barrier()
        if comm.get_rank() == 0:
            write_json(
                self._file,
                {"checkpoint": name, "step": step, "ranks": self.ranks, **progress, "identity": self.identity},
            )
            for old in self.folder.glob("step-*"):
                if old.name != name:
                    shutil.rmtree(old, ignore_errors=True)
        comm.barrier()

    def load(self, engine: Any) -> dict[str, Any] | None:
        """Put the saved weights and optimizer states into `engine`; what `save` was told, or None without a state.

        Raises:
            UserError: the state is damaged.
        """
        if self.found is None:
            return None
        name = self.found["checkpoint"]
        try:
            loaded, _ = engine.load_checkpoint(str(self.folder), tag=name, load_module_strict=False)
        except Exception as error:  # unpickling a damaged file can raise anything
            raise UserError(
                f"the training state {self.folder / name} cannot be read ({' '.join(str(error).split())[:200]}); "
                f"delete {self.folder} to start again"
            ) from None
        if loaded is None:
            raise UserError(f"the training state {self.folder / name} is missing; delete {self.folder} to start again")
        return self.found
