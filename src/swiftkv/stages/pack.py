"""Packs tokenized chats into training rows."""

from __future__ import annotations

from swiftkv.stages.stage import Stage

TOKEN_BYTES = 10  # of a packed token: id, position, two masks


STAGE = Stage(
    name="pack",
    output="packed/{model}/{recipe}.safetensors",
    run="swiftkv.distill.packing:pack_chats",
    seconds=lambda work: work.start(work.mix_tokens(work.recipe.data), "pack_tokens"),
    written=lambda work: {"data": work.packed_tokens * TOKEN_BYTES},
)
