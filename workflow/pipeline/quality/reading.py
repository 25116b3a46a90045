"""How much a prompt's text lowers the bits of the answer: of gold answers of questions about the text.

    kept = (bits of the answer without the text - bits of the variant with it) / (the same of the unchanged model)

Questions are SQuAD's in the chat template, about a passage alone and among three others. A family is a sweep over l without
any training: layers below l are the unchanged model's, so one pass of it serves every l, and of the layers above only
keys and values of the prompt and the rows that predict the answer are computed.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, PreTrainedModel

from pipeline.config.settings import Prompts
from pipeline.prompts import choose_questions, question_prompt
from pipeline.quality.chat_measurement import require_spec
from pipeline.quality.fidelity import compare_positions, untrained
from pipeline.records import KeptAnswers, describe_spec, machine, measurement, weights_of
from pipeline.sources import read_source
from swiftkv.cost import Dimensions, prefill_flops
from swiftkv.device import device_map, dtype_name
from swiftkv.errors import UserError
from swiftkv.io import write_json
from swiftkv.models import load_base, load_sharing, load_tokenizer
from swiftkv.spec import SwiftKVSpec

ANSWER = 8  # tokens of an answer that count, at most
OTHERS = 3  # passages beside the right one


class Document(NamedTuple):
    """Token ids, and how many of them come before the answer."""

    tokens: tuple[int, ...]
    prompt: int


class Item(NamedTuple):
    """An answer after the text and the question, and after the question alone."""

    given: Document
    without: Document


def question(tokenizer: Any, texts: Sequence[str], asked: str, answer: str) -> Document:
    """A question about texts, in the chat template."""
    prompt = question_prompt(tokenizer, [*texts, asked])
    return Document((*prompt, *tokenizer(answer, add_special_tokens=False)["input_ids"][:ANSWER]), len(prompt))


def tasks(tokenizer: Any, chats: Path, settings: Prompts) -> dict[str, list[Item]]:
    """Return questions about a passage alone, and the first of them about it at a random place among three others, by task.

    Raises:
        UserError: as `choose_questions`, or there are too few.
    """
    draw = random.Random(settings.seed)
    read = choose_questions(chats, settings.items, settings.seed)
    if len(read) <= OTHERS:
        raise UserError(f"{chats} must have more than {OTHERS} questions")
    alone, among = [], []
    for place, (title, passage, asked, answer, *_) in enumerate(read):
        without = question(tokenizer, [title], asked, answer)
        alone.append(Item(question(tokenizer, [title, passage], asked, answer), without))
        drawn = [read[place], *draw.sample(read[:place] + read[place + 1 :], OTHERS)]
        draw.shuffle(drawn)
        texts = [text for other in drawn for text in other[:2]]
        among.append(Item(question(tokenizer, texts, asked, answer), without))
    return {"squad": alone, "among": among[: settings.among]}


def answer_states(model: PreTrainedModel, hidden: torch.Tensor, prompt: int) -> torch.Tensor:
    """Final states [answer tokens, D] of a rewired model at the positions that predict the answer, as it is served.

    Args:
        model: SwiftKV language model.
        hidden: residual stream entering layer l, of all tokens but the last [1, T, D].
        prompt: tokens before the answer; the last of them runs all layers.
    """
    decoder, cache, cut = model.model, DynamicCache(config=model.config), prompt - 1
    places = torch.arange(hidden.shape[1], device=hidden.device)[None]
    blank = hidden.new_zeros(1, 1, cut, 1)
    for layer in range(decoder.spec.num_key_value_layers):
        cache.update(blank, blank, layer)  # masks follow from how many tokens these have
    decoder.fill_upper_cache(decoder.state(hidden[:, :cut], places[:, :cut], {}, cache))
    whole = torch.ones_like(places[:, cut:], dtype=torch.bool)  # read with own_key_values alone
    state = decoder.state(hidden[:, cut:], places[:, cut:], None, cache, full_depth=whole)
    return decoder.forward_upper(state, student=True)[0][0]


def shares_lower(teacher: PreTrainedModel, model: PreTrainedModel) -> bool:
    """Return True if a rewired model shares the unchanged model's weights below layer l, so that one pass serves both."""
    decoder = model.model
    lower = torch.nn.ModuleList([decoder.embed_tokens, *decoder.layers[: decoder.spec.num_key_value_layers]])
    return set(teacher.parameters()).issuperset(lower.parameters())


@torch.inference_mode()
def answer_bits(
    teacher: PreTrainedModel, members: Mapping[int, PreTrainedModel], document: Document
) -> list[list[float]]:
    """Bits of the answer, and KL of the unchanged model to a member in nats over the answer, of it and of each member by l."""
    row = torch.tensor([document.tokens[:-1]], device=teacher.device)
    run, head = teacher.base_model(row, use_cache=False, output_hidden_states=True), teacher.get_output_embeddings()
    reference = run.last_hidden_state[0, document.prompt - 1 :]
    students = [(reference, head)]
    for layer, model in members.items():
        shared = shares_lower(teacher, model)
        hidden = run.hidden_states[layer] if shared else model.model.forward_lower(row).hidden
        students.append((answer_states(model, hidden, document.prompt), model.get_output_embeddings()))
    found = compare_positions(reference, students, head, document.tokens[document.prompt - 1 :]).sum(1)
    return [[nll / math.log(2), kl] for kl, _, nll in found.tolist()]


