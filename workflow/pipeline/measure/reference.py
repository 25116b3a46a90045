"""The authors' vLLM plugin, as another way to serve a SwiftKV checkpoint: where it can, and a sentence where not."""

from __future__ import annotations

from pipeline.records import installed_version
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

REFERENCE = "arctic-inference"
VERSIONS = {"arctic-inference": "0.3.0", "vllm": "0.26.0"}


def refuse_unless_installed(spec: SwiftKVSpec | None, variant: str) -> None:
    """Make sure that this environment can serve a variant with the reference plugin, before an engine starts.

    Args:
        spec: the variant's rewiring.

    Raises:
        UserError: the plugin is not installed, vLLM is not the one it was made for, or the variant is not one it serves.
    """
    for distribution, wanted in VERSIONS.items():
        installed = installed_version(distribution)
        if installed is None or installed.partition("+")[0] != wanted:
            needs = " and ".join(f"{name} {version}" for name, version in VERSIONS.items())
            raise UserError(
                f"variant {variant!r} is served by the reference plugin, which needs {needs}, but this Python environment "
                f"has {f'{distribution} {installed}' if installed else f'no {distribution}'}"
            )
    if spec is None or spec.key_value_group_size > 1:
        raise UserError(f"variant {variant!r}: the reference plugin serves SwiftKV without AcrossKV, and nothing else")
