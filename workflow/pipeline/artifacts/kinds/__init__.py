"""The kinds of artifacts: every module of this folder is one, by the name an entry of artifacts.yaml gives."""

import importlib
import pkgutil

from pipeline.artifacts.kind import ArtifactKind

KINDS: dict[str, ArtifactKind] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").KIND for module in pkgutil.iter_modules(__path__)
}
