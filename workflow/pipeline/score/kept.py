"""Answers of a score that is still being computed, kept so that a job that is ended loses its last batch and no more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KeptAnswers:
    """A file with the answers of one task, a line a batch, found again by exactly what was asked.

    What is asked are tokens, a whole batch of them: another task, seed, template or batch size asks something else. So a
    score that goes on computes the very batches that it lacks, and its numbers are those of an undisturbed one.

    Attributes:
        found: batches that an earlier job had answered.
        seconds: time that job took for those batches that were asked again.
    """

    def __init__(self, file: Path | None = None, subject: Any = None) -> None:
        """Take up the answers of `file`.

        Args:
            file: place of the answers; None keeps nothing.
            subject: all that an answer depends on beside what is asked, as JSON has it. A file about another is begun anew.
        """
        self.file, self.seconds = file, 0.0
        self._answers: dict[str, tuple[Any, float]] = {}
        if file is not None:
            self._take_up(file, json.loads(json.dumps(subject)))
        self.found = len(self._answers)

    def _take_up(self, file: Path, subject: Any) -> None:
        whole = 0
        with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # cut short when the job was ended
                try:
                    key, *row = json.loads(line)
                except ValueError:
                    break  # a machine that went down leaves zeros
                if whole:
                    self._answers[key] = tuple(row)
                elif row != [subject]:
                    break
                whole += len(line)
        if whole:
            os.truncate(file, whole)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(["subject", subject]) + "\n")

    def answer(self, inputs: Any, compute: Callable[[], Any]) -> Any:
        """What was kept for `inputs`, or what `compute` gives now; both as JSON has them, numbers bit for bit."""
        key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        if key in self._answers:
            answer, seconds = self._answers[key]
            self.seconds += seconds
            return answer
        started = time.monotonic()
        text = json.dumps(compute())
        if self.file is not None:
            with self.file.open("a") as lines:
                lines.write(f'["{key}", {text}, {time.monotonic() - started:.3f}]\n')
        return json.loads(text)
