"""The upper half in CUDA graphs of as many rows as it is given.

vLLM replays a piecewise graph by the batch descriptor of the forward context, which names the T tokens of the step. The
upper half runs R of them, so it needs a context of its own: with that of the step the graph of T rows would be replayed,
as large as without SwiftKV, and beyond the largest captured size no graph at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.forward_context import BatchDescriptor, get_forward_context, override_forward_context


class UpperGraphs:
    """Calls the upper half with inputs and a forward context for which vLLM replays the right graph, if there is one.

    Attributes:
        captured: descriptors of the piecewise graphs that vLLM has made of the upper half.
        positions, hidden_states: its inputs at fixed addresses, as long as the largest graph.
    """

    def __init__(
        self,
        upper: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        compilation: CompilationConfig,
        weight: torch.Tensor,
    ) -> None:
        """Reserve the inputs.

        Args:
            upper: rows' positions [rows] and states [rows, hidden] to final states [rows, hidden].
            compilation: final settings of graphs.
            weight: a tensor [hidden] of the states' dtype, on their device.
        """
        self.upper = upper
        self.captured: set[BatchDescriptor] = set()
        piecewise = compilation.cudagraph_mode.has_piecewise_cudagraphs()
        longest = (compilation.max_cudagraph_capture_size or 0) if piecewise else 0
        self.positions = torch.zeros(longest, dtype=torch.int64, device=weight.device)
        self.hidden_states = weight.new_zeros(longest, *weight.shape)

    def run(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """All rows of the step, which vLLM also captures; [T], [T, hidden] to [T, hidden]."""
        context = get_forward_context()
        if context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE and context.batch_descriptor is not None:
            self.captured.add(context.batch_descriptor)
            rows = positions.size(0)
            positions = self.positions[:rows].copy_(positions)
            hidden_states = self.hidden_states[:rows].copy_(hidden_states)
        return self.upper(positions, hidden_states)

    def run_rows(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, slots: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Gathered rows, as many as vLLM padded them to; [R], [R, hidden] to [R, hidden].

        Args:
            positions, hidden_states: the rows'.
            slots: where they write keys and values, [R] by the name of the cache; None where they write none.
        """
        context = get_forward_context()
        if slots is not None:
            context = replace(context, slot_mapping=slots)
        if context.batch_descriptor is None:  # no graphs in this step
            with override_forward_context(context):
                return self.run(positions, hidden_states)
        descriptor = replace(context.batch_descriptor, num_tokens=positions.size(0))
        mode = CUDAGraphMode.PIECEWISE if descriptor in self.captured else CUDAGraphMode.NONE
        with override_forward_context(
            replace(context, batch_descriptor=descriptor, cudagraph_runtime_mode=mode),
        ):
            return self.run(positions, hidden_states)
