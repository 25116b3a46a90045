"""Tables, figures, claims and the report, made of one tidy frame of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Content = Mapping[str, Any]  # of a JSON or YAML file, or a part of it
Entry = Content  # of artifacts.yaml, resolved by `contents.resolve`
Files = Mapping[str, Sequence[str | Path]]  # of an artifact, by input
Row = dict[str, Any]  # of the frame
MetricRows = Iterator[tuple[Content, Row]]  # values by metric, and what else their rows say
