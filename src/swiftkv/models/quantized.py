"""Load checkpoints with FP8 weights; they stay 8-bit, and the other parameters can be trained.

transformers either dequantizes such weights, or keeps them 8-bit for inference on some GPUs only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from swiftkv.errors import UserError
from swiftkv.quantize.kv_cache import FP8
from swiftkv.quantize.linear import SCALE, quantized_names, stored_as_words, use_float8


@torch.no_grad()
def load_quantized(
    path: Path, files: Iterable[Path], config: PreTrainedConfig, dtype: torch.dtype, device_map: str | None
) -> PreTrainedModel:
    """Load a language model with `Float8Linear` layers.

    Args:
        path: checkpoint folder, already checked against `config`.
        files: its safetensors files.
        config: its configuration.
        dtype: dtype of everything that is not FP8.
        device_map: as in transformers.

    Returns:
        The model in evaluation mode; without the teacher's projections of layers >= l if the checkpoint has none.

    Raises:
        UserError: a weight is not FP8, or the model does not fit on the GPUs.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    use_float8(model, quantized_names(model))
    places = {"": "cpu"}
    if device_map is not None:
        places = _places(model, dtype)
        check_places(places, path)
    wanted, tensors = model.state_dict(), {}
    for file in sorted(files):
        with safe_open(file, framework="pt") as opened:
            for name in wanted.keys() & set(opened.keys()):
                tensor, eight_bit = opened.get_tensor(name), f"{name}_scale" in wanted
                if eight_bit and tensor.dtype != FP8:
                    raise UserError(f"{file}: tensor {name} is {tensor.dtype}, but config.json says that it is FP8")
                words = stored_as_words(name, tensor)
                as_it_is = eight_bit or name.endswith(SCALE)
                tensors[name] = words.to(_place(places, name), words.dtype if as_it_is else dtype)
    if hasattr(config, "num_key_value_layers") and not (
        model.model.teacher_projection_names(prefix="model.") & tensors.keys()
    ):
        model.model.drop_teacher_projections()
    model.load_state_dict(tensors, assign=True, strict=False)  # a tied head is absent
    model.tie_weights()
    model.requires_grad_(False)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)  # still on the meta device
    model.name_or_path = config.name_or_path = str(path)
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path)
    if device_map is not None:
        from accelerate import dispatch_model

        model = dispatch_model(model, places, skip_keys=model._skip_keys_device_placement)
    return model.eval()


def check_places(places: dict[str, Any], path: Path) -> None:
    """Check that a device map offloads nothing to CPU or disk, which would be a hundred times slower.

    Raises:
        UserError: naming the first module that is offloaded, and the checkpoint `path`.
    """
    if left := [module for module, place in places.items() if str(place) in ("cpu", "disk")]:
        raise UserError(
            f"the model in {path} does not fit into the memory of the GPUs there are: {left[0] or 'all of it'} is left over, "
            f"one of {len(left)} parts; raise gpus.score of its entry in the config, or end what else holds the GPUs"
        )


def _places(model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Make a device map that fills the GPUs evenly."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = {"no_split_module_classes": list(model._no_split_modules), "dtype": dtype}
    return infer_auto_device_map(model, max_memory=get_balanced_memory(model, **whole), **whole)


def _place(places: dict[str, Any], name: str) -> Any:
    """Look up the device of a tensor by its innermost module."""
    return places[max((module for module in places if f"{name}.".startswith(f"{module}.") or not module), key=len)]
