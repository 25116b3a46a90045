"""The Hugging Face hub: the commit of a revision, and downloads with retries.

Only jobs without GPUs come here (docs/cluster.md). `huggingface_hub` itself resumes a download and refuses a file of the
wrong size. Added are retries of a hub that does not answer, and the cached copy where it stays silent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import tenacity

from swiftkv.errors import UserError

HUB_SECONDS = 15  # after which the hub counts as silent, whatever the resolver or a proxy does
LOCAL_CACHE = "local cache"
# Weights that some models have a second time, in a form that transformers does not read.
SECOND_COPIES = ["consolidated*", "*/*.safetensors"]


class HubError(UserError):
    """The hub refuses a repository, or neither the hub nor the local cache has it."""


class HubRepository:
    """A model or data set at the commit its revision stands for now, or its cached copy if the hub does not answer.

    Once the hub has not answered, this process does not ask it again.

    Attributes:
        commit: commit of the revision; None where the hub did not answer.
        identity: kind, id, revision and the commit it resolved to, for records.

    Args:
        kind: "model" or "dataset".
        source: {hub: org/name, revision: main}.

    Raises:
        HubError: the hub has no such repository or revision, or it is gated.
    """

    def __init__(self, kind: str, source: dict[str, Any]) -> None:
        from huggingface_hub import HfApi, constants

        self.kind, self.identifier, self.revision = kind, source["hub"], source.get("revision", "main")
        asked = {"repo_type": kind, "revision": self.revision, "timeout": HUB_SECONDS}
        self.commit, self._silence = None, None
        try:
            self.commit = _patiently(
                lambda: answer(lambda: HfApi().repo_info(self.identifier, **asked).sha, HUB_SECONDS)
            )
        except Exception as error:  # a network fails in many ways; a cached copy is as good
            if refusal(error):
                raise self._error(error) from None
            import datasets

            self._silence = error
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        resolved = self.commit or LOCAL_CACHE
        self.identity = {"kind": "hub", "id": self.identifier, "revision": self.revision, "resolved": resolved}

    def load(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function(identifier, revision=commit, **options)`, for loading functions of the hub.

        Raises:
            HubError: it fails.
        """
        attempt = partial(function, self.identifier, revision=self.commit or self.revision, **options)
        try:
            return _patiently(attempt) if self.commit else attempt()
        except Exception as error:  # gates, typing errors and networks all surface here
            raise self._error(self._silence or error) from None

    def download(self, patterns: list[str]) -> Path:
        """Download the files of a model that match, without second copies of weights.

        Returns:
            Their folder in the hub cache; its name is the commit.

        Raises:
            HubError: as `load`.
        """
        from huggingface_hub import snapshot_download

        folder = Path(self.load(snapshot_download, allow_patterns=patterns, ignore_patterns=SECOND_COPIES))
        self.identity["resolved"] = folder.name
        return folder

    def _error(self, error: Exception) -> HubError:
        """Say in one sentence which source failed, why, and what to do."""
        said = refusal(error)
        if not said and self._silence:
            said = (
                f"cannot be reached and is not in the local hub cache ({type(error).__name__}): connect to the hub, or "
                "download it elsewhere and name it as a `local` source"
            )
        elif not said:
            said = f"cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        return HubError(f"{self.kind} {self.identifier!r} (revision {self.revision!r}) {said}")


def answer(question: Callable[[], Any], seconds: float) -> Any:
    """Return `question()`, called in a thread: a resolver or a proxy may have no time limit of its own.

    Raises:
        TimeoutError: it has not returned after so many seconds; the thread is abandoned.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(question())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def refusal(error: BaseException) -> str:
    """Say why the hub itself refuses a repository, which waiting does not change; empty for other errors."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "is gated: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "does not exist on the hub or is private: check the id in the config, or log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return "has no such revision on the hub; check `revision` in the config"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"is refused by the hub ({status}): the token may have expired; log in with `hf auth login`"
    return ""


def _may_pass(error: BaseException) -> bool:
    from huggingface_hub import errors

    network = isinstance(error, OSError) or type(error).__module__.startswith("httpx")
    return network and not refusal(error) and not isinstance(error, errors.OfflineModeIsEnabled)


def _say(state: tenacity.RetryCallState) -> None:
    print(f"hub: {type(state.outcome.exception()).__name__}; trying again in {state.upcoming_sleep:g} s", flush=True)


@tenacity.retry(
    retry=tenacity.retry_if_exception(_may_pass),
    wait=tenacity.wait_exponential(2, exp_base=5),
    stop=tenacity.stop_after_attempt(3),
    before_sleep=_say,
    reraise=True,
)
def _patiently(function: Callable[[], Any]) -> Any:
    """Return `function()`, called again after 2 and 10 seconds if it fails for what may pass."""
    return function()
