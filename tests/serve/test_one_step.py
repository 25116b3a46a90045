"""In both of vLLM's model runners the upper half runs the rows with logits, in CUDA graphs of their number, or not at all.

No engine runs, and no kernel: V2 needs a GPU for its own. What a runner does for fast prefill is plain Python and runs
anywhere: it dispatches the step to a CUDA graph, picks the rows and puts them into the attention metadata. Spies stand
for the two halves.
"""

from dataclasses import dataclass, fields, replace
from itertools import accumulate
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
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
GRAPHS = dict(mode="FULL_AND_PIECEWISE", sizes=(1, 2, 4, 8))


class Builder(AttentionMetadataBuilder):
    """Keeps the rows; no kernel is run."""

    def __init__(self):
        """Needs nothing."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        rows = common_attn_metadata
        return Metadata(rows.query_start_loc, rows.query_start_loc_cpu, rows.num_actual_tokens)


@dataclass
class Metadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    num_actual_tokens: int


class Backend(AttentionBackend):
    get_builder_cls = staticmethod(lambda: Builder)
    get_name = staticmethod(lambda: "NONE")
    get_impl_cls = get_kv_cache_shape = None


class Settings(SimpleNamespace):
    """May be referred to weakly, as vLLM's."""


@dataclass(frozen=True)
class Step:
    """A step and vLLM's settings."""

    queries: list[int]  # tokens of each request
    drafts: tuple[int, ...] = (0,) * 10  # rows with logits beside the last one, of each request
    decoding: tuple[int, ...] = ()  # places of the requests whose prompts were computed before
    left: tuple[int, ...] = (0,) * 10  # prompt tokens of each request that later steps compute
    mode: str = "NONE"  # of CUDA graphs
    sizes: tuple[int, ...] = ()  # captured ones

    @property
    def tokens(self):
        return sum(self.queries)

    @property
    def logits(self):
        return [1 + more for _, more in zip(self.queries, self.drafts, strict=False)]

    @property
    def rows(self):
        ends = accumulate(self.queries)
        spans = [range(end - count, end) for end, count in zip(ends, self.logits, strict=True)]
        return torch.tensor([row for span in spans for row in span], dtype=torch.int32)

    @property
    def starts(self):
        return torch.tensor([0, *accumulate(self.queries)], dtype=torch.int32)

    @property
    def prompts(self):
        rest = [0 if place in self.decoding else query + self.left[place] for place, query in enumerate(self.queries)]
        return COMPUTED + np.array(rest)

    def settings(self):
        compilation = CompilationConfig(mode=3, cudagraph_mode=self.mode)
        compilation.cudagraph_capture_sizes = list(self.sizes)
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


# A step; its tokens and mode as vLLM dispatches them; the rows the upper half is called with, and the mode.
STEPS = {
    "a prompt": (Step([6]), (6, "NONE"), [5], "NONE"),
    "drafts to verify beside a prompt": (Step([3, 4], drafts=(2, 0), decoding=(0,)), (7, "NONE"), [0, 1, 2, 6], "NONE"),
    "drafts alone": (Step([3, 3], drafts=(2, 2), decoding=(0, 1)), (6, "NONE"), [0, 1, 2, 3, 4, 5], "NONE"),
    # Graphs of 8 tokens are not replayed for 4 rows, nor for 3 that are padded to 4.
    "rows of a captured size": (
        Step([1, 5, 1, 1], decoding=(0, 2, 3), **GRAPHS), (8, "PIECEWISE"), [0, 5, 6, 7], "PIECEWISE"
    ),
    "padded rows of padded tokens": (
        Step([1, 5, 1], decoding=(0, 2), **GRAPHS), (8, "PIECEWISE"), [0, 5, 6, 6], "PIECEWISE"
    ),
    "decoding alone, captured": (
        Step([1] * 4, decoding=(0, 1, 2, 3), **GRAPHS), (4, "PIECEWISE"), [0, 1, 2, 3], "PIECEWISE"
    ),
    # Too many tokens for a graph, but not too many rows.
    "rows beside a long prompt": (
        Step([1, 20, 1], decoding=(0, 2), **GRAPHS), (22, "NONE"), [0, 20, 21, 21], "PIECEWISE"
    ),
    "too many rows": (Step([1] * 9 + [5], decoding=tuple(range(9)), **GRAPHS), (14, "NONE"), [*range(9), 13], "NONE"),
    "graphs for decoding alone": (
        Step([1, 5, 1], decoding=(0, 2), **GRAPHS | {"mode": "FULL_DECODE_ONLY"}), (7, "NONE"), [0, 5, 6], "NONE"
    ),
    "a prompt goes on beside decoding": (Step([1, 5], decoding=(0,), left=(0, 8)), (6, "NONE"), [0, 5], "NONE"),
    # Without a row to sample from.
    "two prompts go on": (Step([4, 2], left=(8, 1)), (6, "NONE"), [], "NONE"),
    "a prompt goes on in a graph": (Step([6], left=(1,), **GRAPHS), (8, "PIECEWISE"), [], "NONE"),
}  # fmt: skip


