"""The Hugging Face hub: what a revision is now, downloads with patience, and files held to the hub's checksums.

Only jobs without GPUs come here (docs/cluster.md). What libraries do themselves is left to them: `huggingface_hub` goes on
with a download that broke off and refuses a file of the wrong size. Added is patience with a hub that does not answer
for a minute, and a second download of files whose checksum is not the hub's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import tenacity

from swiftkv.errors import UserError

HUB_SECONDS = 15  # an unreachable hub is known by then, whatever the resolver or a proxy does
WAITS = (2, 10, 30)  # seconds before each further attempt
LOCAL_CACHE = "local cache"
# Weights that some models have a second time, in a form that transformers does not read.
SECOND_COPIES = ["consolidated*", "*/*.safetensors"]


class HubError(UserError):
    """The hub refuses a repository, or neither the hub nor the local cache has it."""


class HubRepository:
    """A model or data set of the hub, at the commit its revision stands for now; its cached copy if the hub is silent.

    Once the hub has not answered, this process does not ask it again.

    Attributes:
        commit: what the revision resolved to; None where the hub did not answer.

    Args:
        kind: "model" or "dataset".
        identifier: org/name.
        revision: branch, tag or commit.
        purpose: what it is for, as lines on a second attempt say.
        optional: whether a run goes on without it, for which a silent hub is asked once more and not four times.

    Raises:
        HubError: the hub has no such repository or revision, or it is gated.
    """

    def __init__(self, kind: str, identifier: str, revision: str, purpose: str = "", optional: bool = False) -> None:
        self.kind, self.identifier, self.revision = kind, identifier, revision
        self._patiently = partial(
            patiently, what=identifier + (f" ({purpose})" if purpose else ""), waits=WAITS[:1] if optional else WAITS
        )
        self.commit: str | None = None
        self._silence: Exception | None = None
        try:
            self.commit = self._patiently(lambda: ask(kind, identifier, revision, HUB_SECONDS))
        except Exception as error:  # a network fails in many ways; a cached copy is as good
            if _is_refusal(error):
                raise self._error(error) from None
            self._silence = error
            _go_offline()

    def load(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """`function(identifier, *arguments, revision=commit, **options)`, one of the hub's own loading functions.

        Raises:
            HubError: it fails.
        """

        attempt = partial(function, self.identifier, *arguments, revision=self.commit or self.revision, **options)
        try:
            return self._patiently(attempt) if self.commit else attempt()
        except Exception as error:  # gates, typing errors and networks all surface here
            raise self._error(self._silence or error) from None

    def download(self, patterns: list[str]) -> Path:
        """The files of a repository that match, but no second copies, in the hub cache, each with the hub's checksum.

        Returns:
            Their folder, which is called after the commit.

        Raises:
            HubError: they cannot be fetched, or one is wrong after its second download too.
        """
        from huggingface_hub import snapshot_download

        filters = {"allow_patterns": patterns, "ignore_patterns": SECOND_COPIES if self.kind == "model" else None}
        folder = self.load(snapshot_download, repo_type=self.kind, **filters)
        self.mend()
        return Path(folder)

    def tables(self, *arguments: dict[str, Any]) -> list[Any]:
        """What `datasets.load_dataset` makes of a data set, once for each of `arguments`, beside its id and revision.

        Raises:
            HubError: as `download`.
        """
        import datasets

        def read(**again: str) -> list[Any]:
            return [self.load(datasets.load_dataset, **options, **again) for options in arguments]

        try:
            tables = read()
        except HubError:  # a damaged file may not even be read
            if not self.mend():
                raise
        else:
            if not self.mend():
                return tables
        return read(download_mode="reuse_cache_if_exists")  # what was read of damaged files is made anew

    def mend(self) -> list[str]:
        """Hold the cached files to the hub's checksums, and fetch those again that differ.

        Without an answer of the hub there is nothing to hold them to.

        Returns:
            The files that were fetched again.

        Raises:
            HubError: a file is wrong after its second download too, or it cannot be fetched.
        """
        from huggingface_hub import hf_hub_download

        wrong = self._wrong()
        for name in wrong:
            print(f"{name} of {self.identifier} is not what the hub has; fetching it again", flush=True)
            self.load(hf_hub_download, name, repo_type=self.kind, force_download=True)
        if wrong and (damaged := self._wrong()):
            raise HubError(
                f"{self.kind} {self.identifier!r}: {damaged[0]} has the wrong checksum, also after a second download; look at "
                "the disk of the hub cache and at what lies between this machine and the hub, then run again"
            )
        return wrong

    @property
    def identity(self) -> dict[str, Any]:
        """kind, id, revision and what it resolved to, for records."""
        resolved = self.commit or LOCAL_CACHE
        return {"kind": "hub", "id": self.identifier, "revision": self.revision, "resolved": resolved}

    def _wrong(self) -> list[str]:
        """The cached files of this commit that differ from the hub's."""
        from huggingface_hub import HfApi

        if self.commit is None:
            return []

        def verified(identifier: str, revision: str) -> list[str]:
            try:
                checked = HfApi().verify_repo_checksums(identifier, repo_type=self.kind, revision=revision)
            except ValueError:  # nothing of it is in the cache
                return []
            return [mismatch["path"] for mismatch in checked.mismatches]

        return self.load(verified)

    def _error(self, error: Exception) -> HubError:
        """What the hub or the network said, in one sentence: which source, why, and what to do."""
        from huggingface_hub import errors

        where = f"{self.kind} {self.identifier!r} (revision {self.revision!r})"
        if isinstance(error, errors.GatedRepoError):
            return HubError(
                f"{where} is gated: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return HubError(
                f"{where} does not exist on the hub or is private: check the id in the config, or log in with "
                "`hf auth login`"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return HubError(f"{where}: the hub has no such revision; check `revision` in the config")
        if self._silence is not None:
            return HubError(
                f"{where} cannot be reached and is not in the local hub cache ({type(error).__name__}): "
                "connect to the hub, or download it elsewhere and name it as a `local` source"
            )
        return HubError(f"{where} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


def ask(kind: str, identifier: str, revision: str, seconds: float) -> str:
    """The commit that a revision stands for now, asked once.

    Args:
        kind: "model" or "dataset".
        identifier: org/name.
        revision: branch, tag or commit.
        seconds: after which the hub counts as silent.

    Raises:
        Exception: what the hub or the network answered in its place.
    """
    from huggingface_hub import HfApi

    settings = {"repo_type": kind, "revision": revision, "timeout": seconds}
    return answer(lambda: HfApi().repo_info(identifier, **settings).sha, seconds)


def answer(question: Callable[[], Any], seconds: float) -> Any:
    """What `question` returns; asked in a thread, as a resolver or a proxy may keep to no time limit of its own.

    Raises:
        TimeoutError: it has not returned after so many seconds, and is left to itself.
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
    """Whether it is the hub's answer, which waiting does not change."""
    from huggingface_hub import errors

    return isinstance(error, (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError))


def patiently(attempt: Callable[[], Any], what: str, waits: Sequence[int] | None = None) -> Any:
    """What `attempt` returns; a network or a disk that fails is given time and asked again.

    Args:
        what: is fetched, as lines on a second attempt say.
        waits: seconds before each further attempt; `WAITS` without them.
    """
    waits = WAITS if waits is None else waits

    def say(state: tenacity.RetryCallState) -> None:
        name, seconds = type(state.outcome.exception()).__name__, state.next_action.sleep
        print(f"{what}: {name}; trying again in {seconds:g} s", flush=True)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=lambda state: (*waits, 0)[state.attempt_number - 1],  # also asked for after the last
        stop=tenacity.stop_after_attempt(len(waits) + 1),
        before_sleep=say,
        reraise=True,
    )(attempt)


def _may_pass(error: BaseException) -> bool:
    from huggingface_hub import errors

    network = isinstance(error, OSError) or type(error).__module__.startswith("httpx")
    return network and not _is_refusal(error) and not isinstance(error, errors.OfflineModeIsEnabled)


def _go_offline() -> None:
    """Keep the libraries from asking the hub again; they read the environment only when they are imported."""
    import huggingface_hub.constants

    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True
