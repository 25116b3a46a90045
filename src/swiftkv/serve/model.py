"""SwiftKV language models in vLLM: a lower half that runs every token, an upper half that runs rows needing logits.

Data of one step: embedding, layers < l, norm_swiftkv and the KV GEMM for all T tokens (`LowerHalf`) -> all KV caches of
layers >= l written -> with fast prefill the R rows that need logits gathered -> layers >= l and the final norm
(`UpperHalf`) -> rows scattered back to T. vLLM itself cuts the attention metadata of the upper layers down to those
rows (`kv_sharing_fast_prefill`). Without it, R = T and every row is exact at full depth.
With own_key_values these rows write keys and values of their own over those of the lower half. `graphs.py` runs the upper half
in CUDA graphs; `batch_prompts.py` and `model_state.py` say in which steps no row is sampled from, so that it need not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import ClassVar, cast

import torch
from torch import nn
from vllm.compilation.backends import set_model_tag
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsQuant
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors
from vllm.v1.attention.backends.utils import KVSharingFastPrefillMetadata

from swiftkv.architectures import ARCHITECTURES
from swiftkv.serve.attention import SwiftKVCaches, SwiftKVDecoderLayer, announce
from swiftkv.serve.batch_prompts import batch_prompts
from swiftkv.serve.graphs import UpperGraphs
from swiftkv.serve.refusals import refuse_final
from swiftkv.serve.weights import load_weights
from swiftkv.spec import SwiftKVSpec


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class LowerHalf(nn.Module):
    """Embedding, layers < l, norm_swiftkv, and the keys and values of all layers >= l."""

    def __init__(self, *, vllm_config: VllmConfig, model: SwiftKVModel, prefix: str = "") -> None:
        super().__init__()
        self.embed_tokens = model.embed_tokens
        self.layers = model.layers[: model.spec.num_key_value_layers]
        self.norm_swiftkv = model.norm_swiftkv
        self.caches = model.caches

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """All T tokens through the lower layers.

        Returns:
            The residual stream entering layer l, [T, hidden]; keys and values of layers >= l, as `SwiftKVCaches`, or
            None and None where l = L.
        """
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        assert residual is not None  # l >= 1
        if self.caches is None or self.norm_swiftkv is None:
            return hidden_states + residual, None, None
        states, residual = self.norm_swiftkv(hidden_states, residual)
        return residual, *self.caches(positions, states)


@support_torch_compile(dynamic_arg_dims={"positions": 0, "hidden_states": 0})
class UpperHalf(nn.Module):
    """Layers >= l and the final norm."""

    def __init__(self, *, vllm_config: VllmConfig, model: SwiftKVModel, prefix: str = "") -> None:
        super().__init__()
        self.layers = model.layers[model.spec.num_key_value_layers :]
        self.norm = model.norm

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Rows [R, hidden] of the residual stream entering layer l to final normed states, [R, hidden]."""
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        if residual is None:  # l = L
            return self.norm(hidden_states)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class SwiftKVModel(nn.Module):
    """The decoder. Holds all modules under the checkpoint's names; the two halves share them."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", lower_layer) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.spec = spec = SwiftKVSpec.from_config(config)
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.embed_tokens",
        )
        # vLLM lets the last unbroken run of layers that share a cache skip prompt rows, in the order they are made:
        # ordinary layers, owners of the shared caches, layers that read them.
        layers = [lower_layer(vllm_config, f"{prefix}.layers.{i}") for i in range(spec.num_key_value_layers)]
        self.caches = SwiftKVCaches(vllm_config, spec, prefix) if spec.groups else None
        if self.caches is not None:
            refuse_final(vllm_config, self.caches.backend)
        layers += [
            SwiftKVDecoderLayer(vllm_config, spec, i, prefix)
            for i in range(spec.num_key_value_layers, spec.num_hidden_layers)
        ]
        self.layers = nn.ModuleList(layers)
        attention = [f"{prefix}.layers.{i}.self_attn.attn" for i in range(spec.num_hidden_layers)]
        self.readers, self.last_attention = attention[spec.num_key_value_layers :], attention[-1]
        self.norm_swiftkv = RMSNorm(config.hidden_size, eps=config.rms_norm_eps) if spec.groups else None
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

        with set_model_tag("swiftkv_lower"):
            self.lower = LowerHalf(vllm_config=vllm_config, model=self, prefix=f"{prefix}.lower")
        with set_model_tag("swiftkv_upper"):
            self.upper = UpperHalf(vllm_config=vllm_config, model=self, prefix=f"{prefix}.upper")

        self.fast_prefill = vllm_config.cache_config.kv_sharing_fast_prefill
        self.prompts = batch_prompts(vllm_config)
        # The last scattered output: its rows that were not gathered hold zeros, not results. Kept alive, so that no
        # other tensor can have its storage while a replayed CUDA graph runs instead of `forward`.
        self.scattered: torch.Tensor | None = None
        self.graphs = UpperGraphs(self.upper, vllm_config.compilation_config, self.norm.weight)

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Final states of T tokens, [T, hidden]; with fast prefill only rows that need logits hold them."""
        stream, keys, values = self.lower(input_ids, positions, inputs_embeds)
        if self.caches is not None:
            self.caches.write(keys, values)
        rows, count = self._rows_with_logits(positions.size(0))
        if rows is None:
            self.scattered = None
            return self.graphs.run(positions, stream)
        self.scattered = output = torch.zeros_like(stream)
        if count:
            states = self.graphs.run_rows(positions[rows], stream[rows], self._slots(rows, count))
            output[rows[:count]] = states[:count]
        else:
            for name in self.readers:
                announce(name)
        return output

    def _slots(self, rows: torch.Tensor, count: int) -> dict[str, torch.Tensor] | None:
        """Where `count` of the rows [R] write their own keys and values, [R] by cache; None if they have none.

        The last token of a piece of a prompt runs all layers only because vLLM counts its row: it keeps SingleInputKV's.
        With speculation vLLM's first runner tells nobody where prompts end, so there it keeps its own.
        """
        if not self.spec.own_key_values or self.caches is None:
            return None
        every, starts = get_forward_context().slot_mapping, self.prompts.starts
        assert isinstance(every, dict) and starts is not None
        picked: dict[int, torch.Tensor] = {}  # caches have the same blocks, but for those of other sizes
        for slots in every.values():
            if id(slots) not in picked:
                picked[id(slots)] = own = slots[rows]
                own[count:] = -1
                if self.prompts.unfinished:
                    own[starts[torch.tensor(self.prompts.unfinished, device=starts.device) + 1] - 1] = -1
        return {name: picked[id(slots)] for name, slots in every.items()}

    def _rows_with_logits(self, tokens: int) -> tuple[torch.Tensor | None, int]:
        """Row indices of this step, padded as vLLM padded them, and how many count, maybe none; None if every row runs."""
        metadata = get_forward_context().attn_metadata
        if not self.fast_prefill or not isinstance(metadata, dict):  # no metadata in memory profiling and warm-up
            return None, tokens
        metadata = metadata[self.last_attention]
        # vLLM makes the class of this metadata anew in each step, for which isinstance would look through the protocol.
        if not hasattr(metadata, "num_logits_indices"):
            return None, tokens
        step = cast(KVSharingFastPrefillMetadata, metadata)
        count = step.num_logits_indices if self.prompts.sampled() else 0
        return (None, tokens) if count is None or count == tokens else (step.logits_indices_padded, count)


