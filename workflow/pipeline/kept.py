"""Answers kept in a file, so that a job that is killed goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.records import hardware, libraries, project_code
from pipeline.sources import with_state


class KeptAnswers:
    """The answers of a job, a line each: a killed job loses the one at hand only.

    An answer to a batch is found again by its tokens. So a job that goes on computes the very batches that it lacks, and its
    numbers are those of an undisturbed one.

    Args:
        state: folder of the file, which is created if need be; None keeps answers in memory alone.
        conditions: what the answers are of. Other conditions, other files, code or libraries have a file of their own.
        files: checkpoints and other files that the answers follow from.
    """

    def __init__(
        self, state: Path | None = None, conditions: Mapping[str, Any] | None = None, files: Sequence[Path] = ()
    ) -> None:
        self.state, self.file, self._answers = state, None, dict[str, Any]()
        if state is not None:
            known = {
                "conditions": conditions,
                "code": project_code(),
                "files": [with_state({"local": str(file)})["files"] for file in files],
                "libraries": libraries(),
            }
            digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
            self.file = state / f"{digest[:16]}.jsonl"
            state.mkdir(parents=True, exist_ok=True)
            self.file.touch()
            for line in self.file.read_bytes().splitlines():
                # Cut short when a job was killed, or zeros of a machine that went down.
                with contextlib.suppress(ValueError):
                    key, self._answers[key] = json.loads(line)

    def answer(self, inputs: Any, compute: Callable[[], Any]) -> Any:
        """Return the answer kept for `inputs`, or `compute()`; both as JSON has them, numbers bit for bit."""
        key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        if key not in self._answers:
            text = json.dumps(compute())
            if self.file is not None:
                with self.file.open("a") as lines:
                    lines.write(f'\n["{key}", {text}]')  # the line before may have been cut short
            self._answers[key] = json.loads(text)
        return self._answers[key]

    def delete(self) -> None:
        """Delete the folder, once all is measured."""
        if self.state is not None:
            shutil.rmtree(self.state, ignore_errors=True)


def machine() -> Any:
    """The GPUs of this machine; where it has none, its processor, cores and threads."""
    found = hardware()
    return found["gpus"] or found
