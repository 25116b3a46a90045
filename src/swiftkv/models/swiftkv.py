"""SwiftKV for the decoders of transformers: mixins that the architectures share.

For hidden states h_i entering layer i and s = norm_swiftkv(h_l), every layer i >= l attends with
    Q_i = RoPE(q_proj_swiftkv_i(input_layernorm_i(h_i))),  K_i = RoPE(k_proj_swiftkv_o(s)),  V_i = v_proj_swiftkv_o(s)
where o is the first layer of i's AcrossKV group (paper, Sec. 3.2 and 3.3). Everything else, and every layer < l, is the
teacher's. Latent attention has other projections (`deepseek_v2.py`). `config.swiftkv = False` runs the teacher.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import ModelOutput, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from swiftkv.device import compute_device
from swiftkv.errors import UserError
from swiftkv.models.attention import OwnKeyValues, PositionEmbeddings, SwiftKVAttentionMixin, each_table
from swiftkv.models.configuration import layer_types
from swiftkv.spec import SwiftKVSpec


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars, and DeepSpeed's of a processor, which it imports to save a model."""
    if compute_device() == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@dataclass
class LowerState:
    """Input of layers >= l, shared by teacher and student.

    Attributes:
        hidden: residual stream entering layer l [B, T, D].
        position_ids: [B or 1, T].
        position_embeddings: RoPE, cosines and sines [B or 1, T, head size] or complex [B or 1, T, head size / 2].
        attention_mask: by layer type ("full_attention", "sliding_attention").
        past_key_values: KV cache or None.
        arguments: further keyword arguments of the layers.
        full_depth: with own_key_values, tokens that run all layers, bool [B, T]; None if T = 1 or only the last does.
    """

    hidden: torch.Tensor
    position_ids: torch.Tensor
    position_embeddings: PositionEmbeddings
    attention_mask: dict[str, torch.Tensor | None]
    past_key_values: Cache | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    full_depth: torch.Tensor | None = None

    def last_position(self) -> LowerState:
        """Return the state with the last position's queries only."""
        return replace(
            self,
            hidden=self.hidden[:, -1:],
            position_ids=self.position_ids[:, -1:],
            position_embeddings=each_table(self.position_embeddings, lambda table: table[:, -1:]),
            attention_mask={
                kind: mask[:, :, -1:] if mask is not None and mask.dim() == 4 else mask
                for kind, mask in self.attention_mask.items()
            },
        )


class SwiftKVPreTrainedMixin:
    """Loading that leaves no parameter at random values, and the teacher's projections of layers >= l."""

    @classmethod
    def from_pretrained(cls, *args, output_loading_info: bool = False, **kwargs):
        """As transformers, but drop teacher projections of layers >= l that the checkpoint lacks.

        Raises:
            UserError: any other tensor is absent.
        """
        with quiet():
            model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing, teacher = set(info["missing_keys"]), model.teacher_projection_names()
        if teacher <= missing:
            model.drop_teacher_projections()
            missing -= teacher
        source = kwargs.get("pretrained_model_name_or_path", args[0] if args else "the checkpoint")
        if missing:
            raise UserError(f"{source} has no tensor {min(missing)}, which its config.json asks for")
        if extra := sorted(name for name in info["unexpected_keys"] if "_swiftkv" in name):
            raise UserError(f"{source} holds the tensor {extra[0]}, which its config.json has no place for")
        return (model, info) if output_loading_info else model

    def upper_attention(self) -> dict[str, SwiftKVAttentionMixin]:
        """Attention modules of layers >= l by name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, SwiftKVAttentionMixin)}

    def teacher_projection_names(self) -> set[str]:
        """Names of the parameters in the teacher's projections of layers >= l."""
        return {
            f"{name}.{parameter}"
            for name, attention in self.upper_attention().items()
            for parameter, _ in attention.named_parameters()
            if parameter.partition(".")[0] in attention.teacher_projections
        }

    def drop_teacher_projections(self) -> None:
        """Free the teacher's projections of layers >= l; only the student can run afterwards."""
        for attention in self.upper_attention().values():
            for projection in attention.teacher_projections:
                setattr(attention, projection, None)


