"""The model card of a trained checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.statistics import estimate
from swiftkv.io import read_json, write_text

_MEASURED = {
    "kl": "KL to the base model, nats a token",
    "top1_agreement": "same most likely token",
    "perplexity": "perplexity",
    "answer_kl": "KL to the base model on answers, nats a token",
}
_TRAINED = {
    "qkv": "query, key and value projections of these layers",
    "upper_layers": "these layers",
}
_CARD = """\
---
{head}---

# {title} with SwiftKV

{title}, converted to [SwiftKV](https://arxiv.org/abs/2410.03960) ({variant}) so that prompts cost less: layers {first} to {last}
take their keys and values from the input of layer {first}, and prompt tokens skip them, {skipped:.1%} of all layers.{caches}

| | |
|---|---|
| base model | {base} |
| trained | {train} |
| training | {steps} steps, {tokens} tokens of `{data}`, learning rate {rate:g}, loss `{loss}`{temperature} |
{measured}
Measured on {documents} held-out chats of up to {longest} tokens; brackets are 95 % intervals. A checkpoint is a derivative of its
base model: the license of {title} applies.

```python
import swiftkv.models  # pip install swiftkv; registers the SwiftKV classes with transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
```

`vllm serve` loads it where `swiftkv` is installed beside vLLM.
"""


def write_card(model_source: Path, training: Path, fidelity: Path, output: Path) -> None:
    """Write the model card of a trained, rewired checkpoint in Markdown, with the metadata of the Hugging Face hub.

    Args:
        model_source: the model's source.json.
        training: the record of the training.
        fidelity: the fidelity record of the checkpoint.
        output: the Markdown file.
    """
    source, trained, measured = (read_json(path) for path in (model_source, training, fidelity))
    spec, settings, result = trained["spec"], trained["settings"], measured["result"]
    head = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["swiftkv"]}
    if source["kind"] == "hub":
        head |= {"base_model": source["id"], "base_model_relation": "finetune"}
    base = f"{source['id']} ({source['revision']})" if source["revision"] else Path(source["id"]).name  # of a local one
    temperature = "" if settings["loss"] == "lm" else f" at temperature {settings['temperature']:g}"
    text = _CARD.format(
        head=yaml.safe_dump(head, sort_keys=False),
        title=source["title"],
        variant=trained["variant"],
        first=spec["num_key_value_layers"],
        last=spec["num_hidden_layers"] - 1,
        skipped=spec["prefill_reduction"],
        caches=_caches(spec),
        base=base,
        train=_TRAINED[settings["train"]],
        steps=trained["result"]["steps"],
        tokens=trained["result"]["tokens"],
        data=settings["data"],
        rate=settings["learning_rate"],
        loss=settings["loss"],
        temperature=temperature,
        measured="".join(
            f"| {words} | {_interval(result[name])} |\n" for name, words in _MEASURED.items() if result.get(name)
        ),
        documents=result["documents"],
        longest=measured["settings"]["max_length"],
    )
    write_text(output, text)


def _caches(spec: dict[str, Any]) -> str:
    """A sentence about AcrossKV; empty where every layer has a cache of its own."""
    group = spec["key_value_group_size"]
    return (
        f" {group} neighboring ones share a KV cache, so it is {spec['kv_cache_reduction']:.1%} smaller."
        if group > 1
        else ""
    )


def _interval(number: dict[str, Any]) -> str:
    """A number of a fidelity record with its 95 % interval."""
    shown = estimate(number["value"], number["stderr"], number["n"])
    return f"{shown.value:.4g}" + (f" [{shown.low:.4g}, {shown.high:.4g}]" if shown.stderr else "")
