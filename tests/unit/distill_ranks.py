"""Every rank of a few bfloat16 steps: the first one writes gathered weights and moments, and the losses.

Arguments: folder of the inputs, file for the result, and JSON of the cases: by name a spec (or null) and a recipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from deepspeed import comm
from safetensors.torch import save_file

from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.state import gather
from swiftkv.distill.step import make_step
from swiftkv.distill.trainer import Loop, make_engine, start_distributed
from swiftkv.models import load_base
from swiftkv.spec import SwiftKVSpec


def main(inputs: Path, output: Path, cases: dict) -> None:
    start_distributed()
    ranks, rank, found = comm.get_world_size(), comm.get_rank(), {}
    rows = PackedRows(inputs / "packed.safetensors")
    for name, (spec, fields) in cases.items():
        recipe = Recipe.from_dict(fields)
        step = make_step(load_base(inputs / "model", recipe.torch_dtype), spec and SwiftKVSpec(**spec), recipe)
        accumulation = recipe.accumulation(ranks)
        engine = make_engine(step, recipe, accumulation)
        loop = Loop(engine, recipe, rows, None, recipe.max_steps, ranks, rank, accumulation)
        losses = [loop.run(number)["loss"] for number in range(recipe.max_steps)]
        found |= {f"{name}/{key}": tensor.clone() for key, tensor in gather(engine).items()}
        found[f"{name}/losses"] = torch.tensor(losses)
        engine.destroy()
    if rank == 0:
        save_file(found, output)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
