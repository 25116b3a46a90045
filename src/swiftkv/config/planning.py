"""What plans rest on (make plan), where nothing has been measured yet."""

from __future__ import annotations

from swiftkv.predict.device import Assumption, Proportion
from swiftkv.section import Name, Section, Text, key


class Mix(Section):
    """How much text a data mix has, until it is packed and counted."""

    tokens: Assumption = key("Tokens of all its chats.")
    chat_tokens: Assumption = key("Mean tokens of a chat.")


class Host(Section):
    """Jobs that run no model, and the network."""

    start: Assumption = key("A small job, seconds.")
    artifact: Assumption = key("A table or figure, seconds.")
    read_tokens: Assumption = key("Tokens a second while chats are gathered.")
    pack_tokens: Assumption = key("Tokens a second while they are tokenized and packed.")
    convert_gb: Assumption = key("A packaged model made a checkpoint, GB/s.")
    download_gb: Assumption = key("From the hub, GB/s.")


class Device(Section):
    """One GPU, or one core of a processor, and what a job on it takes."""

    device: Text = key("What it is: a file of resources/devices, which has its peaks and what serving reaches of them.")
    float32: Proportion = key("Float32 products, as a share of the peak.")
    training: Proportion = key("Share of the peak in training.")
    forward: Proportion = key("Share of the peak in forward passes of transformers.")
    comparing: Proportion = key("The same, one text at a time, where logits are compared.")
    training_memory: Proportion | None = key("Share of a GPU's memory that a training's tensors may take.", None)
    layer_ms: Assumption = key("A layer of a decoding step of transformers, besides reading its weights; milliseconds.")
    load_gb: Assumption = key("Loading weights, GB/s.")
    start: Assumption = key("Start of a job that runs a model, seconds.")
    trainer: Assumption = key("What a training's start and end take besides, seconds.")
    task: Assumption = key("Reading a benchmark, seconds.")
    engine: Assumption = key("Start of a vLLM engine, seconds.")
    server: Assumption = key("Start of a vLLM server and its client, seconds.")


class Planning(Section, called="planning"):
    """What plans rest on."""

    data: dict[Name, Mix] = key("By data mix.")
    host: Host
    gpu: Device
    cpu: Device
