"""What plans rest on where nothing has been measured yet: lengths of text, and speeds of machines."""

from __future__ import annotations

from typing import Literal

from swiftkv.section import Name, Quantity, Section, Text, key


class Assumption(Section):
    """A number that plans rest on."""

    value: Quantity = key("The number.")
    sure: Literal["measured", "data sheet", "published", "assumed"] = key("Where it is from.")
    why: Text = key("What it is, and measured where or assumed why.")


class Mix(Section):
    """How much text a data mix has, until it is packed and counted."""

    tokens: Assumption = key("Tokens of all its chats.")
    chat_tokens: Assumption = key("Mean tokens of a chat.")


class Host(Section):
    """Jobs that run no model, and the network."""

    start: Assumption = key("A small job, seconds.")
    read_tokens: Assumption = key("Tokens a second while chats are gathered.")
    pack_tokens: Assumption = key("Tokens a second while they are tokenized and packed.")
    convert_gb: Assumption = key("A packaged model made a checkpoint, GB/s.")
    download_gb: Assumption = key("From the hub, GB/s.")


class Device(Section):
    """One GPU, or one core of a processor, and the jobs that run a model on it."""

    training: Assumption = key("TFLOP/s of a training.")
    forward: Assumption = key("TFLOP/s of forward passes of transformers.")
    serving: Assumption = key("TFLOP/s of a busy vLLM engine, 2 FLOPs a parameter and token.")
    layer_ms: Assumption = key("Milliseconds of a layer in a decoding step.")
    load_gb: Assumption = key("Loading weights, GB/s.")
    start: Assumption = key("Start of a job that runs a model, seconds.")
    task: Assumption = key("Reading a benchmark, seconds.")
    engine: Assumption = key("Start of a vLLM engine, seconds.")


class Gpu(Device):
    """One GPU."""

    node: Assumption = key("GPUs of a node, which a job counts that has the node to itself.")


class Core(Device):
    """One core of the processor that the speeds were measured on."""

    product: Assumption = key("GFLOP/s of torch.nn.Linear(576, 1536) over 512 rows on one thread.")


class Planning(Section):
    """What plans rest on."""

    data: dict[Name, Mix] = key("By data mix.")
    host: Host
    gpu: Gpu
    cpu: Core
