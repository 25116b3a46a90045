"""Start values of the SwiftKV projections: copied from the teacher's weights, or fitted to its activations."""

from swiftkv.errors import UserError

# For each architecture the projections of a layer's normed input that a fit makes anew.
KEY_VALUE = ("k_proj", "v_proj")
LATENT = ("kv_a_proj_with_mqa",)  # what makes keys and values of the latent stays the teacher's
PROJECTIONS = {
    "llama": KEY_VALUE, "mistral": KEY_VALUE, "qwen2": KEY_VALUE, "qwen3": KEY_VALUE, "deepseek_v2": LATENT,
}  # fmt: skip
NORMALISED = ("qwen3",)  # their keys are no linear function of a layer's input


def check_fit(model_type: str, group_size: int) -> None:
    """Refuse a start that cannot be fitted; without torch, as planning asks too.

    Raises:
        UserError: keys are normalised, or AcrossKV groups of latent attention: each layer makes its keys of a latent in
            a basis of its own.
    """
    if model_type in NORMALISED:
        raise UserError(f"the keys of {model_type} are normalised, so no linear fit gives them; use start: copied")
    if PROJECTIONS[model_type] == LATENT and group_size > 1:
        raise UserError(
            "a fitted start of latent attention has no AcrossKV groups, as each layer's latent has a basis of its own; "
            "use start: copied"
        )
