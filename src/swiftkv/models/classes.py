"""SwiftKV classes of every architecture: transformers' classes with the shared mixins, registered with its Auto classes.

The `module` of a row of `ARCHITECTURES` may define subclasses that replace the mixins: `Attention` replaces
`SwiftKVAttentionMixin`, `Model` replaces `SwiftKVModelMixin`, `CausalLM` replaces `SwiftKVCausalLMMixin`.
"""

from __future__ import annotations

from importlib import import_module

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping

from swiftkv.architectures import ARCHITECTURES, Architecture
from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


def _make(model_type: str, row: Architecture) -> type[PreTrainedModel]:
    """Make the language model of an architecture, e.g. `LlamaSwiftKVForCausalLM`, its `config_class` and its `model_class`."""
    place = f"transformers.models.{model_type}"
    theirs = vars(import_module(f"{place}.configuration_{model_type}")) | vars(
        import_module(f"{place}.modeling_{model_type}")
    )
    own = vars(import_module(row.module)) if row.module else {}

    def make(ending: str, mixin: type, base: str, **attributes) -> type:
        """Make a class and its name in this module, where pickling and transformers look for it."""
        name, bases = f"{row.classes}SwiftKV{ending}", (mixin, theirs[f"{row.classes}{base}"])
        attributes |= {"__module__": __name__, "__doc__": f"{row.classes}{base} with SwiftKV."}
        globals()[name] = made = type(name, bases, attributes)
        return made

    config = make("Config", SwiftKVConfigMixin, "Config", model_type=f"{model_type}_swiftkv")
    attention = make("Attention", own.get("Attention", SwiftKVAttentionMixin), "Attention")
    typed = {"__annotations__": {"config": config}}  # where transformers looks for it
    model = make("Model", own.get("Model", SwiftKVModelMixin), "Model", attention_class=attention, **typed)
    return make("ForCausalLM", own.get("CausalLM", SwiftKVCausalLMMixin), "ForCausalLM", model_class=model, **typed)


# Language models by transformers' model_type of the ordinary model.
CLASSES = {model_type: _make(model_type, row) for model_type, row in ARCHITECTURES.items()}
SWIFTKV_TYPES = {made.config_class.model_type for made in CLASSES.values()}

for _model_type, _causal_lm in CLASSES.items():
    _config = _causal_lm.config_class
    # Checkpoints hold experts one by one, the model holds them as one tensor.
    if _mapping := get_checkpoint_conversion_mapping(_model_type):
        register_checkpoint_conversion_mapping(_config.model_type, _mapping)
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _causal_lm.model_class)
    AutoModelForCausalLM.register(_config, _causal_lm)