class SwiftKVModelMixin(SwiftKVPreTrainedMixin):
    """Decoder that runs layers >= l as the teacher's or as the student's.

    Subclasses set `attention_class`, and `output_class` if their language model reads more than Llama's does.
    """

    attention_class: type[nn.Module]
    output_class: type[ModelOutput] = BaseModelOutputWithPast

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.spec = SwiftKVSpec.from_config(config)
        self.layer_types = layer_types(config)
        for index in range(self.spec.num_key_value_layers, config.num_hidden_layers):
            self.layers[index].self_attn = self.attention_class(config, index)
        if self.spec.groups:
            self.norm_swiftkv = type(self.norm)(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    @property
    def upper_layers(self) -> nn.ModuleList:
        """Layers l..L-1."""
        return self.layers[self.spec.num_key_value_layers :]

    @property
    def student_only(self) -> bool:
        """Return True if the teacher's projections of layers >= l are absent."""
        always = self.attention_class.key_value_projections[0]  # query projections differ between models
        return getattr(self.layers[-1].self_attn, always) is None

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        last_only: bool = False,
        **kwargs,
    ) -> ModelOutput:
        """As the architecture's decoder, student or teacher by `config.swiftkv`; `last_only` as in `forward_upper`."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        state = self.forward_lower(input_ids, position_ids, attention_mask, past_key_values, inputs_embeds, **kwargs)
        hidden, _ = self.forward_upper(state, student=self.config.swiftkv, last_only=last_only)
        return self.output_class(last_hidden_state=hidden, past_key_values=state.past_key_values if use_cache else None)

    def forward_lower(
        self,
        input_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | dict | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs,
    ) -> LowerState:
        """Embed the tokens and run layers 0..l-1.

        Without `attention_mask` and cache, position_ids that restart at 0 separate packed samples.

        Args:
            input_ids: [B, T]; or give `inputs_embeds` [B, T, D].
            position_ids: [B, T]; None continues from the cache.
            attention_mask: [B, cached + T], 1 = real token; None if there is no padding.
            past_key_values: KV cache to read and extend.

        Raises:
            ValueError: not exactly one of `input_ids` and `inputs_embeds`.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            start = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(hidden.shape[1], device=hidden.device) + start).unsqueeze(0)
        state = self.state(hidden, position_ids, attention_mask, past_key_values, **kwargs)
        for index in range(self.spec.num_key_value_layers):
            state.hidden = self._run_layer(index, state.hidden, state)
        return state

    def forward_upper(
        self, state: LowerState, student: bool, collect_hidden: bool = False, last_only: bool = False
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None]:
        """Run layers l..L-1 and the final norm, as student or as teacher.

        Args:
            state: from `forward_lower`; only the cache in it changes.
            student: use the SwiftKV parameters, not the teacher's projections.
            collect_hidden: also return the hidden states entering layers l..L-1.
            last_only: compute the student's last position only, [B, 1, D], as SwiftKV does in prefill (Sec. 3.2); no
                effect on the teacher.

        Returns:
            The normed hidden states [B, T, D], and the collected ones (L - l tensors [B, T, D]) or None.

        Raises:
            UserError: the teacher's projections were not loaded.
        """
        if not student and self.student_only:
            absent = ", ".join(self.layers[-1].self_attn.teacher_projections)
            raise UserError(
                f"this SwiftKV checkpoint was saved without the teacher's projections ({absent} of layers "
                f"{self.spec.num_key_value_layers} and above), so it cannot run as the teacher"
            )
        states = self.norm_swiftkv(state.hidden) if student and self.spec.groups else None
        # FlexAttention's block masks cannot be sliced.
        cuttable = all(mask is None or isinstance(mask, torch.Tensor) for mask in state.attention_mask.values())
        queries = state.last_position() if last_only and student and cuttable else state
        hidden, collected = queries.hidden, []
        key_value = None
        for index in range(self.spec.num_key_value_layers, self.config.num_hidden_layers):
            if collect_hidden:
                collected.append(hidden)
            if student and index == self.spec.owner(index):
                own = self.spec.own_key_values
                cache = OwnKeyValues(state.full_depth, state.past_key_values) if own else state.past_key_values
                shared = self.layers[index].self_attn.project_key_value(states, state.position_embeddings, cache)
                key_value = cache if own else shared  # own: the layer runs as the teacher's and fills `cache`
            hidden = self._run_layer(index, hidden, queries, key_value)
        for layer in state.past_key_values.layers if student and state.past_key_values is not None else ():
            if isinstance(layer, DynamicLayer) and layer.keys is None:  # never filled, but `Cache.crop` cuts all
                layer.keys = layer.values = hidden.new_empty(1, 1, 0, 1)
        return self.norm(hidden), tuple(collected) if collect_hidden else None

    def fill_upper_cache(self, state: LowerState) -> None:
        """Add the keys and values of layers l..L-1 to the cache in `state` without running the layers.

        Without own_key_values it is then bit-equal to the one after `forward_upper` as student (early exit, Appendix E).
        """
        states = self.norm_swiftkv(state.hidden)
        for index in self.spec.owners:
            self.layers[index].self_attn.project_key_value(states, state.position_embeddings, state.past_key_values)

    def state(
        self,
        hidden: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | dict | None = None,
        past_key_values: Cache | None = None,
        **arguments,
    ) -> LowerState:
        """Make the state for a stream [B, T, D] that enters layer 0 or l; arguments as in `forward_lower`."""
        masks = attention_mask  # generate() prepares a dict itself for some caches
        if not isinstance(masks, dict):
            make = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}
            masks = {
                layer_type: make[layer_type](
                    config=self.config,
                    inputs_embeds=hidden,
                    attention_mask=attention_mask,
                    past_key_values=past_key_values,
                    position_ids=position_ids,
                )
                for layer_type in sorted(set(self.layer_types))
            }
        tables, full_depth = self.rotary_emb(hidden, position_ids), arguments.pop("full_depth", None)
        return LowerState(hidden, position_ids, tables, masks, past_key_values, arguments, full_depth)

    def _run_layer(
        self, index: int, hidden: torch.Tensor, state: LowerState, key_value: tuple | OwnKeyValues | None = None
    ) -> torch.Tensor:
        arguments = state.arguments if key_value is None else {**state.arguments, "key_value": key_value}
        return self.layers[index](
            hidden,
            attention_mask=state.attention_mask[self.layer_types[index]],
            position_ids=state.position_ids,
            past_key_values=state.past_key_values,
            position_embeddings=state.position_embeddings,
            **arguments,
        )


