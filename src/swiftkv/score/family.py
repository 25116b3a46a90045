"""What tokens of a prompt may leave out of layers >= l: SwiftKV for every l, and neighbors of it that need no training.

Closeness to the teacher counts where it is felt, over the tokens of a chat's last answer; all before is its prompt.
SwiftKV starts copied or fitted, or is trained. In its neighbors the model keeps its weights, and the prompt's last token
and the answer run all layers. What layers >= l find of the other tokens of the prompt there, is

* own: SwiftKV's, fitted: so its answers alone have keys and values of their own, as the paper's have not;
* projected: the keys and values that each layer's own norm and projections make of h_l (after POP, arXiv 2602.03295);
* template: those that the chat template gives without any message;
* unseen: none (after SPEED, arXiv 2605.06105);
* zeros: zeros.

In the last, `dropped`, layers >= l are left out of the model: the final norm and the head read h_l. They are written from
the methods' descriptions and keep no more of them than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from swiftkv.data.read import render
from swiftkv.device import device_map
from swiftkv.errors import UserError
from swiftkv.models import LowerState, load_base, load_sharing, load_tokenizer, rewire, spread
from swiftkv.models.attention import each_table
from swiftkv.score.chats import ChatMeasurement
from swiftkv.score.fidelity import compare, hidden_states, summarize
from swiftkv.sources import read_source
from swiftkv.spec import SwiftKVSpec
from swiftkv.start.fit import fitted_values
from swiftkv.start.moments import Moments, known_layers

BARE = [{"role": "user", "content": ""}]
UNTRAINED = ("copied", "fitted", "own", "projected", "template", "unseen", "zeros", "dropped")


def measure_family(
    model_source: Path,
    moments: Sequence[Path],
    variants: Sequence[str],
    checkpoints: Sequence[Path],
    siblings: Sequence[Path],
    heldout: Path,
    documents: int,
    max_length: int,
    seed: int,
    output: Path,
) -> dict[str, Any]:
    """Compare all members of the family to the teacher on answers and write the measurement "family".

    The result has `members`: member ("baseline", "trained", "sibling" or one of `UNTRAINED`), variant (of trained ones;
    of siblings the model, whose config is there, too), num_key_value_layers, key_value_group_size, and kl,
    top1_agreement and perplexity with value, stderr and n; and num_hidden_layers, tokens and bytes of the answers, and documents.

    Args:
        model_source: the model's source.json.
        moments: files of this model's moments, together for every l of interest.
        variants: names of trained SwiftKV variants.
        checkpoints: theirs.
        siblings: source.json of smaller models with the same tokenizer.
        heldout: held-out chats, one a line.
        documents: how many of them are drawn; those without an answer in their first tokens are left out.
        max_length: tokens of a chat that count.
        seed: decides which chats are drawn.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged, no chat has an answer, or a sibling has another tokenizer.
    """
    measured = ChatMeasurement(model_source, heldout, documents, max_length, seed)
    teacher = load_base(measured.model["path"], device_map=device_map())
    head, depth = teacher.get_output_embeddings(), teacher.config.num_hidden_layers
    texts = measured.answers()
    if not texts:
        raise UserError(f"no chat of {heldout} has an answer in its first {max_length} tokens")
    expected = [hidden_states(teacher, document, "auto", prompt)[prompt - 1 :] for document, prompt in texts]
    counts = [len(document) - prompt for document, prompt in texts]
    members: list[dict[str, Any]] = []

    def add(names: Sequence[str], spec: SwiftKVSpec, students: Iterable[list], variant: str | None = None) -> None:
        """Add members; `students` gives, text by text, their final hidden states from the last of the prompt on, with heads."""
        rows = [
            compare(reference, given, head, document[prompt - 1 :]).sum(1)
            for reference, given, (document, prompt) in zip(expected, students, texts, strict=True)
        ]
        place = {"num_key_value_layers": spec.num_key_value_layers, "key_value_group_size": spec.key_value_group_size}
        for name, found in zip(names, torch.stack(rows).unbind(1), strict=True):
            found = summarize(found.unbind(), counts)
            members.append({"member": name, "variant": variant, **place, **found})
            print(f"{variant or name}, l = {spec.num_key_value_layers}: KL {found['kl']['value']:.4f}", flush=True)

    add(["baseline"], SwiftKVSpec(depth, depth), ([(reference, head)] for reference in expected))
    for variant, checkpoint in zip(variants, checkpoints, strict=True):
        model = load_sharing(checkpoint, teacher)
        own = model.get_output_embeddings()
        states = (hidden_states(model, document, "auto", prompt)[prompt - 1 :] for document, prompt in texts)
        add(["trained"], model.spec, ([(state, own)] for state in states), variant)
    for sibling in siblings:
        source = read_source(sibling)
        if load_tokenizer(source["path"]).get_vocab() != measured.tokenizer.get_vocab():
            raise UserError(f"{sibling.parent.name} has another tokenizer than {model_source.parent.name}")
        model = load_base(source["path"], device_map=device_map())
        states = (hidden_states(model, document, "auto", prompt)[prompt - 1 :] for document, prompt in texts)
        whole = SwiftKVSpec(*[model.config.num_hidden_layers] * 2)
        add(["sibling"], whole, ([(state, model.get_output_embeddings())] for state in states), sibling.parent.name)
        members[-1]["config"] = source["config"]
    bare = list(
        render(measured.tokenizer, BARE, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"]
    )
    fits = {layer: file for file in moments for layer in known_layers(file)}
    for layer, file in sorted(fits.items()):
        spec = SwiftKVSpec(depth, layer)
        copied, fitted = (
            spread(rewire(teacher, spec, values).eval(), teacher)
            for values in (None, fitted_values(teacher, spec, Moments.read(file, layer)))
        )
        models = {name: fitted if name in ("fitted", "own") else copied for name in UNTRAINED}
        template = lower_state(copied, bare)
        students = (
            [(answer_hidden(model, name, state, prompt, template), head) for name, model in models.items()]
            for state, prompt in ((lower_state(copied, document), prompt) for document, prompt in texts)
        )
        add(UNTRAINED, spec, students)
    result = {
        "members": members,
        "num_hidden_layers": depth,
        "fit_tokens": Moments.read(*reversed(min(fits.items()))).tokens,
        "tokens": sum(counts),
        "bytes": sum(len(measured.tokenizer.decode(document[prompt:]).encode()) for document, prompt in texts),
        "documents": len(counts),
    }
    return measured.write(
        "family", result, output, variants=list(variants), siblings=[sibling.parent.name for sibling in siblings]
    )


@torch.inference_mode()
def lower_state(model: PreTrainedModel, document: list[int]) -> LowerState:
    """The state of one text before layer l."""
    return model.model.forward_lower(torch.tensor([document], device=model.device))


@torch.inference_mode()
def answer_hidden(
    model: PreTrainedModel, name: str, state: LowerState, prompt: int, template: LowerState
) -> torch.Tensor:
    """Final hidden states of the answer and of the token before it, [tokens - prompt + 1, D].

    Args:
        model: the model rewired at l: fitted for "fitted" and "own", with the teacher's projections for all others.
        name: which of `UNTRAINED`.
        state: the text's, before layer l.
        prompt: tokens of its prompt.
        template: the state of the bare chat template.
    """
    decoder, skipped = model.model, prompt - 1
    if name == "dropped":
        return decoder.norm(state.hidden[0, skipped:])
    cache = DynamicCache()
    begin = cut(replace(state, past_key_values=cache), slice(0, skipped))
    if name in ("copied", "fitted", "own"):
        decoder.fill_upper_cache(begin)
    elif name == "template":
        bare = cut(replace(template, past_key_values=cache), slice(0, template.hidden.shape[1] - 1))
        decoder.forward_upper(bare, student=False)
    elif name != "unseen":
        layers = range(decoder.spec.num_key_value_layers, decoder.spec.num_hidden_layers)
        for block in (decoder.layers[index] for index in layers):
            block.self_attn(
                block.input_layernorm(begin.hidden),
                position_embeddings=begin.position_embeddings,
                attention_mask=None,
                past_key_values=cache,
            )
        if name == "zeros":
            for kept in (cache.layers[index] for index in layers):
                kept.keys, kept.values = torch.zeros_like(kept.keys), torch.zeros_like(kept.values)
    rest = cut(replace(state, past_key_values=cache), slice(skipped, None))
    return decoder.forward_upper(rest, student=name in ("copied", "fitted"))[0][0]


def cut(state: LowerState, part: slice) -> LowerState:
    """The state of some positions, which see all that is in its cache and those before them."""
    hidden = state.hidden[:, part]
    layers = state.past_key_values.layers
    held = layers[-1].get_seq_length() if layers else 0
    seen = torch.ones(hidden.shape[1], held + hidden.shape[1], dtype=torch.bool, device=hidden.device).tril(held)
    return replace(
        state,
        hidden=hidden,
        position_ids=state.position_ids[:, part],
        position_embeddings=each_table(state.position_embeddings, lambda table: table[:, part]),
        attention_mask=dict.fromkeys(state.attention_mask, seen[None, None]),
    )