def first_runner(step, settings, model):
    """Metadata by layer, mode and descriptor of the step, and the descriptors V1 captures piecewise graphs with."""
    dispatcher = CudagraphDispatcher(settings)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode[step.mode])
    mode, descriptor = dispatcher.dispatch(step.tokens)
    earlier = torch.full([LONGEST], LONGEST - 1, dtype=torch.int32)  # rows of earlier steps
    runner = SimpleNamespace(kv_sharing_fast_prefill_logits_indices=earlier, cudagraph_dispatcher=dispatcher)
    given = dict(
        query_start_loc=step.starts,
        query_start_loc_cpu=step.starts,
        seq_lens=torch.tensor(step.queries) + COMPUTED,
        seq_lens_cpu_upper_bound=torch.tensor(step.queries) + COMPUTED,
        num_reqs=len(step.queries),
        num_actual_tokens=step.tokens,
        max_query_len=max(step.queries),
        max_seq_len=max(step.queries) + COMPUTED,
        block_table_tensor=torch.zeros(len(step.queries), 1),
        slot_mapping=torch.zeros(step.tokens),
        logits_indices_padded=GPUModelRunner._prepare_kv_sharing_fast_prefill(runner, step.rows),
        num_logits_indices=len(step.rows),
        max_logits_per_req=max(step.logits),
    )
    known = {field.name for field in fields(CommonAttentionMetadata)}  # vLLM 0.26 has no max_logits_per_req
    common = CommonAttentionMetadata(**{name: value for name, value in given.items() if name in known})
    added = [(place, SamplingParams(), [0] * int(tokens), []) for place, tokens in enumerate(step.prompts)]
    PromptLogprobsGuard(settings, None, False).update_state(BatchUpdate(len(added), [], added, []))
    builder = create_fast_prefill_custom_backend("FastPrefill", noting(Backend)).get_builder_cls()()
    builder.vllm_config = settings
    metadata = {LAYER: builder.build(0, common)}
    captured = [key for mode, keys in dispatcher.get_capture_descs() if mode == CUDAGraphMode.PIECEWISE for key in keys]
    return metadata, mode, descriptor, captured


def second_runner(step, settings, model):
    """As `first_runner`, of V2."""
    reason = "this vLLM has no fast prefill in its second runner"
    cudagraph_utils = pytest.importorskip("vllm.v1.worker.gpu.cudagraph_utils", reason=reason)
    attn_utils = pytest.importorskip("vllm.v1.worker.gpu.attn_utils", reason=reason)
    if not hasattr(attn_utils, "FastPrefillHelper"):
        pytest.skip(reason)
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    from swiftkv.serve.model_state import SwiftKVModelState

    device, requests = torch.device("cpu"), len(step.queries)
    with patch.multiple(cudagraph_utils, get_pp_group=MagicMock(), current_platform=MagicMock()):
        manager = cudagraph_utils.CudaGraphManager(settings, device, CUDAGraphMode[step.mode], decode_query_len=1)
    manager._graphs_captured = True
    chosen = manager.dispatch(requests, step.tokens, uniform_token_count=None, num_active_loras=0)
    helper = attn_utils.FastPrefillHelper(manager, LONGEST)
    helper.logits_indices_buf.fill_(LONGEST - 1)  # rows of earlier steps
    queries, decoding = np.array(step.queries, dtype=np.int32), np.isin(range(requests), step.decoding)
    counts = np.array([0, *accumulate(step.logits)])
    batch = replace(
        InputBatch.make_dummy(requests, step.tokens, InputBuffers(16, LONGEST, device)),
        num_scheduled_tokens=queries,
        query_start_loc=step.starts,
        query_start_loc_np=step.starts.numpy(),
        seq_lens=torch.from_numpy(queries + COMPUTED),
        seq_lens_cpu_upper_bound=torch.from_numpy(queries + COMPUTED),
        num_computed_tokens_np=np.full(requests, COMPUTED),
        prefill_len_np=step.prompts,
        num_computed_prefill_tokens_np=np.minimum(step.prompts, COMPUTED),
        is_prefilling_np=~decoding,
        fast_prefill=helper.prepare(step.rows, requests, counts, not decoding.all(), chosen),
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
        batch, chosen.cg_mode, (torch.zeros(requests, 1),), torch.zeros(1, step.tokens), [[group]],
        SimpleNamespace(kv_cache_groups=[None]),
    )  # fmt: skip
    captured = [BatchDescriptor(desc.num_tokens) for desc in manager._capture_descs.get(CUDAGraphMode.PIECEWISE, [])]
    return metadata, chosen.cg_mode, BatchDescriptor(max(chosen.num_tokens, step.tokens)), captured


def run(model, metadata, mode, descriptor, *arguments):
    context = ForwardContext({}, metadata, {}, cudagraph_runtime_mode=mode, batch_descriptor=descriptor)
    with override_forward_context(context):
        output = model(*arguments)
        assert get_forward_context() is context
    assert (context.cudagraph_runtime_mode, context.batch_descriptor) == (mode, descriptor)
    return output


