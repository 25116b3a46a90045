"""The Hugging Face hub: what a revision is now, downloads with patience, and files held to the hub's checksums.

Only jobs without GPUs come here (docs/cluster.md). What libraries do themselves is left to them: `huggingface_hub` goes on
with a download that broke off and refuses a file of the wrong size. Added is patience with a hub that does not answer
for a minute, and a second download of files whose checksum is not the hub's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError

HUB_SECONDS = 15  # an unreachable hub is known by then, whatever the resolver or a proxy does
WAITS = (2, 10, 30)  # seconds before each further attempt
LOCAL_CACHE = "local cache"
# Weights that some models have a second time, in a form that transformers does not read.
SECOND_COPIES = ["consolidated*", "*/*.safetensors"]
KINDS = {"model": "model", "data set": "dataset"}


class HubError(UserError):
    """The hub refuses a repository, or neither the hub nor the local cache has it."""


class HubRepository:
    """A model or data set of the hub, at the commit its revision stands for now; its cached copy if the hub is silent.

    Once the hub has not answered, this process does not ask it again.

    Attributes:
        commit: what the revision resolved to; None where the hub did not answer.

    Args:
        kind: "model" or "data set".
        identifier: org/name.
        revision: branch, tag or commit.

    Raises:
        HubError: the hub has no such repository or revision, or it is gated.
    """

    def __init__(self, kind: str, identifier: str, revision: str) -> None:
        self.kind, self.identifier, self.revision = kind, identifier, revision
        self.commit: str | None = None
        self._silence: Exception | None = None
        try:
            self.commit = patiently(lambda: ask(kind, identifier, revision, HUB_SECONDS))
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

        def attempt() -> Any:
            return function(self.identifier, *arguments, revision=self.commit or self.revision, **options)

        try:
            return patiently(attempt) if self.commit else attempt()
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

        wanted = {"allow_patterns": patterns, "ignore_patterns": SECOND_COPIES if self.kind == "model" else None}
        folder = self.load(snapshot_download, repo_type=KINDS[self.kind], **wanted)
        self.mend()
        return Path(folder)

    def tables(self, *wanted: dict[str, Any]) -> list[Any]:
        """What `datasets.load_dataset` makes of a data set, once for each of `wanted`, its further arguments.

        Raises:
            HubError: as `download`.
        """
        import datasets

        again: dict[str, str] = {}
        while True:
            failure = None
            try:
                found = [self.load(datasets.load_dataset, **options, **again) for options in wanted]
            except HubError as error:  # a damaged file may not even be read
                failure = error
            if again or not self.mend():
                break
            again = {"download_mode": "reuse_cache_if_exists"}  # what was read of damaged files is made anew
        if failure:
            raise failure
        return found

    def mend(self) -> list[str]:
        """Hold the cached files to the hub's checksums, and fetch those again that differ.

        Without an answer of the hub there is nothing to hold them to.

        Returns:
            The files that were fetched again.

        Raises:
            HubError: a file is wrong after its second download too, or it cannot be fetched.
        """
        wrong = self._wrong()
        for name in wrong:
            print(f"{name} of {self.identifier} is not what the hub has; fetching it again", flush=True)
            self.load(_fetch_again, name, repo_type=KINDS[self.kind])
        if wrong and (still := self._wrong()):
            raise HubError(
                f"{self.kind} {self.identifier!r}: {still[0]} has the wrong checksum, also after a second download; look at "
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
                found = HfApi().verify_repo_checksums(identifier, repo_type=KINDS[self.kind], revision=revision)
            except ValueError:  # nothing of it is in the cache
                return []
            return [mismatch["path"] for mismatch in found.mismatches]

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
        kind: "model" or "data set".
        identifier: org/name.
        revision: branch, tag or commit.
        seconds: after which the hub counts as silent.

    Raises:
        Exception: what the hub or the network answered in its place.
    """
    from huggingface_hub import HfApi

    about = HfApi().model_info if kind == "model" else HfApi().dataset_info
    return answer(lambda: about(identifier, revision=revision, timeout=seconds).sha, seconds)


def answer(question: Callable[[], Any], seconds: float) -> Any:
    """What a question to the hub returns; asked in a thread, because a resolver or proxy may keep to no time limit.

    Args:
        question: asked once.
        seconds: after which the hub counts as silent.

    Raises:
        Exception: what the hub or the network answered in its place.
    """
    answers: list[Any] = []
    errors: list[Exception] = []

    def ask_it() -> None:
        try:
            answers.append(question())
        except Exception as error:  # a network fails in many ways
            errors.append(error)

    thread = threading.Thread(target=ask_it, daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    raise errors[0] if errors else TimeoutError(f"no answer in {seconds} s")


def _fetch_again(identifier: str, name: str, *, revision: str, repo_type: str) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(identifier, name, repo_type=repo_type, revision=revision, force_download=True)


def _is_refusal(error: Exception) -> bool:
    """Whether it is the hub's answer, which waiting does not change."""
    from huggingface_hub import errors

    return isinstance(error, (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError))


def patiently(attempt: Callable[[], Any]) -> Any:
    """What `attempt` returns; a network or a disk that fails is given time and asked again."""
    for seconds in WAITS:
        try:
            return attempt()
        except Exception as error:
            if not _may_pass(error):
                raise
            print(f"{type(error).__name__} while downloading; trying again in {seconds} s", flush=True)
            time.sleep(seconds)
    return attempt()


def _may_pass(error: Exception) -> bool:
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
