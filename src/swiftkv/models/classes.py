"""The SwiftKV classes of every architecture: transformers' own under the shared mixins, registered with its Auto classes.

The module that a row of `ARCHITECTURES` names holds what its architecture has of its own, under these names:
`Attention` in place of `SwiftKVAttentionMixin`, `Model` in place of `SwiftKVModelMixin`, and `CausalLM` in place of
`SwiftKVCausalLMMixin`, each a subclass of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from swiftkv.architectures import ARCHITECTURES, Architecture
from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


class Classes(NamedTuple):
    """The SwiftKV classes of one architecture.

    Attributes:
        config: transformers' configuration with the SwiftKV fields, e.g. `LlamaSwiftKVConfig`.
        model: the decoder with SwiftKV from layer l on, `LlamaSwiftKVModel`.
        causal_lm: the language model, `LlamaSwiftKVForCausalLM`.
    """

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    causal_lm: type[PreTrainedModel]


def _make(model_type: str, row: Architecture) -> Classes:
    place = f"transformers.models.{model_type}"
    theirs = vars(import_module(f"{place}.configuration_{model_type}")) | vars(
        import_module(f"{place}.modeling_{model_type}")
    )
    own = vars(import_module(row.module)) if row.module else {}

    def make(ending: str, mixin: type, base: str, **attributes) -> type:
        """A class of this module, as pickling and transformers, which reads the module's text, want it."""
        name, bases = f"{row.classes}SwiftKV{ending}", (mixin, theirs[f"{row.classes}{base}"])
        made = type(
            name, bases, {"__module__": __name__, "__doc__": f"{row.classes}{base} with SwiftKV.", **attributes}
        )
        globals()[name] = made
        return made

    config = make("Config", SwiftKVConfigMixin, "Config", model_type=f"{model_type}_swiftkv")
    attention = make("Attention", own.get("Attention", SwiftKVAttentionMixin), "Attention")
    typed = {"__annotations__": {"config": config}}  # where transformers looks for it
    model = make("Model", own.get("Model", SwiftKVModelMixin), "Model", attention_class=attention, **typed)
    causal_lm = make(
        "ForCausalLM", own.get("CausalLM", SwiftKVCausalLMMixin), "ForCausalLM", model_class=model, **typed
    )
    return Classes(config, model, causal_lm)


# By transformers' model_type of the ordinary model.
CLASSES = {model_type: _make(model_type, row) for model_type, row in ARCHITECTURES.items()}
SWIFTKV_TYPES = {classes.config.model_type for classes in CLASSES.values()}

for _classes in CLASSES.values():
    AutoConfig.register(_classes.config.model_type, _classes.config)
    AutoModel.register(_classes.config, _classes.model)
    AutoModelForCausalLM.register(_classes.config, _classes.causal_lm)