@pytest.mark.parametrize("runner", [first_runner, second_runner])
@pytest.mark.parametrize("name", STEPS)
def test_the_upper_half_runs_what_is_needed(runner, name):
    step, dispatched, rows, upper_mode = STEPS[name]
    settings, calls = step.settings(), []
    model = SwiftKVModel.__new__(SwiftKVModel)
    nn.Module.__init__(model)

    def upper(positions, hidden_states):
        context, static = get_forward_context(), positions.data_ptr() == model.graphs.positions.data_ptr()
        number = context.batch_descriptor and context.batch_descriptor.num_tokens
        calls.append((positions.tolist(), number, context.cudagraph_runtime_mode.name, static))
        assert hidden_states[:, 0].tolist() == [row + 1 for row in positions.tolist()]
        return 2 * hidden_states

    model.lower = lambda tokens, positions, embedded: (positions[:, None] + torch.ones(1), None, None)
    model.spec, model.caches = SwiftKVSpec(4, 3), None
    model.fast_prefill, model.last_attention, model.readers = True, LAYER, []
    model.prompts = batch_prompts(settings)
    model.graphs = UpperGraphs(upper, settings.compilation_config, torch.ones(1))
    metadata, mode, descriptor, captured = runner(step, settings, model)
    assert (descriptor.num_tokens, mode.name) == dispatched
    for key in captured:
        every = torch.arange(key.num_tokens)
        run(model.graphs.run, {}, CUDAGraphMode.PIECEWISE, key, every, every[:, None] + torch.ones(1))
    sizes = sorted(step.sizes, reverse=True) * (step.mode == "FULL_AND_PIECEWISE")
    assert [(number, static) for _, number, _, static in calls] == [(size, True) for size in sizes]

    calls.clear()
    output = run(model, metadata, mode, descriptor, None, torch.arange(descriptor.num_tokens))[:, 0]
    if not rows:
        assert calls == [] and not output.any()
        return
    assert calls == [(rows, len(rows), upper_mode, upper_mode == "PIECEWISE")]
    assert output[step.rows].tolist() == [2 * (row + 1) for row in step.rows.tolist()]
    # Attention runs on the same rows, each request's own.
    per_request = step.queries if len(rows) == step.tokens else step.logits
    assert metadata[LAYER].num_actual_tokens == sum(per_request)
    assert metadata[LAYER].query_start_loc.tolist() == [0, *accumulate(per_request)]


def test_starts_on_the_host_are_exact_before_those_of_the_gpu_arrive():
    """FlashInfer reads them, and vLLM copies them there without waiting."""
    copy = torch.Tensor.to

    def late(tensor, *arguments, non_blocking=False, **named):
        copied = copy(tensor, *arguments, non_blocking=non_blocking, **named)
        return torch.full_like(copied, 99) if non_blocking else copied

    for name, requests in {"rows beside a long prompt": 3, "decoding alone, captured": 4}.items():
        step = STEPS[name][0]
        with patch.object(torch.Tensor, "to", late):
            metadata, *_ = first_runner(step, step.settings(), None)
        assert metadata[LAYER].query_start_loc_cpu.tolist() == list(range(requests + 1))


def test_starts_of_padded_requests_stay():
    """A full graph of decoding has requests without rows after those of the step."""
    starts, zeros = torch.tensor([0, 1, 2, 2, 2]), torch.zeros(4)
    common = CommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=zeros, num_reqs=4, num_actual_tokens=4, max_query_len=1,
        max_seq_len=9, block_table_tensor=zeros, slot_mapping=zeros,
    )  # fmt: skip
    builder = noting(Backend).get_builder_cls()()
    builder.vllm_config = Step([1, 1]).settings()
    assert builder.build(0, common).query_start_loc_cpu.equal(starts)


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY"])
def test_piecewise_graphs_are_captured_if_vllm_turns_to_them_after_the_model_is_made(mode):
    """As it does for attention backends without full graphs."""
    compilation = Step([1], **GRAPHS | {"mode": mode}).settings().compilation_config
    graphs, states = UpperGraphs(lambda *rows: rows[1], compilation, torch.ones(1)), torch.ones(8, 1)
    captured = run(graphs.run, {}, CUDAGraphMode.PIECEWISE, BatchDescriptor(8), torch.arange(8), states)
    assert captured.equal(states)


def test_graphs_captured_before_the_caches_are_forgotten():
    """vLLM captures graphs to measure their memory, deletes them, makes the caches, and then warms up."""
    pytest.importorskip("vllm.v1.worker.gpu.model_states.default", reason="this vLLM has no second runner")
    from swiftkv.serve.model_state import SwiftKVModelState

    graphs = UpperGraphs(lambda *rows: rows[1], (settings := Step([1]).settings()).compilation_config, torch.ones(1))
    graphs.captured.add(BatchDescriptor(256))
    model = SimpleNamespace(model=SimpleNamespace(graphs=graphs))
    SwiftKVModelState(settings, model, None, torch.device("cpu")).initialize_kv_cache(None, None)
    assert not graphs.captured
