"""Progress lines on stderr, the CSV log of losses, and the machines that a training used."""

from __future__ import annotations

import csv
import datetime
import sys
import time
from pathlib import Path
from typing import Any

from swiftkv.device import accelerator

LOSSES = ("logits_loss", "hidden_loss", "early_exit_loss")  # parts of the loss, in the order of the steps
COLUMNS = (
    "step", "epoch", "tokens", "loss", *LOSSES, "learning_rate", "tokens_per_second", "seconds",
)  # fmt: skip


class LossLog:
    """CSV log with one row per step, flushed at once; losses have all their digits."""

    def __init__(self, path: Path, steps: int) -> None:
        """Open `path` and keep only the rows of the first `steps` steps."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if steps and path.exists():
            with path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if (row["step"] or "x").isdigit()]
            kept = [row for row in rows if int(row["step"]) <= steps]
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._writer.writerows({name: row[name] for name in COLUMNS} for row in kept)
        self._file.flush()

    def add(self, **row: float) -> None:
        """Append a row; the keywords are the columns."""
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Progress:
    """Prints a line at the start, at the end and every `interval` seconds in between."""

    def __init__(self, what: str, total: int, unit: str = "step", done: int = 0, interval: float = 20) -> None:
        self.what, self.total, self.unit, self.interval = what, total, unit, interval
        self.first, self.start, self.said = done, time.monotonic(), -interval

    def at(self, done: int, note: str = "") -> None:
        """Report that `done` of the units are done; the time left is estimated from the speed of this run."""
        elapsed = time.monotonic() - self.start
        if done < self.total and elapsed - self.said < self.interval:
            return
        self.said = elapsed
        left = (self.total - done) * elapsed / max(1, done - self.first)
        clock = datetime.timedelta(seconds=round(left if done < self.total else elapsed))
        time_said = f"{clock} left" if done < self.total else f"{clock} in all"
        parts = [f"{self.what}: {self.unit} {done}/{self.total}", *([note] if note else []), time_said]
        print(", ".join(parts), file=sys.stderr, flush=True)


class Machines:
    """Seconds of optimizer steps by machine, over all attempts of a training."""

    def __init__(self, position: dict[str, Any], ranks: int) -> None:
        """Continue from a training state's position; old states without machines count as this machine."""
        self._now = (ranks, accelerator())
        before = position.get("machines", [[*self._now, position["seconds"]]])
        self._seconds = {(count, name): seconds for count, name, seconds in before}

    def add(self, seconds: float) -> None:
        """Count a step."""
        self._seconds[self._now] = self._seconds.get(self._now, 0.0) + seconds

    @property
    def spent(self) -> list[list]:
        """[ranks, name of their GPUs or None, seconds] per machine."""
        return [[*machine, seconds] for machine, seconds in self._seconds.items()]