class SwiftKVCausalLMMixin(SwiftKVPreTrainedMixin):
    """Language model over a SwiftKV decoder; subclasses set `model_class`."""

    model_class: type[PreTrainedModel]

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # the architecture's own would also build its ordinary decoder
        self.model = self.model_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if self.spec.early_exit:
            self.early_exit_head_swiftkv = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor | list[int] = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """As the architecture's; with `logits_to_keep=1`, as in generate()'s prefill, layers >= l run one position.

        With own_key_values, `full_depth`, bool [B, T], marks tokens that run all layers; by default those with logits.
        """
        if self.spec.own_key_values and "full_depth" not in kwargs:
            shape = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            kwargs["full_depth"] = torch.zeros(shape, dtype=torch.bool, device=self.device)
            kwargs["full_depth"][:, kept] = True
        # Recorded outputs cover every position.
        recorded = any(
            kwargs.get(name, getattr(self.config, name, False))
            for name in ("output_hidden_states", "output_attentions")
        )
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            last_only=isinstance(logits_to_keep, int) and logits_to_keep == 1 and not recorded,
            **kwargs,
        )

    @property
    def spec(self) -> SwiftKVSpec:
        return self.model.spec

    def swiftkv_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that SwiftKV adds: projections, norm_swiftkv and the early exit head, by name; none for l = L."""
        return {name: parameter for name, parameter in self.named_parameters() if "_swiftkv." in name}
