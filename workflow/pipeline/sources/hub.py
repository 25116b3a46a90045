"""The Hugging Face hub: the commit of a revision, and downloads with retries.

Only jobs without GPUs come here (docs/cluster.md). `huggingface_hub` itself resumes a download and refuses a file of the
wrong size. Added are retries of a hub that does not answer, and the cached copy where it stays silent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenacity
from huggingface_hub import constants, errors, get_token

from swiftkv.errors import UserError

HUB_SECONDS = 15  # after which the hub counts as silent
# Weights that some models have a second time, in a form that transformers does not read.
SECOND_COPIES = ["consolidated*", "*/*.safetensors"]
REFUSALS = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)  # the former also of a gated one


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
        from huggingface_hub import HfApi

        self.kind, self.identifier, self.revision = kind, source["hub"], source.get("revision", "main")
        self.commit = None
        asked = {"repo_type": kind, "revision": self.revision, "timeout": HUB_SECONDS}
        try:
            self.commit = _patiently(HfApi().repo_info, self.identifier, **asked).sha
        except REFUSALS as error:
            raise self._error(error) from None
        except Exception:  # a network fails in many ways; a cached copy is as good
            import datasets

            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        resolved = self.commit or "local cache"
        self.identity = {"kind": "hub", "id": self.identifier, "revision": self.revision, "resolved": resolved}

    def load(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function(identifier, revision=commit, **options)`, for loading functions of the hub.

        Raises:
            HubError: it fails.
        """
        try:
            return _patiently(function, self.identifier, revision=self.commit or self.revision, **options)
        except Exception as error:  # gates, typing errors and networks all surface here
            raise self._error(error) from None

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
        if said := refusal(self.identifier, self.revision, error):
            return HubError(said)
        said = f"cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        if self.commit is None:
            said = (
                "cannot be reached and is not in the local hub cache: connect to the hub, or download it elsewhere and name "
                "it as a `local` source"
            )
        return HubError(f"{self.kind} {self.identifier!r} (revision {self.revision!r}) {said}")


def refusal(name: str, revision: str, error: Exception) -> str:
    """Return one sentence on the hub's refusal of a repository; empty if the network failed."""
    login = "the token here has no access to it" if get_token() else "there is no token here"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated and {login}: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no {name}, or it is private and {login}: check its id, or log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision!r}: check `revision` in the configuration"
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return f"the hub refuses {name}: the token here may have expired; log in with `hf auth login`"
    return ""


def _may_pass(error: BaseException) -> bool:
    network = isinstance(error, OSError) or type(error).__module__.startswith("httpx")
    return network and not isinstance(error, REFUSALS) and not constants.HF_HUB_OFFLINE


def _say(state: tenacity.RetryCallState) -> None:
    print(f"hub: {type(state.outcome.exception()).__name__}; trying again in {state.upcoming_sleep:g} s", flush=True)


@tenacity.retry(
    retry=tenacity.retry_if_exception(_may_pass),
    wait=tenacity.wait_exponential(2, exp_base=5),
    stop=tenacity.stop_after_attempt(3),
    before_sleep=_say,
    reraise=True,
)
def _patiently(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function, and again after 2 and 10 seconds if it fails for what may pass."""
    return function(*arguments, **options)
