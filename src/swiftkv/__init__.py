"""SwiftKV: prefill-optimized inference through model rewiring and self-distillation."""

import contextlib
import importlib.metadata
import time

STARTED = time.monotonic()  # when this process began, as near as its first import can tell


def installed_version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed; None where none is."""
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None
