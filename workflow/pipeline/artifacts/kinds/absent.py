"""An item of the paper or the blog that no measurement can regenerate, with the reason; nothing is made of it."""

from __future__ import annotations

from pipeline.artifacts.kind import ArtifactKind
from swiftkv.section import Text

KIND = ArtifactKind("table", (), needs=(), make=None, own={"reason": Text})
