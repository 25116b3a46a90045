"""Tables, figures, claims and the report, made of one tidy frame of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Content = Mapping[str, Any]  # of a JSON or YAML file, or a part of it
Entry = Content  # of artifacts.yaml, resolved by `contents.resolve`
