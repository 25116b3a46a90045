"""Read safetensors checkpoints; names and shapes are checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.core_model_loading import revert_weight_conversion

from swiftkv.architectures import ARCHITECTURES, check_loaded
from swiftkv.device import compute_dtype
from swiftkv.errors import UserError, one_line
from swiftkv.io import check_tied_head, check_token_ids, read_json, tensor_shapes
from swiftkv.models.classes import SWIFTKV_TYPES
from swiftkv.models.rewire import rewire
from swiftkv.models.sharing import check_base
from swiftkv.models.swiftkv import quiet
from swiftkv.quantize.kv_cache import FP8
from swiftkv.quantize.linear import (
    SCALE,
    is_quantized,
    quantized_names,
    stored_as_words,
    use_float8,
)
from swiftkv.spec import SwiftKVSpec


def load_any(
    path: str | Path,
    dtype: torch.dtype | None = None,
    device_map: str | None = None,
    types: Set[str] = SWIFTKV_TYPES | ARCHITECTURES.keys(),
) -> PreTrainedModel:
    """Load a checkpoint of one of the model_types `types`, ordinary or SwiftKV; see `load_base`."""
    config, dtype = _read_config(Path(path), types), dtype or compute_dtype()
    if is_quantized(config):
        return _load_quantized(Path(path), config, dtype, device_map)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, device_map=device_map, use_safetensors=True, local_files_only=True
        )
    if device_map is not None:
        # transformers sets no map if the model is on one device.
        check_places(getattr(model, "hf_device_map", {"": model.device}), Path(path))
    return model


def load_base(path: str | Path, dtype: torch.dtype | None = None, device_map: str | None = None) -> PreTrainedModel:
    """Load an ordinary checkpoint of one of `ARCHITECTURES`.

    Args:
        path: folder with config.json and safetensors.
        dtype: dtype of the weights in memory; None means `compute_dtype()`.
        device_map: as in transformers; "auto" fills the available GPUs, None means CPU.

    Returns:
        The language model in evaluation mode.

    Raises:
        UserError: a file is missing, damaged or of another architecture, a tensor is absent or has a wrong shape, or the
            model does not fit on the GPUs.
    """
    return load_any(path, dtype, device_map, ARCHITECTURES.keys())


def load_swiftkv(path: str | Path, dtype: torch.dtype | None = None, device_map: str | None = None) -> PreTrainedModel:
    """Load a SwiftKV checkpoint, ours or a published one; see `load_base`.

    Without the teacher's projections of layers >= l in the checkpoint, only the student can run.
    """
    return load_any(path, dtype, device_map, SWIFTKV_TYPES)


@torch.no_grad()
def load_sharing(path: str | Path, teacher: PreTrainedModel) -> PreTrainedModel:
    """Load a SwiftKV checkpoint that shares the weights equal to its teacher's.

    Args:
        teacher: the ordinary model; gives dtype and devices.

    Returns:
        The model, bit-equal to that of `load_swiftkv`.

    Raises:
        UserError: as `load_swiftkv`, or the checkpoint is of another model.
    """
    path = Path(path)
    config = _read_config(path, SWIFTKV_TYPES)
    model = rewire(teacher, SwiftKVSpec.from_config(config))
    use_float8(model, quantized_names(model) if is_quantized(config) else ())
    parameters = dict(model.named_parameters())
    changed, shapes = {}, tensor_shapes(path)
    # Experts, stored one by one, are assembled by transformers.
    if assembled := parameters.keys() - shapes.keys() - saved_shapes(model).keys():
        own = load_swiftkv(path, teacher.dtype).state_dict()
        for name in assembled:
            tensor = own[name].to(parameters[name].device)
            if not torch.equal(tensor, parameters[name]):
                changed[name] = tensor
        del own
    for file in sorted({file for file, _ in shapes.values()}):
        with safe_open(file, framework="pt") as tensors:
            for name in parameters.keys() & set(tensors.keys()):
                shared, own = parameters[name], stored_as_words(name, tensors.get_tensor(name))
                if own.shape != shared.shape:
                    raise UserError(f"{file}: tensor {name} has another shape than in {teacher.name_or_path}")
                own = own.to(shared.device, shared.dtype)
                # Bitwise: two FP8 numbers in a 16-bit word may look like NaN.
                if not torch.equal(own.view(torch.uint8), shared.view(torch.uint8)):
                    changed[name] = own
    model.load_state_dict(changed, strict=False, assign=True)
    model.tie_weights()
    return spread(model.eval(), teacher)


def spread(model: PreTrainedModel, teacher: PreTrainedModel) -> PreTrainedModel:
    """Place a rewired model on the GPUs that hold its teacher's layers; no change on a single device."""
    places = getattr(teacher, "hf_device_map", {})
    return model if len(set(places.values())) < 2 else _dispatch(model, places)