class SwiftKVForCausalLM(nn.Module, SupportsQuant):
    """What the architectures share; `decoder_layer` names vLLM's own layer, as in their rows."""

    decoder_layer: ClassVar[str]

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
        "kv_proj_swiftkv": ["k_proj_swiftkv", "v_proj_swiftkv"],
    }

    @classmethod
    def lower_layer(cls, vllm_config: VllmConfig, prefix: str) -> nn.Module:
        """One of vLLM's own decoder layers, which take the whole configuration or its parts."""
        module, _, name = cls.decoder_layer.partition(".")
        layer = getattr(import_module(f"vllm.model_executor.models.{module}"), name)
        if "vllm_config" in signature(layer).parameters:
            return layer(vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        return layer(config, vllm_config.cache_config, vllm_config.quant_config, prefix=prefix)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.awaits_checkpoint = vllm_config.load_config.load_format != "dummy"
        self.model = SwiftKVModel(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), lower_layer=self.lower_layer
        )
        if config.tie_word_embeddings:
            self.lm_head = self.model.embed_tokens
        else:
            self.lm_head = ParallelLMHead(
                config.vocab_size,
                config.hidden_size,
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "lm_head"),
            )
        self.logits_processor = LogitsProcessor(config.vocab_size)

    @staticmethod
    def get_model_state_cls() -> type:
        """What prepares the model's steps in vLLM's second model runner."""
        from swiftkv.serve.model_state import SwiftKVModelState

        return SwiftKVModelState

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of [T] token ids, [T, hidden]."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `SwiftKVModel.forward`."""
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits of [rows, hidden] final states, [rows, vocabulary].

        Raises:
            RuntimeError: rows that fast prefill skipped are asked for (`prompt_logprobs` in vLLM's offline API; the
                server refuses such a request by itself). A view of the scattered output is such a request: rows to
                sample from are always picked by index, into new storage.
        """
        scattered = self.model.scattered
        if scattered is not None and _same_storage(hidden_states, scattered):
            raise RuntimeError(
                "prompt_logprobs need every prompt token at full depth: start vLLM with "
                "additional_config={'swiftkv_full_depth': True}"
            )
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Place a checkpoint's tensors, and later in parts those that replace them; see `weights.load_weights`."""
        complete, self.awaits_checkpoint = self.awaits_checkpoint, False
        return load_weights(self.config, dict(self.named_parameters()), self.model.caches, weights, complete)


def _same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def __getattr__(name: str) -> type[SwiftKVForCausalLM]:
    """The class that vLLM asks for by name, e.g. `Qwen2SwiftKVForCausalLM`: all of one make, their layers differ."""
    for row in ARCHITECTURES.values():
        if name == f"{row.classes}SwiftKVForCausalLM":
            made = type(name, (SwiftKVForCausalLM,), {"__module__": __name__, "decoder_layer": row.decoder_layer})
            return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
