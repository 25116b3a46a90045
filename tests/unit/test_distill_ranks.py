"""A training over two ranks, with accumulation, against plain torch on float32 master weights."""

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.distill_helpers import RECIPE, SPEC, losses, make_inputs, mean_loss, plain_adamw, train

from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import DistillationStep
from swiftkv.models import load_base
from swiftkv.spec import SwiftKVSpec

STEPS = 3
EXIT = SPEC | {"early_exit": True}  # trains norm_swiftkv, which one backward pass comes to twice
BF16 = {"dtype": "bfloat16", "micro_batch_size": 1, "max_steps": STEPS}  # 4 rows: 2 ranks x 2


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_in_bf16_are_plain_torch(inputs, tmp_path, stage):
    """Losses within 0.5 %; every parameter's mean gradient within 6 % of its size, where bfloat16, in which ranks and
    micro-batches are added, gave 3 % when this was written. With one of two uses left out it would be far outside."""
    are_plain_torch(inputs, tmp_path, BF16 | {"zero_stage": stage}, 5e-3, 0.06)


def test_two_ranks_that_share_experts_are_plain_torch(tmp_path):
    """In float32, as rounding to 16 bits would send tokens to other experts."""
    make_inputs(tmp_path, "qwen3_moe")
    are_plain_torch(tmp_path, tmp_path, BF16 | {"zero_stage": 3, "dtype": "float32"}, 1e-5, 1e-3)


def are_plain_torch(inputs, folder, changes, of_loss, of_gradient):
    train(inputs, folder, spec=EXIT, recipe=changes, ranks=2)
    recipe = Recipe.from_dict(RECIPE | changes)
    step = DistillationStep(load_base(inputs / "model", recipe.torch_dtype), SwiftKVSpec(**EXIT), recipe)
    trained = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    expected, optimizer = plain_adamw(inputs, recipe, trained.values(), STEPS, mean_loss(step, 1))
    assert losses(folder) == pytest.approx(expected, rel=of_loss)
    (state,) = folder.glob(f"state/*/step-{STEPS}.safetensors")
    found = load_file(state)
    for name, moments in zip(trained, optimizer.state.values(), strict=True):
        mean = moments["exp_avg"]
        assert torch.linalg.norm(found[f"{name}.exp_avg"] - mean) < of_gradient * torch.linalg.norm(mean), name
