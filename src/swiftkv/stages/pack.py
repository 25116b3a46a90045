"""Packs tokenized chats into training rows."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="pack",
    output="packed/{model}/{recipe}.safetensors",
    run="swiftkv.distill.packing:pack_chats",
)
