"""One step as each of vLLM's model runners prepares it, run by the plugin's model; a program of `test_one_step.py`.

    python tests/serve/one_step.py '[{...}, ...]'

No engine runs, and no kernel: V2 needs a GPU for its own. What a runner does for fast prefill is plain Python and runs
anywhere: it dispatches the step to a CUDA graph, picks the rows and puts them into the attention metadata. Spies stand
for the two halves.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import nn
from vllm import SamplingParams
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.forward_context import BatchDescriptor, ForwardContext, get_forward_context, override_forward_context
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.utils import create_fast_prefill_custom_backend
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from swiftkv.serve.attention import noting
from swiftkv.serve.graphs import UpperGraphs
from swiftkv.serve.model import SwiftKVModel
from swiftkv.serve.prompt_logprobs import PromptLogprobsGuard, batch_prompts
from swiftkv.spec import SwiftKVSpec

LAYER = "model.layers.3.self_attn.attn"
LONGEST = 64  # tokens a step
COMPUTED = 5  # tokens of each request before the step


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


class Settings(SimpleNamespace):
    """May be referred to weakly, as vLLM's."""


@dataclass(frozen=True)
class Step:
    """A step and vLLM's settings.

    Attributes:
        queries: tokens of each request.
        logits: rows with logits of each request, its last ones.
        decoding: of each request, whether its prompt was computed before.
        left: prompt tokens of each request that later steps compute.
        mode: vLLM's setting of CUDA graphs.
        sizes: captured ones.
    """

    queries: list[int]
    logits: list[int]
    decoding: list[bool]
    left: list[int]
    mode: str
    sizes: list[int]

    @property
    def ends(self) -> list[int]:
        """The row after each request's last."""
        return list(accumulate(self.queries))

    @property
    def rows(self) -> torch.Tensor:
        """With logits."""
        spans = [range(end - count, end) for end, count in zip(self.ends, self.logits, strict=True)]
        return torch.tensor([row for span in spans for row in span], dtype=torch.int32)

    @property
    def starts(self) -> torch.Tensor:
        """The first row of each request, and the number of all."""
        return torch.tensor([0, *self.ends], dtype=torch.int32)

    @property
    def prompts(self) -> np.ndarray:
        """Tokens of each request's prompt."""
        return COMPUTED + np.where(self.decoding, 0, np.array(self.queries) + np.array(self.left))

    @cached_property
    def settings(self) -> Settings:
        """What the runners read of vLLM's settings."""
        compilation = CompilationConfig(mode=3, cudagraph_mode=self.mode)
        compilation.cudagraph_capture_sizes = self.sizes
        compilation.max_cudagraph_capture_size = max(self.sizes, default=0)
        compilation.splitting_ops = list(compilation._attention_ops)
        return Settings(
            compilation_config=compilation,
            scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=LONGEST),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
            model_config=MagicMock(enable_prompt_embeds=False, uses_mrope=False, max_model_len=128),
            lora_config=None,
            speculative_config=None,
            num_speculative_tokens=0,
        )


def first_runner(step: Step) -> tuple[dict, CUDAGraphMode, BatchDescriptor, list[BatchDescriptor]]:
    """Metadata by layer, mode and descriptor of the step, and the descriptors V1 captures piecewise graphs with."""
    dispatcher = CudagraphDispatcher(step.settings)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode[step.mode])
    mode, descriptor = dispatcher.dispatch(step.ends[-1])
    runner = SimpleNamespace(
        kv_sharing_fast_prefill_logits_indices=torch.full(
            [LONGEST], LONGEST - 1, dtype=torch.int32
        ),  # of earlier steps
        cudagraph_dispatcher=dispatcher,
    )
    given = dict(
        query_start_loc=step.starts,
        query_start_loc_cpu=step.starts,
        seq_lens=torch.tensor(step.queries) + COMPUTED,
        seq_lens_cpu_upper_bound=torch.tensor(step.queries) + COMPUTED,
        num_reqs=len(step.queries),
        num_actual_tokens=step.ends[-1],
        max_query_len=max(step.queries),
        max_seq_len=max(step.queries) + COMPUTED,
        block_table_tensor=torch.zeros(len(step.queries), 1),
        slot_mapping=torch.zeros(step.ends[-1]),
        logits_indices_padded=GPUModelRunner._prepare_kv_sharing_fast_prefill(runner, step.rows),
        num_logits_indices=len(step.rows),
        max_logits_per_req=max(step.logits),
    )
    known = {field.name for field in fields(CommonAttentionMetadata)}  # vLLM 0.26 has no max_logits_per_req
    common = CommonAttentionMetadata(**{name: value for name, value in given.items() if name in known})
    added = [(place, SamplingParams(), [0] * int(tokens), []) for place, tokens in enumerate(step.prompts)]
    PromptLogprobsGuard(step.settings, None, False).update_state(BatchUpdate(len(added), [], added, []))
    builder = create_fast_prefill_custom_backend("FastPrefill", noting(Backend)).get_builder_cls()()
    builder.vllm_config = step.settings
    metadata = builder.build(0, common)
    captured = [key for mode, keys in dispatcher.get_capture_descs() if mode == CUDAGraphMode.PIECEWISE for key in keys]
    return {LAYER: metadata}, mode, descriptor, captured