def measure_reading(
    model_source: Path,
    questions: Path,
    variant: str,
    settings: Prompts,
    output: Path,
    layers: Sequence[int] = (),
    moments: Path | None = None,
    checkpoint: Path | None = None,
    spec: SwiftKVSpec | None = None,
    state: Path | None = None,
) -> dict[str, Any]:
    """Measure what a trained variant, or a family of untrained ones, reads in prompts; write the measurement "reading".

    The result has `tasks`, for each the tokens of every prompt and answer and a hash that is equal for the same items;
    `members`, first the unchanged model (l = L): layer, l; flops, of a prompt of SQuAD as a share of the unchanged
    model's; and by task, of every item, bits with the text, bits_without, and kl, of the unchanged model to this one in nats
    over the answer.

    Args:
        model_source: the model's source.json.
        questions: SQuAD as chats, one a line.
        variant: name of the variant, or of the family: copied or fitted.
        settings: which items there are.
        output: JSON file.
        layers: every l of a family.
        moments: what a fitted family is fitted to; None for a copied one.
        checkpoint: trained checkpoint of a variant.
        spec: the variant's rewiring; None is a family.
        state: folder for the items so far, from which another call goes on; gone at the end.

    Raises:
        UserError: a file is missing or damaged, or the model has too few positions for any question about a passage.
    """
    started, model = time.monotonic(), read_source(model_source)
    tokenizer, config = load_tokenizer(model["path"]), model["config"]
    items = tasks(tokenizer, questions, settings)
    positions = config.get("max_position_embeddings") or math.inf
    short = {name: [item for item in group if len(item.given.tokens) <= positions] for name, group in items.items()}
    if short["squad"] and short != items:
        left = {name: len(items[name]) - len(group) for name, group in short.items()}
        print(f"reading of {variant}: left out, longer than the model's {positions} positions: {left}", flush=True)
        items = {name: group for name, group in short.items() if group}
    # The control of a question is the same alone and among others.
    documents = list(dict.fromkeys(document for group in items.values() for item in group for document in item))
    longest = max(len(document.tokens) for document in documents)
    if longest > (config.get("max_position_embeddings") or longest):
        raise UserError(
            f"{model['title']} has too few positions for {longest} tokens; give reading.data questions about shorter passages"
        )
    teacher = load_base(model["path"], device_map=device_map())
    total = config["num_hidden_layers"]
    if spec is None:
        members = {layer: untrained(teacher, SwiftKVSpec(total, layer), moments) for layer in layers}
    else:
        trained = load_sharing(checkpoint, teacher)
        require_spec(checkpoint, trained.spec, spec)
        members = {spec.num_key_value_layers: trained}
    conditions = {"variant": variant, "layers": [*members], "machine": machine()}
    sources = [path for path in (Path(model["path"]), moments, checkpoint) if path]
    kept = KeptAnswers(state, conditions, sources)

    found = {}
    for number, document in enumerate(documents, 1):
        measure = partial(answer_bits, teacher, members, document)
        found[document] = kept.answer(document, measure)
        if number % 50 == 0 or number == len(documents):
            print(f"reading of {variant}: {number} of {len(documents)} prompts", flush=True)
    arch = Dimensions.from_config(config)
    prompt = round(sum(item.given.prompt for item in items["squad"]) / len(items["squad"]))
    specs = {total: SwiftKVSpec(total, total)} | {layer: member.spec for layer, member in members.items()}
    flops = {layer: sum(prefill_flops(arch, own, prompt).values()) for layer, own in specs.items()}
    result = {
        "tasks": {
            name: {
                "sha256": hashlib.sha256(json.dumps(group).encode()).hexdigest(),
                "prompt_tokens": [item.given.prompt for item in group],
                "answer_tokens": [len(item.given.tokens) - item.given.prompt for item in group],
            }
            for name, group in items.items()
        },
        "members": [
            {
                "layer": layer,
                "flops": count / flops[total],
                "tasks": {
                    name: {
                        "bits": [found[item.given][place][0] for item in group],
                        "bits_without": [found[item.without][place][0] for item in group],
                        "kl": [found[item.given][place][1] for item in group],
                    }
                    for name, group in items.items()
                },
            }
            for place, (layer, count) in enumerate(flops.items())
        ],
    }
    record = measurement(
        "reading",
        model=model,
        variant=variant,
        **weights_of(checkpoint),
        spec=describe_spec(spec, config),
        settings=settings.model_dump() | {"dtype": dtype_name()},
        result=result,
        seconds=time.monotonic() - started,
    )
    write_json(output, record)
    kept.delete()
    return record
