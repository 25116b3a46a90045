"""SwiftKV language models in vLLM: a lower half that runs every token, an upper half that runs rows needing logits.

One step: embedding, layers < l, norm_swiftkv and the KV GEMM for all T tokens (`LowerHalf`); write all KV caches of layers
>= l; with fast prefill gather the R rows that need logits; layers >= l and the final norm (`UpperHalf`); scatter the rows
back to T. vLLM reduces the attention metadata of the upper layers to those rows (`kv_sharing_fast_prefill`). At full depth
R = T. With own_key_values the R rows overwrite their keys and values. In steps that sample no token the upper half is
skipped (`prompt_logprobs.py`, `model_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, cast

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
from swiftkv.serve.attention import SwiftKVCaches, announce, rewire_layer
from swiftkv.serve.graphs import UpperGraphs
from swiftkv.serve.prompt_logprobs import batch_prompts
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
        """Run the lower layers for all T tokens.

        Returns:
            The residual stream entering layer l [T, hidden]; keys and values of layers >= l as from `SwiftKVCaches`, None
            for l = L.
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
        """Map rows [R, hidden] of the residual stream entering layer l to final normed states [R, hidden]."""
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        if residual is None:  # l = L
            return self.norm(hidden_states)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class SwiftKVModel(nn.Module):
    """The decoder, with all modules under the checkpoint's names; the two halves share them."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", make_layer) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.spec = spec = SwiftKVSpec.from_config(config)
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.embed_tokens",
        )
        # In this order: in vLLM the last consecutive layers that share caches, as created, skip prompt rows.
        layers = [make_layer(vllm_config, f"{prefix}.layers.{i}") for i in range(spec.num_key_value_layers)]
        rotary_emb = layers[0].self_attn.rotary_emb
        self.caches = SwiftKVCaches(vllm_config, spec, prefix, rotary_emb) if spec.groups else None
        if self.caches is not None:
            refuse_final(vllm_config, self.caches.backend)
        layers += [
            rewire_layer(make_layer(vllm_config, f"{prefix}.layers.{i}"), vllm_config, spec, i, prefix)
            for i in range(spec.num_key_value_layers, spec.num_hidden_layers)
        ]
        self.layers = nn.ModuleList(layers)
        attention = [layer.self_attn.attn.layer_name for layer in layers]
        self.readers, self.last_attention = attention[spec.num_key_value_layers :], attention[-1]
        self.norm_swiftkv = RMSNorm(config.hidden_size, eps=config.rms_norm_eps) if spec.groups else None
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

        with set_model_tag("swiftkv_lower"):
            self.lower = LowerHalf(vllm_config=vllm_config, model=self, prefix=f"{prefix}.lower")
        with set_model_tag("swiftkv_upper"):
            self.upper = UpperHalf(vllm_config=vllm_config, model=self, prefix=f"{prefix}.upper")

        self.fast_prefill = vllm_config.cache_config.kv_sharing_fast_prefill
        self.prompts = batch_prompts(vllm_config)
        # The last scattered output, zero in rows that were not gathered. Kept alive so that no other tensor gets its
        # storage while a CUDA graph is replayed instead of `forward`.
        self.scattered: torch.Tensor | None = None
        self.graphs = UpperGraphs(self.upper, vllm_config.compilation_config, self.norm.weight)

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute final states of T tokens [T, hidden]; with fast prefill only of rows that need logits, zeros elsewhere."""
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
        """Slots [R] by cache for the own keys and values of the first `count` rows; None without own_key_values.

        The last token of a piece of a prompt runs all layers only because vLLM counts its row: it keeps SingleInputKV's.
        With speculation vLLM's first runner does not tell where prompts end, so there it keeps its own.
        """
        if not self.spec.own_key_values or self.caches is None:
            return None
        every, starts = get_forward_context().slot_mapping, self.prompts.starts
        assert isinstance(every, dict) and starts is not None
        picked: dict[int, torch.Tensor] = {}  # caches with the same block size share a slot mapping
        for slots in every.values():
            if id(slots) not in picked:
                picked[id(slots)] = own = slots[rows]
                own[count:] = -1
                if self.prompts.unfinished:
                    own[starts[torch.tensor(self.prompts.unfinished, device=starts.device) + 1] - 1] = -1
        return {name: picked[id(slots)] for name, slots in every.items()}

    def _rows_with_logits(self, tokens: int) -> tuple[torch.Tensor | None, int]:
        """Return the indices of rows that need logits, padded by vLLM, and their number; None and T if every row runs."""
        metadata = get_forward_context().attn_metadata
        if not self.fast_prefill or not isinstance(metadata, dict):  # no metadata in memory profiling and warm-up
            return None, tokens
        metadata = metadata[self.last_attention]
        # Not isinstance: vLLM makes a new class of metadata in each step, so the protocol check would be slow.
        if not hasattr(metadata, "num_logits_indices"):
            return None, tokens
        step = cast(KVSharingFastPrefillMetadata, metadata)
        count = step.num_logits_indices if self.prompts.sampled() else 0
        return (None, tokens) if count is None or count == tokens else (step.logits_indices_padded, count)


