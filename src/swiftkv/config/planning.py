"""What plans rest on (make plan), where nothing has been measured yet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from swiftkv.section import Name, Quantity, Section, Share, Text


class Assumption(Section, called="an assumption"):
    """A number that a plan rests on."""

    value: Quantity = Field(description="The number.")
    sure: Literal["measured", "data sheet", "published", "assumed"] = Field(description="Where it is from.")
    why: Text = Field(description="What it is, and measured where or assumed why.")


class Proportion(Assumption, called="an assumption"):
    """A share that a plan rests on."""

    value: Share = Field(description="The number, at most 1.")


class Mix(Section):
    """How much text a data mix has, until it is packed and counted."""

    tokens: Assumption = Field(description="Tokens of all its chats.")
    chat_tokens: Assumption = Field(description="Mean tokens of a chat.")


class Host(Section):
    """Jobs that run no model, and the network."""

    start: Assumption = Field(description="A small job, seconds.")
    artifact: Assumption = Field(description="A table or figure, seconds.")
    read_tokens: Assumption = Field(description="Tokens a second while chats are gathered.")
    pack_tokens: Assumption = Field(description="Tokens a second while they are tokenized and packed.")
    convert_gb: Assumption = Field(description="A packaged model made a checkpoint, GB/s.")
    download_gb: Assumption = Field(description="From the hub, GB/s.")


class Device(Section):
    """One GPU, or one core of a processor, and what a job on it takes."""

    name: Text = Field(description="What it is.")
    tflops: Assumption = Field(description="Peak of one in 16 bits, TFLOP/s.")
    float32: Proportion = Field(description="Float32 products, as a share of that.")
    training: Proportion = Field(description="Share of the peak in training.")
    forward: Proportion = Field(description="Share of the peak in forward passes of transformers.")
    comparing: Proportion = Field(description="The same, one text at a time, where logits are compared.")
    serving: Proportion = Field(description="Share of the peak in vLLM.")
    memory_gb: Assumption = Field(description="Weights a decoding step reads, GB/s.")
    layer_ms: Assumption = Field(description="A layer of a decoding step besides, milliseconds.")
    load_gb: Assumption = Field(description="Loading weights, GB/s.")
    start: Assumption = Field(description="Start of a job that runs a model, seconds.")
    trainer: Assumption = Field(description="What a training's start and end take besides, seconds.")
    task: Assumption = Field(description="Reading a benchmark, seconds.")
    engine: Assumption = Field(description="Start of a vLLM engine, seconds.")
    server: Assumption = Field(description="Start of a vLLM server and its client, seconds.")


class Planning(Section, called="planning"):
    """What plans rest on."""

    data: dict[Name, Mix] = Field(description="By data mix.")
    host: Host
    gpu: Device
    cpu: Device
