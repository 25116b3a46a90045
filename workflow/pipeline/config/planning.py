"""The planning section of the configuration: lengths of text and speeds, on which plans rest until something is measured."""

from __future__ import annotations

from swiftkv.section import Name, Quantity, Section, Whole, key


class Mix(Section):
    """How much text a data mix has."""

    tokens: Quantity = key("Tokens of all its chats.")
    chat_tokens: Quantity = key("Mean tokens of a chat.")


class Host(Section):
    """Jobs that run no model, and the network."""

    start: Quantity = key("A small job, seconds.")
    read_tokens: Quantity = key("Tokens a second while chats are gathered.")
    pack_tokens: Quantity = key("Tokens a second while they are tokenized and packed.")
    convert_gb: Quantity = key("A packaged model made a checkpoint, GB/s.")
    download_gb: Quantity = key("From the hub, GB/s.")


class DeviceSpeed(Section):
    """One GPU, or one core of a processor, and the jobs that run a model on it."""

    training: Quantity = key("TFLOP/s of a training.")
    forward: Quantity = key("TFLOP/s of forward passes of transformers.")
    serving: Quantity = key("TFLOP/s of a busy vLLM engine, 2 FLOPs a parameter and token.")
    layer_ms: Quantity = key("Milliseconds of a layer in a decoding step.")
    load_gb: Quantity = key("Loading weights, GB/s.")
    start: Quantity = key("Start of a job that runs a model, seconds.")
    task: Quantity = key("Reading a benchmark, seconds.")
    engine: Quantity = key("Start of a vLLM engine, seconds.")


class GpuSpeed(DeviceSpeed):
    """One GPU."""

    node: Whole = key("GPUs of a node, which a job counts that has the node to itself.")


class CoreSpeed(DeviceSpeed):
    """One core of the processor that the speeds were measured on."""

    product: Quantity = key("GFLOP/s of torch.nn.Linear(576, 1536) over 512 rows on one thread.")


class Planning(Section):
    """Lengths of text and speeds of machines."""

    data: dict[Name, Mix] = key("By data mix.")
    host: Host
    gpu: GpuSpeed
    cpu: CoreSpeed
