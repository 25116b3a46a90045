"""Steps in bfloat16 over two ranks, with accumulation: against one rank, and plain torch on float32 master weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.distill_helpers import RECIPE, SPEC, environment

from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import make_step
from swiftkv.distill.trainer import Loop
from swiftkv.models import load_base
from swiftkv.spec import SwiftKVSpec

STEPS = 3
BF16 = RECIPE | {"dtype": "bfloat16", "micro_batch_size": 1, "max_steps": STEPS}  # 4 rows: 2 ranks x 2, or 1 x 4
CASES = {
    "distillation": (SPEC, BF16),
    "early exit": (SPEC | {"early_exit": True}, BF16),  # trains norm_swiftkv, which one backward pass comes to twice
    "early exit, ZeRO-3": (SPEC | {"early_exit": True}, BF16 | {"zero_stage": 3}),
    "fine-tuning": (None, BF16 | {"train": "all", "loss": "lm", "learning_rate": 1e-4}),
}


@pytest.fixture(scope="module")
def results(inputs, tmp_path_factory):
    """By number of ranks: by case and name, tensors after the last step."""
    folder = tmp_path_factory.mktemp("ranks")
    program = [str(Path(__file__).with_name("distill_ranks.py")), str(inputs)]
    started = {}
    for ranks in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if ranks == 2 else []
        words = [sys.executable, *launcher, *program, str(folder / f"{ranks}.safetensors"), json.dumps(CASES)]
        started[ranks] = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
    for process in started.values():
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said
    return {ranks: load_file(folder / f"{ranks}.safetensors") for ranks in started}


def plain(inputs, spec, fields):
    """The same steps by torch alone: masters, AdamW's moments and losses; gradients are summed in float32."""
    recipe, rows = Recipe.from_dict(fields), PackedRows(inputs / "packed.safetensors")
    step = make_step(load_base(inputs / "model", recipe.torch_dtype), spec and SwiftKVSpec(**spec), recipe)
    trained = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    masters = {name: parameter.detach().float().requires_grad_() for name, parameter in trained.items()}
    optimizer = torch.optim.AdamW(masters.values(), betas=(0.9, recipe.adam_beta2), weight_decay=recipe.weight_decay)
    order, losses = Loop(None, recipe, rows, None, STEPS, 1, 0, 4), []
    for number in range(STEPS):
        numbers = order.row_numbers(number)
        positions = rows.counted(numbers) if recipe.loss == "distillation" else order._targets(numbers)
        optimizer.zero_grad(set_to_none=False)
        losses.append(0.0)
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for row in numbers:
            batch = rows[[row]]
            loss, _ = step(weights=batch.pop("loss_mask") / positions, **batch)
            loss.backward()
            losses[-1] += loss.item()
            for name, parameter in trained.items():
                masters[name].grad += parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters.values(), recipe.gradient_clipping)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(number, STEPS)
        optimizer.step()
        for name, parameter in trained.items():
            parameter.data.copy_(masters[name])
    return {f"{name}.exp_avg": optimizer.state[master]["exp_avg"] for name, master in masters.items()}, losses


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_in_bf16_are_one_and_plain_torch(inputs, results, case):
    """Losses within 0.5 %; every parameter's mean gradient within 6 % of its size, where bfloat16, in which ranks and
    micro-batches are added, gave 3 % when this was written. With one of two uses left out it would be far outside."""
    moments, losses = plain(inputs, *CASES[case])
    one, two = (
        {name.partition("/")[2]: tensor for name, tensor in results[ranks].items() if name.startswith(f"{case}/")}
        for ranks in (1, 2)
    )
    assert one.keys() == two.keys() and moments.keys() <= two.keys()
    for found in (one, two):
        assert found["losses"].tolist() == pytest.approx(losses, rel=5e-3)
        for name, expected in moments.items():
            assert torch.linalg.norm(found[name] - expected) < 0.06 * torch.linalg.norm(expected), name
