"""Training state on disk for exact resume.

`<state folder>/<fingerprint>/` holds the newest two checkpoints, `state.json` (written last, atomically; it lists them with
checksums, the newest first), `log.csv`, and `diverged.txt` if the training diverged. The fingerprint covers everything that
determines the result, so another recipe, spec, model or data set has a folder of its own. A checkpoint is one safetensors
file of whole tensors, so any number of ranks can resume from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import safe_open

from swiftkv.device import rank, ranks
from swiftkv.distill.progress import say
from swiftkv.distill.recipe import WeightSettings
from swiftkv.errors import UserError
from swiftkv.io import checksum, digest, read_json, text_of, write_json, write_text
from swiftkv.spec import SwiftKVSpec
from swiftkv.tensor_file import write

KEPT = 2
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's


def fingerprint(recipe: WeightSettings, spec: SwiftKVSpec | None, model: Path, data: Path) -> dict[str, Any]:
    """Return what determines the result of a training: recipe, spec (or None), the model's weights and the packed data."""
    files = sorted(model.glob("*.safetensors")) + [model / "config.json"]
    return {
        "recipe": recipe.model_dump(include=set(WeightSettings.model_fields)),
        "spec": None if spec is None else dataclasses.asdict(spec),
        "model": {file.name: digest(file) for file in files},
        "data": digest(data),
    }


class TrainingState:
    """The state folder of one training."""

    def __init__(self, folder: str | Path, identity: dict[str, Any]) -> None:
        """Find the checkpoints of the training with this fingerprint.

        Raises:
            UserError: state.json is damaged, or the training has diverged.
        """
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self.others = any(path.parent.name != key for path in Path(folder).glob("*/state.json"))
        self.folder = Path(folder) / key
        self.log = self.folder / "log.csv"
        self.identity = identity
        self._file = self.folder / "state.json"
        self._diverged = self.folder / "diverged.txt"
        if diverged := text_of(self._diverged):
            raise UserError(diverged)
        self.checkpoints = read_json(self._file)["checkpoints"] if self._file.exists() else []

    def save(self, engine: Any, step: int, progress: dict[str, Any]) -> None:
        """Save the state after optimizer step `step` and delete older ones; all ranks have to call this."""
        begin, tensors = time.monotonic(), gather(engine)
        if rank() == 0:
            path = self.folder / f"step-{step}.safetensors"
            self.folder.mkdir(parents=True, exist_ok=True)
            entry = {"file": path.name, "sha256": write(tensors, path), "step": step, **progress}
            entry["state_seconds"] = time.monotonic() - begin
            kept = [entry, *(old for old in self.checkpoints if old["step"] < step)][:KEPT]
            write_json(self._file, {"checkpoints": kept, "identity": self.identity})
            self.checkpoints = kept
            for old in self.folder.glob("step-*"):
                if old.name not in [entry["file"] for entry in kept]:
                    old.unlink(missing_ok=True)
        torch.distributed.barrier()

    def diverge(self, what: str) -> NoReturn:
        """Stop the training for good, as every attempt would end alike; all ranks have to call this.

        Raises:
            UserError: always, and again on every resume; it begins with `what`.
        """
        sentence = (
            f"{what}, so the training has diverged and is not tried again: change its recipe, for example to a lower "
            f"learning_rate, or delete {self._diverged} to go on from its last state, or {self.folder} to start anew"
        )
        if rank() == 0:
            write_text(self._diverged, sentence)
        torch.distributed.barrier()
        raise UserError(sentence)

    def load(self, engine: Any) -> dict[str, Any] | None:
        """Load the newest undamaged checkpoint into `engine` and return its entry, or None; all ranks have to call this."""
        found = [None]
        if rank() == 0:
            found = [next(filter(self._whole, self.checkpoints), None)]
        if ranks() > 1:
            torch.distributed.broadcast_object_list(found)
        (entry,) = found
        if entry is not None:
            scatter(engine, self.folder / entry["file"], entry["step"])
        return entry

    def _whole(self, entry: dict[str, Any]) -> bool:
        file = self.folder / entry["file"]
        if file.exists() and checksum(file) == entry["sha256"]:
            return True
        say(f"the training state {file} is missing or damaged: going on from an earlier one")
        return False


def trained(engine: Any) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in engine.module.named_parameters() if parameter.requires_grad}


def gather(engine: Any) -> dict[str, torch.Tensor]:
    """Gather float32 master weights and AdamW's moments of the trained parameters on rank 0; empty on other ranks."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    tensors = {}
    for name, parameter in trained(engine).items():
        parts = {"master": safe_get_full_fp32_param(parameter)}
        parts |= {moment: safe_get_full_optimizer_state(parameter, moment) for moment in MOMENTS}
        if rank() == 0:
            tensors |= {f"{name}.{part}": tensor.detach().cpu().contiguous() for part, tensor in parts.items()}
    return tensors


def scatter(engine: Any, path: Path, step: int) -> None:
    """Load a checkpoint into a fresh engine with any number of ranks, as if it had run `step` steps."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    sharded, adamw = engine.optimizer, engine.optimizer.optimizer
    # AdamW would create its states in its first step.
    stage3 = hasattr(sharded, "fp32_partitioned_groups_flat")
    flat = sharded.fp32_partitioned_groups_flat if stage3 else sharded.single_partition_of_fp32_groups
    for tensor in flat:
        moments = {moment: torch.zeros_like(tensor) for moment in MOMENTS}
        adamw.state[tensor] = {"step": torch.tensor(float(step), device=tensor.device), **moments}
    if not stage3:
        sharded._lazy_init_hp_params_optimizer_state()  # for the setters below
    with safe_open(path, framework="pt") as file:
        for name, parameter in trained(engine).items():
            master = file.get_tensor(f"{name}.master").to(parameter.device)
            safe_set_full_fp32_param(parameter, master)
            for moment in MOMENTS:
                safe_set_full_optimizer_state(
                    parameter, file.get_tensor(f"{name}.{moment}").to(parameter.device), moment
                )
            with GatheredParameters([parameter], modifier_rank=0, enabled=stage3):
                parameter.data.copy_(master)
