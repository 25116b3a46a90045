"""What the plugin relies on in vLLM's sources beyond names and signatures, in both model runners."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from swiftkv.architectures import ARCHITECTURES

V1, V2, BOTH = "V1 runner", "V2 runner", "both runners"


@dataclass(frozen=True)
class Fact:
    """A piece of code that a function of vLLM must contain.

    Attributes:
        runner: whose it is.
        file: below `vllm/`.
        function: its name, or Class.name.
        text: of one expression or statement, as `ast.unparse` writes it.
        why: what the plugin takes from it.
        first, last: releases it is expected in, by their first two numbers; None is no bound.
    """

    runner: str
    file: str
    function: str
    text: str
    why: str
    first: str | None = None
    last: str | None = None

    def applies(self, version: str) -> bool:
        """Whether it is expected of a release."""
        minor = Version(version).release[:2]
        return (self.first is None or minor >= Version(self.first).release[:2]) and (
            self.last is None or minor <= Version(self.last).release[:2]
        )

    def holds(self, sources: Path) -> bool:
        """Whether it is so in the folder that holds `vllm/`."""
        file = sources / "vllm" / self.file
        if not file.exists():
            return False
        scopes: list[ast.AST] = [ast.parse(file.read_text())]
        for name in self.function.split("."):
            scopes = [
                node
                for scope in scopes
                for node in ast.walk(scope)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
            ]
        return any(self.text in ast.unparse(scope) for scope in scopes)


_UTILS, _V1, _V2 = "v1/attention/backends/utils.py", "v1/worker/gpu_model_runner.py", "v1/worker/gpu/attn_utils.py"
_ATTENTION = "model_executor/layers/attention/attention.py"
_STATES = "v1/worker/gpu/model_states/__init__.py"
FACTS = (
    Fact(
        V1,
        _V1,
        "GPUModelRunner.maybe_add_kv_sharing_layers_to_kv_cache_groups",
        "for layer_name in reversed(attn_layers)",
        "the last unbroken run of layers that share caches may skip rows, in the order they are made",
    ),
    Fact(
        V1,
        _V1,
        "GPUModelRunner._prepare_kv_sharing_fast_prefill",
        "return logits_indices_padded",
        "row indices come padded to a captured size",
    ),
    Fact(
        V2,
        "config/vllm.py",
        "VllmConfig",
        "unsupported.append('KV sharing fast prefill')",
        "vLLM falls back to the V1 runner",
        last="0.29",
    ),
    Fact(
        V2,
        _V2,
        "get_kv_sharing_fast_prefill_eligible_layers",
        "for layer_name in reversed(attn_layers)",
        "as in the V1 runner",
        first="0.30",
    ),
    Fact(
        V2,
        _V2,
        "FastPrefillHelper.prepare",
        "return FastPrefillBatchMetadata(logits_indices_padded=buf[:num_logits_padded], num_logits_indices=num_logits",
        "row indices come padded to a captured size; None where every row runs",
        first="0.30",
    ),
    Fact(
        V2,
        _V2,
        "build_attn_metadata",
        "num_logits_indices=fast_prefill.num_logits_indices",
        "the rows of a step are in the attention metadata",
        first="0.30",
    ),
    Fact(
        V2,
        _STATES,
        "resolve_model_state_cls",
        "return model.get_model_state_cls()",
        "the model prepares its steps, and knows in which none is sampled from",
        first="0.30",
    ),
    Fact(
        V2,
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner.execute_model",
        "attn_metadata = self.model_state.prepare_attn(",
        "a step's attention metadata come from there",
        first="0.30",
    ),
    Fact(
        V2,
        "v1/worker/gpu/input_batch.py",
        "_get_num_sampled_and_rejected_kernel",
        "is_chunked_prefilling = seq_len < prefill_len",
        "what is sampled before a prompt ends is thrown away",
        first="0.30",
    ),
    Fact(
        BOTH,
        "compilation/cuda_graph.py",
        "CUDAGraphWrapper.__call__",
        "batch_descriptor = forward_context.batch_descriptor",
        "the upper half's graph is chosen by the descriptor of the forward context",
    ),
    Fact(
        BOTH,
        "compilation/cuda_graph.py",
        "CUDAGraphWrapper.__call__",
        "cudagraph_runtime_mode = forward_context.cudagraph_runtime_mode",
        "and replayed where the context's mode is piecewise, whatever the step's",
    ),
    Fact(
        BOTH,
        _UTILS,
        "create_fast_prefill_custom_backend",
        "self.num_logits_indices = common_attn_metadata.num_logits_indices",
        "the rows of a step are in the metadata of the layers that may skip",
    ),
    Fact(
        BOTH,
        _UTILS,
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "num_actual_tokens=total_num_decode_tokens",
        "attention of those layers runs on these rows alone",
    ),
    Fact(
        BOTH,
        _ATTENTION,
        "Attention.__init__",
        "kv_sharing_target_layer_name: str | None=None",  # it takes any other keyword too, for its implementation
        "layers read another one's cache",
    ),
    Fact(
        BOTH,
        _ATTENTION,
        "unified_kv_cache_update",
        "attn_layer.impl.do_kv_cache_update(",
        "a cache is filled at the slots of the step without attending to it",
    ),
    Fact(
        BOTH,
        "config/vllm.py",
        "VllmConfig.try_verify_and_update_config",
        "cls.verify_and_update_config(self)",
        "an architecture's settings are checked before an engine starts",
    ),
    *(
        Fact(BOTH, f"model_executor/models/{module}.py", f"{name}.__init__", f"self, {arguments}", "a layer below l")
        for row in ARCHITECTURES.values()
        for module, name in [row.decoder_layer.split(".")]
        for arguments in [
            "vllm_config: VllmConfig, prefix: str"
            if module == "llama"
            else f"config: {row.classes}Config, cache_config: CacheConfig | None=None, "
            "quant_config: QuantizationConfig | None=None, prefix: str"
        ]
    ),
)
