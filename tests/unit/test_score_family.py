"""Neighbors of SwiftKV: each is the teacher with what its upper layers see of the prompt changed by hooks."""

import pandas as pd
import pytest
import torch

from swiftkv.artifacts.kinds.family import choose
from swiftkv.models import rewire
from swiftkv.score.family import UNTRAINED, answer_hidden, lower_state
from swiftkv.spec import SwiftKVSpec
from tests.conftest import randomise_biases, tiny_teacher

LAYER, PROMPT = 2, 9
TEXT, BARE = (
    torch.randint(3, 128, (size,), generator=torch.Generator().manual_seed(size)).tolist() for size in (16, PROMPT)
)


@torch.inference_mode()
def expected(name: str, architecture: str) -> torch.Tensor:
    """Final hidden states from the prompt's last token on, of a teacher whose upper layers see the tokens before it changed."""
    teacher, skipped = biased(architecture), PROMPT - 1
    template = teacher(torch.tensor([BARE]), output_hidden_states=True).hidden_states
    state = teacher(torch.tensor([TEXT]), output_hidden_states=True).hidden_states[LAYER]
    teacher.set_attn_implementation("eager")  # whose masks are tensors

    def enter(index):
        def hook(_, args):
            begin = {"projected": state, "template": template[index]}[name][:, :skipped]
            return (torch.cat([begin, args[0][:, skipped:]], dim=1), *args[1:])

        return hook

    def nothing(_, __, output):
        return torch.cat([torch.zeros_like(output[:, :skipped]), output[:, skipped:]], dim=1)

    def unseen(_, args, given):
        mask = given["attention_mask"].clone()
        mask[:, :, skipped:, :skipped] = torch.finfo(mask.dtype).min
        return args, given | {"attention_mask": mask}

    for index, block in list(enumerate(teacher.model.layers))[LAYER:]:
        if name in ("projected", "template"):
            block.register_forward_pre_hook(enter(index))
        elif name == "zeros":
            for linear in (block.self_attn.k_proj, block.self_attn.v_proj):
                linear.register_forward_hook(nothing)
        elif name == "unseen":
            block.self_attn.register_forward_pre_hook(unseen, with_kwargs=True)
        elif name == "dropped":
            block.register_forward_hook(lambda _, args, __: args[0])
    return teacher.model(torch.tensor([TEXT])).last_hidden_state[0, skipped:]


def biased(architecture: str):
    teacher = tiny_teacher(architecture)
    randomise_biases(teacher)
    return teacher


@pytest.mark.parametrize("name", [name for name in UNTRAINED if name not in ("copied", "fitted", "own")])
def test_a_neighbor_is_the_teacher_whose_upper_layers_see_the_prompt_changed(name, grouped_query):
    model = rewire(biased(grouped_query), SwiftKVSpec(6, LAYER)).eval()
    template = lower_state(model, BARE)
    found = answer_hidden(model, name, lower_state(model, TEXT), PROMPT, template)
    torch.testing.assert_close(found, expected(name, grouped_query), rtol=1e-4, atol=1e-4)
    whole = model.model(torch.tensor([TEXT]), full_depth=torch.ones(1, len(TEXT), dtype=torch.bool))
    assert (found - whole.last_hidden_state[0, PROMPT - 1 :]).abs().max() > 1e-2


def test_answers_of_a_copied_start_are_the_rewired_models(grouped_query):
    model = rewire(biased(grouped_query), SwiftKVSpec(6, LAYER)).eval()
    found = answer_hidden(model, "copied", lower_state(model, TEXT), PROMPT, None)
    with torch.inference_mode():
        whole = model.model(torch.tensor([TEXT])).last_hidden_state[0, PROMPT - 1 :]
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("budget", "layer"), [({"kl": 0.2}, 8), ({"kl": 0.01}, None), ({"prompt_percent": 70}, 12), ({"prompt_percent": 40}, None)]
)  # fmt: skip
def test_a_budget_chooses_the_cheapest_prompt_or_the_closest_answer(budget, layer):
    rows = [
        ("own", 4, 0.3, 50),
        ("own", 8, 0.2, 60),
        ("own", 12, 0.1, 70),
        ("own", 16, 0.05, 80),
        ("fitted", 1, 0.0, 45),
    ]
    data = pd.DataFrame(rows, columns=["member", "num_key_value_layers", "kl", "prompt_percent"])
    chosen = choose(data, budget)
    assert (None if chosen is None else chosen["num_key_value_layers"]) == layer
