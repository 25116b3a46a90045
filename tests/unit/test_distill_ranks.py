"""A training in bfloat16 over two ranks, with accumulation, against plain torch on float32 master weights."""

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.distill_helpers import RECIPE, SPEC, losses, mean_loss, plain_adamw, train

from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import make_step
from swiftkv.models import load_base
from swiftkv.spec import SwiftKVSpec

STEPS = 3
EXIT = SPEC | {"early_exit": True}  # trains norm_swiftkv, which one backward pass comes to twice
BF16 = {"dtype": "bfloat16", "micro_batch_size": 1, "max_steps": STEPS}  # 4 rows: 2 ranks x 2


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_in_bf16_are_plain_torch(inputs, tmp_path, stage):
    """Losses within 0.5 %; every parameter's mean gradient within 6 % of its size, where bfloat16, in which ranks and
    micro-batches are added, gave 3 % when this was written. With one of two uses left out it would be far outside."""
    changes = BF16 | {"zero_stage": stage}
    train(inputs, tmp_path, spec=EXIT, recipe=changes, ranks=2)
    recipe = Recipe.from_dict(RECIPE | changes)
    step = make_step(load_base(inputs / "model", recipe.torch_dtype), SwiftKVSpec(**EXIT), recipe)
    trained = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    expected, optimizer = plain_adamw(inputs, recipe, trained.values(), STEPS, mean_loss(step, 1))
    assert losses(tmp_path) == pytest.approx(expected, rel=5e-3)
    (state,) = tmp_path.glob(f"state/*/step-{STEPS}.safetensors")
    found = load_file(state)
    for name, moments in zip(trained, optimizer.state.values(), strict=True):
        mean = moments["exp_avg"]
        assert torch.linalg.norm(found[f"{name}.exp_avg"] - mean) < 0.06 * torch.linalg.norm(mean), name
