"""The Hugging Face hub: the commit of a revision, downloads with retries, and files held to the hub's checksums.

Only jobs without GPUs come here (docs/cluster.md). `huggingface_hub` itself resumes a download and refuses a file of the
wrong size. Added are retries of a hub that does not answer, and a second download of files with a wrong checksum.
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
ATTEMPTS = 4
WAITS = (2, 10, 30)  # seconds before each further attempt
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
        source: {hub: org/name, revision: main, optional: false}; an optional one is asked for twice, not four times.

    Raises:
        HubError: the hub has no such repository or revision, or it is gated.
    """

    def __init__(self, kind: str, source: dict[str, Any]) -> None:
        self.kind, self.identifier, self.revision = kind, source["hub"], source.get("revision", "main")
        optional = source.get("optional", False)
        name = f"{self.identifier} (optional)" if optional else self.identifier

        def say(state: tenacity.RetryCallState) -> None:
            error, seconds = type(state.outcome.exception()).__name__, state.next_action.sleep
            print(f"{name}: {error}; trying again in {seconds:g} s", flush=True)

        self._retried = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            wait=tenacity.wait_chain(*map(tenacity.wait_fixed, WAITS)),
            stop=tenacity.stop_after_attempt(2 if optional else ATTEMPTS),
            before_sleep=say,
            reraise=True,
        )
        self.commit: str | None = None
        self._silence: Exception | None = None
        try:
            self.commit = self._retried(lambda: ask(kind, self.identifier, self.revision, HUB_SECONDS))
        except Exception as error:  # a network fails in many ways; a cached copy is as good
            if _is_refusal(error):
                raise self._error(error) from None
            import datasets
            import huggingface_hub.constants

            self._silence = error
            huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        resolved = self.commit or LOCAL_CACHE
        self.identity = {"kind": "hub", "id": self.identifier, "revision": self.revision, "resolved": resolved}

    def load(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return `function(identifier, *arguments, revision=commit, **options)`, for loading functions of the hub.

        Raises:
            HubError: it fails.
        """
        attempt = partial(function, self.identifier, *arguments, revision=self.commit or self.revision, **options)
        try:
            return self._retried(attempt) if self.commit else attempt()
        except Exception as error:  # gates, typing errors and networks all surface here
            raise self._error(self._silence or error) from None

    def download(self, patterns: list[str]) -> Path:
        """Download the files of a model that match, without second copies of weights.

        Returns:
            Their folder in the hub cache; its name is the commit.

        Raises:
            HubError: they cannot be downloaded, or one has a wrong checksum twice.
        """
        from huggingface_hub import snapshot_download

        options = {"allow_patterns": patterns, "ignore_patterns": SECOND_COPIES}
        folder = Path(self._verified(lambda _again: self.load(snapshot_download, **options)))
        self.identity["resolved"] = folder.name
        return folder

    def tables(self, *arguments: dict[str, Any]) -> list[Any]:
        """Return what `datasets.load_dataset` makes of a data set, once for each of `arguments`; raises as `download`."""
        import datasets

        def read(again: bool) -> list[Any]:
            # What was made of damaged files is made anew.
            mode = {"download_mode": "reuse_cache_if_exists"} if again else {}
            return [self.load(datasets.load_dataset, **options, **mode) for options in arguments]

        return self._verified(read)

    def _verified(self, read: Callable[[bool], Any]) -> Any:
        """Return `read(False)`; if that leaves files with a wrong checksum, download these again and return `read(True)`."""
        from huggingface_hub import hf_hub_download

        for again in (False, True):
            result, failure = None, None
            try:
                result = read(again)
            except HubError as error:  # a damaged file may not even be read
                failure = error
            if not (damaged := self._damaged()):
                if failure:
                    raise failure
                return result
            for name in damaged if not again else []:
                print(f"{name} of {self.identifier} is not what the hub has; fetching it again", flush=True)
                self.load(hf_hub_download, name, repo_type=self.kind, force_download=True)
        raise HubError(
            f"{self.kind} {self.identifier!r}: {damaged[0]} has the wrong checksum, also after a second download; look at "
            "the disk of the hub cache and at what lies between this machine and the hub, then run again"
        )

    def _damaged(self) -> list[str]:
        """Return the cached files of this commit that differ from the hub's; none if the hub did not answer."""
        from huggingface_hub import HfApi

        def mismatches(identifier: str, revision: str) -> list[str]:
            try:
                checked = HfApi().verify_repo_checksums(identifier, repo_type=self.kind, revision=revision)
            except ValueError:  # nothing of it is in the cache
                return []
            return [mismatch["path"] for mismatch in checked.mismatches]

        return self.load(mismatches) if self.commit else []

    def _error(self, error: Exception) -> HubError:
        """Say in one sentence which source failed, why, and what to do."""
        from huggingface_hub import errors

        if isinstance(error, errors.GatedRepoError):
            said = "is gated: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
        elif isinstance(error, errors.RepositoryNotFoundError):
            said = "does not exist on the hub or is private: check the id in the config, or log in with `hf auth login`"
        elif isinstance(error, errors.RevisionNotFoundError):
            said = "has no such revision on the hub; check `revision` in the config"
        elif self._silence:
            said = (
                f"cannot be reached and is not in the local hub cache ({type(error).__name__}): connect to the hub, or "
                "download it elsewhere and name it as a `local` source"
            )
        else:
            said = f"cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        return HubError(f"{self.kind} {self.identifier!r} (revision {self.revision!r}) {said}")


def ask(kind: str, identifier: str, revision: str, seconds: float) -> str:
    """Ask once for the commit of a revision; after so many seconds the hub counts as silent.

    Raises:
        Exception: the error of hub or network.
    """
    from huggingface_hub import HfApi

    settings = {"repo_type": kind, "revision": revision, "timeout": seconds}
    return answer(lambda: HfApi().repo_info(identifier, **settings).sha, seconds)


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


def _is_refusal(error: BaseException) -> bool:
    """Tell whether the hub itself refuses, which waiting does not change."""
    from huggingface_hub import errors

    return isinstance(error, (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError))


def _may_pass(error: BaseException) -> bool:
    from huggingface_hub import errors

    network = isinstance(error, OSError) or type(error).__module__.startswith("httpx")
    return network and not _is_refusal(error) and not isinstance(error, errors.OfflineModeIsEnabled)