def _dispatch(model: PreTrainedModel, places: dict[str, Any]) -> PreTrainedModel:
    from accelerate import dispatch_model

    added = {"model.norm_swiftkv": model.model.norm_swiftkv}  # absent from the teacher's map
    if model.spec.early_exit:
        added["early_exit_head_swiftkv"] = model.early_exit_head_swiftkv
    for name, module in added.items():
        device = module.weight.device
        places = places | {name: device.type if device.index is None else device.index}
    return dispatch_model(model, places, skip_keys=model._skip_keys_device_placement, force_hooks=True)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint.

    Raises:
        UserError: there is none, it has no chat template, or it gives ids that the embedding has no row for.
    """
    check_token_ids(Path(path))
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no usable tokenizer ({one_line(error)[:200]})") from None
    if tokenizer.chat_template is None:
        raise UserError(
            f"the tokenizer in {path} has no chat template, which chats need; name a model to take it from as "
            "`chat_template` of this one in the config"
        )
    return tokenizer


@torch.no_grad()
def _load_quantized(
    path: Path, config: PreTrainedConfig, dtype: torch.dtype, device_map: str | None
) -> PreTrainedModel:
    """Load a language model with `Float8Linear` layers.

    Args:
        path: checkpoint folder, already checked against `config`.
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
        places = _balanced_map(model, dtype)
        check_places(places, path)
    wanted, tensors = model.state_dict(), {}
    for file in sorted({file for file, _ in tensor_shapes(path).values()}):
        with safe_open(file, framework="pt") as opened:
            for name in wanted.keys() & set(opened.keys()):
                tensor, eight_bit = opened.get_tensor(name), f"{name}_scale" in wanted
                if eight_bit and tensor.dtype != FP8:
                    raise UserError(f"{file}: tensor {name} is {tensor.dtype}, but config.json says that it is FP8")
                words = stored_as_words(name, tensor)
                as_it_is = eight_bit or name.endswith(SCALE)
                tensors[name] = words.to(_device(places, name), words.dtype if as_it_is else dtype)
    if hasattr(config, "num_key_value_layers") and not model.teacher_projection_names() & tensors.keys():
        model.drop_teacher_projections()
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


def _balanced_map(model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Make a device map that fills the GPUs evenly."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = {"no_split_module_classes": list(model._no_split_modules), "dtype": dtype}
    return infer_auto_device_map(model, max_memory=get_balanced_memory(model, **whole), **whole)


def _device(places: dict[str, Any], name: str) -> Any:
    """Look up the device of a tensor by its innermost module."""
    return places[max((module for module in places if f"{name}.".startswith(f"{module}.") or not module), key=len)]


def check_swiftkv(path: str | Path) -> None:
    """Check a SwiftKV checkpoint as `load_swiftkv` does, without reading weights."""
    _read_config(Path(path), SWIFTKV_TYPES)


def _read_config(path: Path, types: Set[str]) -> PreTrainedConfig:
    """Read the configuration of a checkpoint and check its model_type and tensors."""
    config_file = path / "config.json"
    content = read_json(config_file)
    model_type = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(model_type, str):
        raise UserError(f"{config_file} names no model_type")
    if model_type not in types:
        raise UserError(f"{config_file} is of a {model_type!r} model, but one of {', '.join(sorted(types))} is needed")
    check_loaded(content, str(config_file))
    try:
        config = AutoConfig.from_pretrained(path)
    except (ValueError, TypeError) as error:
        raise UserError(f"{config_file} does not describe a possible model: {one_line(error)}") from None
    check_tensors(path, config, scales=is_quantized(config))
    return config


def check_tensors(path: Path, config: Any, scales: bool = False) -> None:
    """Compare names and shapes in the safetensors headers with the model's.

    Args:
        path: checkpoint folder.
        config: its configuration; other tensors may replace the weights of a quantized checkpoint.
        scales: require the scales of `swiftkv.quantize.linear`, one per output channel.

    Raises:
        UserError: a file is damaged, a shared base is gone or has changed, or a tensor is missing, unknown, of a wrong shape,
            or not what it is tied to.
    """
    check_base(path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    needed = saved_shapes(model)
    found = tensor_shapes(path)
    if scales:
        channels = {name: needed[f"{name}.weight"][0] for name in quantized_names(model)}
        needed |= {f"{name}{SCALE}": (rows, 1) for name, rows in channels.items() if f"{name}.weight" in found}
    absent = needed.keys() - found.keys()
    if config.tie_word_embeddings:
        absent.discard("lm_head.weight")
        check_tied_head(found)
    if is_quantized(config) and not scales:
        absent -= {f"{name.rpartition('.')[0]}.weight" for name in found}
    if hasattr(config, "num_key_value_layers"):
        teacher = model.teacher_projection_names()
        if teacher <= absent:
            absent -= teacher
        unknown = {name for name in found.keys() - needed.keys() if name.endswith((".weight", ".bias"))}
        if extra := sorted(name for name in unknown if "_swiftkv" in name):
            raise UserError(
                f"{path} holds the tensor {extra[0]}, which its config.json (num_key_value_layers "
                f"{config.num_key_value_layers}, key_value_group_size {config.key_value_group_size}) has no place for"
            )
    if absent:
        raise UserError(f"{path} has no tensor {min(absent)}, which its config.json asks for")
    for name in sorted(needed.keys() & found.keys()):
        file, shape = found[name]
        if shape != needed[name]:
            raise UserError(
                f"{file}: tensor {name} has shape {list(shape)}, but config.json asks for {list(needed[name])}"
            )


def saved_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes in the model's checkpoint, where experts are stored one by one."""
    tensors = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, tensors).items()}
