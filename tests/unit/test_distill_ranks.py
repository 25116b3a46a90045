"""A training in bfloat16 over two ranks, with accumulation, against plain torch on float32 master weights."""

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.distill_helpers import RECIPE, SPEC, losses, train

from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import make_step
from swiftkv.distill.trainer import Loop
from swiftkv.models import load_base
from swiftkv.spec import SwiftKVSpec

STEPS = 3
EXIT = SPEC | {"early_exit": True}  # trains norm_swiftkv, which one backward pass comes to twice
BF16 = {"dtype": "bfloat16", "micro_batch_size": 1, "max_steps": STEPS}  # 4 rows: 2 ranks x 2


def plain(inputs, recipe):
    """The same steps by torch alone: AdamW's first moments, and losses; gradients are summed in float32."""
    rows = PackedRows(inputs / "packed.safetensors")
    step = make_step(load_base(inputs / "model", recipe.torch_dtype), SwiftKVSpec(**EXIT), recipe)
    trained = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    masters = {name: parameter.detach().float().requires_grad_() for name, parameter in trained.items()}
    optimizer = torch.optim.AdamW(masters.values(), betas=(0.9, recipe.adam_beta2), weight_decay=recipe.weight_decay)
    order, found = Loop(None, recipe, rows, None, STEPS, 1, 0, 4), []
    for number in range(STEPS):
        numbers = order.row_numbers(number)
        found.append(0.0)
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for row in numbers:
            batch = rows[[row]]
            loss, _ = step(weights=batch.pop("loss_mask") / rows.counted(numbers), **batch)
            loss.backward()
            found[-1] += loss.item()
            for name, parameter in trained.items():
                masters[name].grad += parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters.values(), recipe.gradient_clipping)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(number, STEPS)
        optimizer.step()
        for name, parameter in trained.items():
            parameter.data.copy_(masters[name])
    return {f"{name}.exp_avg": optimizer.state[master]["exp_avg"] for name, master in masters.items()}, found


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_in_bf16_are_plain_torch(inputs, tmp_path, stage):
    """Losses within 0.5 %; every parameter's mean gradient within 6 % of its size, where bfloat16, in which ranks and
    micro-batches are added, gave 3 % when this was written. With one of two uses left out it would be far outside."""
    changes = BF16 | {"zero_stage": stage}
    train(inputs, tmp_path, spec=EXIT, recipe=changes, ranks=2)
    moments, expected_losses = plain(inputs, Recipe.from_dict(RECIPE | changes))
    assert losses(tmp_path) == pytest.approx(expected_losses, rel=5e-3)
    (state,) = tmp_path.glob(f"state/*/step-{STEPS}.safetensors")
    found = load_file(state)
    assert moments.keys() <= found.keys()
    for name, expected in moments.items():
        assert torch.linalg.norm(found[name] - expected) < 0.06 * torch.linalg.norm(expected), name
