"""What the plugin relies on in vLLM's sources beyond names and signatures, in both model runners."""

import ast
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from swiftkv.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Fact:
    """A piece of code that a function of vLLM must contain."""

    file: str  # below `vllm/`
    function: str  # its name, or Class.name
    text: str  # of one expression or statement, as `ast.unparse` writes it
    first: str | None = None  # releases it is expected in, by their first two numbers; None is no bound
    last: str | None = None

    def applies(self, version: str) -> bool:
        minor = Version(version).release[:2]
        return (self.first is None or minor >= Version(self.first).release[:2]) and (
            self.last is None or minor <= Version(self.last).release[:2]
        )

    def holds(self, sources: Path) -> bool:
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


WORKER, V2, ATTENTION = "v1/worker", "v1/worker/gpu", "model_executor/layers/attention/attention.py"
UTILS, GRAPH = "v1/attention/backends/utils.py", "compilation/cuda_graph.py"
REVERSED = "for layer_name in reversed(attn_layers)"
ROWS = "logits_indices_padded=buf[:num_logits_padded], num_logits_indices=num_logits"
LLAMA = "self, vllm_config: VllmConfig, prefix: str"
OTHERS = "self, config: {}Config, cache_config: CacheConfig | None=None, quant_config: QuantizationConfig | None=None, "
EXPERT = "self, param: torch.nn.Parameter, loaded_weight: torch.Tensor, weight_name: str, shard_id: str, expert_id: int"
FACTS = (
    # The last unbroken run of layers that share caches may skip rows, in the order they are made.
    Fact(f"{WORKER}/gpu_model_runner.py", "maybe_add_kv_sharing_layers_to_kv_cache_groups", REVERSED),
    Fact(f"{V2}/attn_utils.py", "get_kv_sharing_fast_prefill_eligible_layers", REVERSED, first="0.30"),
    # Up to 0.29 fast prefill makes vLLM take its first model runner.
    Fact("config/vllm.py", "VllmConfig", "unsupported.append('KV sharing fast prefill')", last="0.29"),
    # Indices of rows with logits come padded to a captured size. They are in the metadata of the layers that may skip, whose
    # attention runs on these rows alone.
    Fact(f"{WORKER}/gpu_model_runner.py", "_prepare_kv_sharing_fast_prefill", "return logits_indices_padded"),
    Fact(f"{V2}/attn_utils.py", "FastPrefillHelper.prepare", f"return FastPrefillBatchMetadata({ROWS}", first="0.30"),
    Fact(
        f"{V2}/attn_utils.py", "build_attn_metadata", "num_logits_indices=fast_prefill.num_logits_indices", first="0.30"
    ),
    Fact(
        UTILS, "create_fast_prefill_custom_backend", "self.num_logits_indices = common_attn_metadata.num_logits_indices"
    ),
    Fact(UTILS, "make_kv_sharing_fast_prefill_common_attn_metadata", "num_actual_tokens=total_num_decode_tokens"),
    # In the second runner the model prepares its steps, and what is sampled before a prompt ends is thrown away.
    Fact(
        f"{V2}/model_states/__init__.py", "resolve_model_state_cls", "return model.get_model_state_cls()", first="0.30"
    ),
    Fact(f"{V2}/model_runner.py", "execute_model", "attn_metadata = self.model_state.prepare_attn(", first="0.30"),
    Fact(f"{V2}/input_batch.py", "_get_num_sampled_and_rejected_kernel", "= seq_len < prefill_len", first="0.30"),
    # The graph of the upper half is chosen by the descriptor and the mode of the forward context.
    Fact(GRAPH, "CUDAGraphWrapper.__call__", "batch_descriptor = forward_context.batch_descriptor"),
    Fact(GRAPH, "CUDAGraphWrapper.__call__", "cudagraph_runtime_mode = forward_context.cudagraph_runtime_mode"),
    # Layers read the cache of another; `Attention` takes any other keyword too, for its implementation. A cache is filled at
    # the slots of the step without attending to it.
    Fact(ATTENTION, "Attention.__init__", "kv_sharing_target_layer_name: str | None=None"),
    Fact(ATTENTION, "unified_kv_cache_update", "attn_layer.impl.do_kv_cache_update("),
    # An architecture's settings are checked before an engine starts.
    Fact("config/vllm.py", "VllmConfig.try_verify_and_update_config", "cls.verify_and_update_config(self)"),
    # Layers are vLLM's own, from l on with another attention.
    *(
        Fact(f"model_executor/models/{module}.py", f"{name}.{function}", text)
        for row in ARCHITECTURES.values()
        for module, name in [row.decoder_layer.split(".")]
        for function, text in {
            "__init__": LLAMA if module in ("llama", "qwen3_moe") else f"{OTHERS.format(row.classes)}prefix: str",
            "forward": "self.self_attn(positions=positions, hidden_states=hidden_states)",
        }.items()
    ),
    Fact("model_executor/layers/fused_moe/routed_experts.py", "RoutedExperts.weight_loader", EXPERT),
)
