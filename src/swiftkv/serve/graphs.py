"""CUDA graphs of the upper half with R rows.

vLLM chooses the piecewise graph to replay by the batch descriptor of the forward context, which has the T tokens of the
step. The upper half needs a context with R, otherwise the graph of T rows would be replayed, or none above the largest size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.forward_context import BatchDescriptor, get_forward_context, override_forward_context


class UpperGraphs:
    """Runs the upper half so that vLLM replays the graph of the right size, if captured.

    Attributes:
        captured: descriptors of the captured piecewise graphs.
        positions, hidden_states: static inputs of the largest graph's size.
    """

    def __init__(
        self,
        upper: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        compilation: CompilationConfig,
        weight: torch.Tensor,
    ) -> None:
        """Allocate the static inputs.

        Args:
            upper: maps positions [rows] and states [rows, hidden] to final states [rows, hidden].
            compilation: final settings of graphs.
            weight: a tensor [hidden] with the states' dtype and device.
        """
        self.upper = upper
        self.captured: set[BatchDescriptor] = set()
        # vLLM may yet turn to piecewise graphs if the attention backend has no full ones.
        graphs = compilation.cudagraph_mode != CUDAGraphMode.NONE
        longest = (compilation.max_cudagraph_capture_size or 0) if graphs else 0
        self.positions = torch.zeros(longest, dtype=torch.int64, device=weight.device)
        self.hidden_states = weight.new_zeros(longest, *weight.shape)

    def run(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Run all rows of the step; [T], [T, hidden] to [T, hidden]. vLLM captures these calls."""
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
        """Run R gathered rows, padded by vLLM; [R], [R, hidden] to [R, hidden].

        Args:
            positions, hidden_states: inputs of the rows.
            slots: slots [R] by cache name for keys and values that the rows write, or None.
        """
        context = get_forward_context()
        if slots is not None:
            context = replace(context, slot_mapping=slots)
        if context.batch_descriptor is not None:  # None in steps without graphs
            descriptor = replace(context.batch_descriptor, num_tokens=positions.size(0))
            mode = CUDAGraphMode.PIECEWISE if descriptor in self.captured else CUDAGraphMode.NONE
            context = replace(context, batch_descriptor=descriptor, cudagraph_runtime_mode=mode)
        with override_forward_context(context):
            return self.run(positions, hidden_states)