def second_runner(step: Step, model: nn.Module) -> tuple[dict, CUDAGraphMode, BatchDescriptor, list[BatchDescriptor]]:
    """As `first_runner`, of V2."""
    from vllm.v1.worker.gpu import cudagraph_utils
    from vllm.v1.worker.gpu.attn_utils import FastPrefillHelper
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    from swiftkv.serve.model_state import SwiftKVModelState

    settings, device, requests = step.settings, torch.device("cpu"), len(step.queries)
    with patch.multiple(cudagraph_utils, get_pp_group=MagicMock(), current_platform=MagicMock()):
        manager = cudagraph_utils.CudaGraphManager(settings, device, CUDAGraphMode[step.mode], decode_query_len=1)
    manager._graphs_captured = True
    chosen = manager.dispatch(requests, step.ends[-1], uniform_token_count=None, num_active_loras=0)
    helper = FastPrefillHelper(manager, LONGEST)
    helper.logits_indices_buf.fill_(LONGEST - 1)  # of earlier steps
    queries = np.array(step.queries, dtype=np.int32)
    armed = helper.prepare(step.rows, requests, np.array([0, *accumulate(step.logits)]), not all(step.decoding), chosen)
    batch = replace(
        InputBatch.make_dummy(requests, step.ends[-1], InputBuffers(16, LONGEST, device)),
        num_scheduled_tokens=queries,
        query_start_loc=step.starts,
        query_start_loc_np=step.starts.numpy(),
        seq_lens=torch.from_numpy(queries + COMPUTED),
        seq_lens_cpu_upper_bound=torch.from_numpy(queries + COMPUTED),
        num_computed_tokens_np=np.full(requests, COMPUTED),
        prefill_len_np=step.prompts,
        num_computed_prefill_tokens_np=np.minimum(step.prompts, COMPUTED),
        is_prefilling_np=~np.array(step.decoding),
        fast_prefill=armed,
    )
    builder = create_fast_prefill_custom_backend("FastPrefill", Backend).get_builder_cls()()
    group = SimpleNamespace(
        layer_names=[LAYER],
        kv_cache_spec=None,
        get_metadata_builder=lambda number: builder,
        build_metadata=lambda common, number: builder.build(0, common),
    )
    state = SwiftKVModelState(settings, SimpleNamespace(model=model), None, device)
    metadata = state.prepare_attn(
        batch, chosen.cg_mode, (torch.zeros(requests, 1),), torch.zeros(1, step.ends[-1]), [[group]],
        SimpleNamespace(kv_cache_groups=[None]),
    )  # fmt: skip
    captured = [BatchDescriptor(desc.num_tokens) for desc in manager._capture_descs.get(CUDAGraphMode.PIECEWISE, [])]
    return metadata, chosen.cg_mode, BatchDescriptor(max(chosen.num_tokens, step.ends[-1])), captured


def answer(runner: str, **case) -> dict:
    """As `run`; without a second runner, or fast prefill in it, what is absent."""
    try:
        return run(runner, **case)
    except ImportError as error:
        if not (error.name or "").startswith("vllm.v1.worker.gpu."):
            raise
        return {"absent": str(error)}


def run(runner: str, **case) -> dict:
    """What the upper half was called with in a step, and what came back."""
    step, calls = Step(**case), []
    model = SwiftKVModel.__new__(SwiftKVModel)
    nn.Module.__init__(model)

    def upper(positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        context = get_forward_context()
        calls.append(
            {
                "rows": positions.tolist(),
                "descriptor": context.batch_descriptor and context.batch_descriptor.num_tokens,
                "mode": context.cudagraph_runtime_mode.name,
                "static": positions.data_ptr() == model.graphs.positions.data_ptr(),
            }
        )
        assert hidden_states[:, 0].tolist() == [row + 1 for row in positions.tolist()]
        return 2 * hidden_states

    model.lower = lambda tokens, positions, embedded: (positions[:, None] + torch.ones(1), None, None)
    model.spec, model.caches = SwiftKVSpec(4, 3), None
    model.fast_prefill, model.last_attention, model.readers = True, LAYER, []
    model.prompts = batch_prompts(step.settings)
    model.graphs = UpperGraphs(upper, step.settings.compilation_config, torch.ones(1))
    metadata, mode, descriptor, captured = first_runner(step) if runner == "V1" else second_runner(step, model)

    for key in captured:
        with override_forward_context(
            ForwardContext({}, {}, {}, cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE, batch_descriptor=key)
        ):
            model.graphs.run(torch.arange(key.num_tokens), torch.arange(key.num_tokens)[:, None] + torch.ones(1))
    captures = [call["descriptor"] for call in calls]
    assert all(call["static"] for call in calls)
    calls.clear()

    context = ForwardContext({}, metadata, {}, cudagraph_runtime_mode=mode, batch_descriptor=descriptor)
    with override_forward_context(context):
        output = model(None, torch.arange(descriptor.num_tokens))
        assert get_forward_context() is context
    assert (context.cudagraph_runtime_mode, context.batch_descriptor) == (mode, descriptor)
    return {
        "calls": calls,
        "captures": captures,
        "step": [descriptor.num_tokens, mode.name],
        "output": output[:, 0].tolist(),
        "starts": metadata[LAYER].query_start_loc.tolist(),
        "attended": metadata[LAYER].num_actual_tokens,
    }


if __name__ == "__main__":
    print(json.dumps([answer(**case) for case in json.loads(sys.argv[1])]))
