"""Models, losses and gradients are those of the authors' own model files.

`tests/golden/authors-models` has what the modelling code of ArcticTraining (commit b28638e) gives in float32 for tiny models of
six layers, l = 2, that are trained away from their start: SwiftKV's parameters at the start and afterwards, the final hidden
states of teacher and student, the mean losses of logits at temperature 2 and of final hidden states, and the gradients of
their sum. Each file has the base model's weights and configuration.
"""

import json

import pytest
import torch
from safetensors import safe_open
from tests.programs import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from swiftkv.distill.losses import distillation_loss, hidden_state_loss
from swiftkv.models import load_swiftkv, rewire, save_model
from swiftkv.models.rewire import start_values
from swiftkv.spec import SwiftKVSpec

FILES = sorted((ROOT / "tests/golden/authors-models").glob("*.safetensors"))
# Processors sum the at most 96 products of an element in other orders: 96 roundings of 2^-24, of states up to 5, through six
# layers and back.
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def golden(request):
    """Tensors by kind and name, the base model, and the spec."""
    with safe_open(request.param, framework="pt") as file:
        fields, found = file.metadata(), {}
        for name in file.keys():  # noqa: SIM118
            kind, _, rest = name.partition(".")
            found.setdefault(kind, {})[rest] = file.get_tensor(name)
    config = json.loads(fields["config"])
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    base.load_state_dict(found["base"])
    layers, group = int(fields["num_key_value_layers"]), int(fields["key_value_group_size"])
    return found, base, SwiftKVSpec(config["num_hidden_layers"], layers, group)


def test_start_values_are_equal(golden):
    found, base, spec = golden
    torch.testing.assert_close(start_values(base, spec), found["start"], rtol=0, atol=0)


def test_states_losses_and_gradients_of_a_saved_checkpoint(golden, tmp_path):
    found, base, spec = golden
    rewired = rewire(base, spec)
    assert not rewired.load_state_dict(found["student"], strict=False).unexpected_keys
    save_model(rewired, tmp_path / "saved")
    student = load_swiftkv(tmp_path / "saved", torch.float32).requires_grad_(False)
    trained = student.swiftkv_parameters()
    assert all(torch.equal(parameter, found["student"][name]) for name, parameter in trained.items())
    for parameter in trained.values():
        parameter.requires_grad_(True)
    state = student.model.forward_lower(found["input_ids"][""])
    (theirs, inner), (ours, own_inner) = (
        student.model.forward_upper(state, student=student_runs, collect_hidden=True) for student_runs in (False, True)
    )
    torch.testing.assert_close(theirs, found["teacher_states"][""], **ROUNDING)
    torch.testing.assert_close(ours, found["student_states"][""], **ROUNDING)
    weights = torch.full((ours[..., 0].numel(),), 1 / ours[..., 0].numel())
    rows = [states.flatten(0, 1) for states in (ours, theirs, own_inner[-1], inner[-1])]
    loss = distillation_loss(rows[0], student.lm_head.weight, weights, rows[1].detach(), 2.0)
    torch.testing.assert_close(loss, found["logits_loss"][""], **ROUNDING)
    torch.testing.assert_close(hidden_state_loss(*rows[2:], weights), found["hidden_loss"][""], **ROUNDING)
    gradients = torch.autograd.grad(loss, list(trained.values()))
    for name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(gradient, found["grad"][name], rtol=1e-4, atol=1e-6)
