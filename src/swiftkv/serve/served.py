"""Which architectures vLLM cannot serve once they are rewired; known without vLLM."""

from swiftkv.errors import UserError

# model_type of the ordinary model -> why its rewired form is scored but not served (docs/serving.md, Latent attention).
NOT_SERVED = {
    "deepseek_v2": "vLLM's latent attention shares no KV cache between layers (MLACommonImpl: KV sharing is not supported "
    "for MLA), so layers >= l could neither skip prompt tokens nor share a cache",
}


def check_served(model_type: str) -> None:
    """Refuse a rewired model that vLLM cannot serve.

    Args:
        model_type: of the ordinary or of the rewired model.

    Raises:
        UserError: with the reason.
    """
    if reason := NOT_SERVED.get(model_type.removesuffix("_swiftkv")):
        raise UserError(f"a SwiftKV model of {model_type.removesuffix('_swiftkv')!r} cannot be served: {reason}")