class SwiftKVForCausalLM(nn.Module, SupportsQuant):
    """Base of the architectures; `decoder_layer` names vLLM's layer, as in `Architecture`."""

    decoder_layer: ClassVar[str]

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
        "kv_proj_swiftkv": ["k_proj_swiftkv", "v_proj_swiftkv"],
    }

    @classmethod
    def make_layer(cls, vllm_config: VllmConfig, prefix: str) -> nn.Module:
        """Make one of vLLM's decoder layers, which take either the whole configuration or its parts."""
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
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), make_layer=self.make_layer
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
        """Class that prepares the model's steps in vLLM's second model runner."""
        from swiftkv.serve.model_state import SwiftKVModelState

        return SwiftKVModelState

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Map final states [rows, hidden] to logits [rows, vocabulary].

        Raises:
            RuntimeError: the rows include skipped ones (`prompt_logprobs` in vLLM's offline API): they are a view of the
                scattered output, whereas rows to sample from are copied by index.
        """
        scattered = self.model.scattered
        if (
            scattered is not None
            and hidden_states.untyped_storage().data_ptr() == scattered.untyped_storage().data_ptr()
        ):
            raise RuntimeError(
                "prompt_logprobs need every prompt token at full depth: start vLLM with "
                "additional_config={'swiftkv_full_depth': True}"
            )
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a whole checkpoint, later any part of one; see `weights.load_weights`."""
        complete, self.awaits_checkpoint = self.awaits_checkpoint, False
        return load_weights(self.config, dict(self.named_parameters()), self.model.caches, weights, complete)


class MergeAllLayersMixin(nn.Module):
    """Makes all layers of one of vLLM's language models share the first layer's cache (Sec. 5.1).

    Every layer still computes keys and values. It measures the effect of a smaller cache alone; its answers are meaningless.
    Serve an ordinary checkpoint with --hf-overrides '{"architectures": ["LlamaMergeAllLayersForCausalLM"]}'.
    """

    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:  # vLLM inspects these names
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        first, *others = (layer.self_attn.attn for layer in self.model.layers)
        for attention in others:
            attention.kv_sharing_target_layer_name = first.layer_name
            attention.impl.kv_sharing_target_layer_name = first.layer_name


def __getattr__(name: str) -> type[nn.Module]:
    """Make the class that vLLM asks for by name, e.g. `Qwen2SwiftKVForCausalLM`, `Qwen2MergeAllLayersForCausalLM`."""
    for model_type, row in ARCHITECTURES.items():
        if name == f"{row.classes}SwiftKVForCausalLM":
            made = type(name, (SwiftKVForCausalLM,), {"__module__": __name__, "decoder_layer": row.decoder_layer})
        elif name == f"{row.classes}MergeAllLayersForCausalLM":
            ordinary = getattr(import_module(f"vllm.model_executor.models.{model_type}"), f"{row.classes}ForCausalLM")
            made = type(name, (MergeAllLayersMixin, ordinary), {"__module__": __name__})
        else:
            continue
        return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
