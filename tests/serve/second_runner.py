"""One step as vLLM's second model runner (V2) prepares it, given to the plugin; run by `test_second_runner.py`.

V2 needs a GPU, or a Triton for processors (`interpreted.py` has one). What it does for fast prefill is plain torch and runs
anywhere: its `FastPrefillHelper` picks the rows, the attention metadata carry them, and the model reads them from there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.utils import create_fast_prefill_custom_backend
from vllm.v1.worker.gpu.attn_utils import FastPrefillHelper

from swiftkv.serve.model import SwiftKVModel

LAYER = "model.layers.3.self_attn.attn"


@dataclass
class Metadata:
    """What attention of the layers >= l would run on."""

    query_start_loc: torch.Tensor
    num_actual_tokens: int


class Builder(AttentionMetadataBuilder):
    """Keeps the rows; no kernel is run."""

    def __init__(self) -> None:
        """Needs nothing."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return Metadata(common_attn_metadata.query_start_loc, common_attn_metadata.num_actual_tokens)


class Backend(AttentionBackend):
    """An attention backend without kernels."""

    @staticmethod
    def get_builder_cls():
        return Builder

    @staticmethod
    def get_name():
        return "NONE"

    get_impl_cls = get_kv_cache_shape = None


def step(queries: list[int], logits: list[int], prefill: bool, mode: str, padded: int) -> dict:
    """The rows of one step.

    Args:
        queries: tokens of each request.
        logits: rows with logits of each request, its last ones.
        prefill: whether the runner says that a prompt is among them.
        mode: of the step's CUDA graph.
        padded: a captured size that rows are padded to.
    """
    ends = list(accumulate(queries))
    rows = [row for end, count in zip(ends, logits, strict=True) for row in range(end - count, end)]
    manager = SimpleNamespace(
        device=torch.device("cpu"),
        dispatch=lambda **asked: SimpleNamespace(num_tokens=max(padded, asked["num_tokens"])),
    )
    helper = FastPrefillHelper(manager, 64)
    helper.logits_indices_buf.fill_(63)  # of earlier steps
    armed = helper.prepare(
        torch.tensor(rows, dtype=torch.int32),
        len(queries),
        np.array([0, *accumulate(logits)]),
        prefill,
        SimpleNamespace(cg_mode=CUDAGraphMode[mode], num_ubatches=1),
    )
    starts = torch.tensor([0, *ends], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(queries) + 5,
        num_reqs=len(queries),
        num_actual_tokens=ends[-1],
        max_query_len=max(queries),
        max_seq_len=max(queries) + 5,
        block_table_tensor=torch.zeros(len(queries), 1),
        slot_mapping=torch.zeros(ends[-1]),
        **(vars(armed) if armed else {}),
    )
    metadata = create_fast_prefill_custom_backend("FastPrefill", Backend).get_builder_cls()().build(0, common)
    model = SimpleNamespace(fast_prefill=True, last_attention=LAYER)
    with override_forward_context(ForwardContext({}, {LAYER: metadata}, {})):
        gathered, count = SwiftKVModel._rows_with_logits(model, ends[-1])
    return {
        "rows": None if gathered is None else gathered.tolist(),
        "count": count,
        "starts": metadata.query_start_loc.tolist(),
        "attended": metadata.num_actual_tokens,
    }


if __name__ == "__main__":
    print(json.dumps([step(**case) for case in json.loads(sys.argv[1])]))
