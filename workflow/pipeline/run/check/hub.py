"""Access to every hub repository that the planned jobs will load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.run.sizes import Download
from pipeline.sources import MODEL_FILES, check_checkpoint, check_description
from pipeline.sources.hub import SECOND_COPIES, answer
from swiftkv.errors import UserError

HUB_SECONDS = 10
DESCRIPTION = ["config.json", "tokenizer_config.json", "chat_template.jinja"]  # of a model, a few KB


class Silent(UserError):
    """The hub does not answer, and the local cache has not what is asked for."""


class Hub:
    """Asks the hub for one repository after the other; once it is silent, only the local cache counts.

    Attributes:
        missing: bytes that will be downloaded of what has been looked at, as the hub states them.
        silence: why the hub is not asked; empty as long as it is.

    Args:
        api: huggingface_hub's API; its `repo_info` and `auth_check` are called.
        cached: whether a repository is in the local cache.
        token: whether there is a token here.
        offline: do not ask the hub.
        seconds: how long an answer may take.
        fetch: downloads the `DESCRIPTION` of a model to a folder.
    """

    def __init__(
        self,
        api: Any,
        cached: Callable[[Download], bool],
        *,
        fetch: Callable[[Download, Path], Any] | None = None,
        token: bool,
        offline: bool = False,
        seconds: float = HUB_SECONDS,
    ) -> None:
        self.api, self.cached, self.token, self.seconds = api, cached, token, seconds
        self.fetch = fetch or partial(fetch_description, api)
        self.silence = "HF_HUB_OFFLINE is set" if offline else ""
        self.missing = 0

    @classmethod
    def here(cls) -> Hub:
        """Return the hub as this machine reaches it."""
        from huggingface_hub import HfApi, constants, get_token

        return cls(HfApi(), in_cache, token=get_token() is not None, offline=constants.HF_HUB_OFFLINE)

    def look(self, item: Download) -> str:
        """Whether jobs will be able to load a repository.

        Raises:
            Silent: nobody can say, and it is not in the local cache.
            UserError: they will not; the message says why and what to do.
        """
        try:
            info = None if self.silence else self._ask(item)
            cached = self.cached(item)
            if info is None and not cached:
                raise Silent(f"{self.silence}, and {item.hub} is not in the local cache")
        except UserError as error:
            if item.optional:
                return f"optional; its results will say that it is unavailable ({str(error).partition(':')[0]})"
            raise
        if info is None:
            return f"in the local cache ({self.silence})"
        if item.layers is not None or item.template:
            self._describe(item)
        if cached:
            return "accessible, and in the local cache"
        size = self._size(item, info)
        self.missing += size
        return f"accessible, {size / 10**9:.1f} GB to be downloaded"

    def _ask(self, item: Download) -> Any:
        """The hub's description of a repository that may be loaded; None if it does not answer."""
        where: dict[str, Any] = {"repo_type": item.origin}

        def describe() -> Any:
            settings = {"revision": item.revision, "timeout": self.seconds, "files_metadata": True}
            info = self.api.repo_info(item.hub, **settings, **where)
            if getattr(info, "gated", None):  # everybody may read the description of a gated one
                self.api.auth_check(item.hub, **where)
            return info

        try:
            return answer(describe, 2 * self.seconds)
        except Exception as error:  # a network fails in many ways
            if sentence := self._refusal(item, error):
                raise UserError(sentence) from None
            self.silence = f"the hub cannot be reached ({type(error).__name__})"
            return None

    def _describe(self, item: Download) -> None:
        """Refuse a model by its description, before its weights are downloaded."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                answer(lambda: self.fetch(item, Path(folder)), 2 * self.seconds)
            except Exception as error:  # a network fails in many ways
                self.silence = f"the hub cannot be reached ({type(error).__name__})"
                raise Silent(f"{self.silence}, and the description of {item.hub} is not here") from None
            check_description(Path(folder), item.hub, item.layers, template=item.template)

    def _refusal(self, item: Download, error: Exception) -> str | None:
        """What the hub refuses; None where it is the network that fails."""
        from huggingface_hub import errors

        name = item.hub
        login = "the token here has no access to it" if self.token else "there is no token here"
        if isinstance(error, errors.GatedRepoError):
            return f"{name} is gated and {login}: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"the hub has no {item.origin} {name} that you may see, and {login}: check the id in the configuration, or log "
                "in with `hf auth login`"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"{name} has no revision {item.revision!r}: check `revision` in the configuration"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return f"the hub refuses {name} ({status}): the token here may have expired; log in with `hf auth login`"
        return None

    def _size(self, item: Download, info: Any) -> int:
        from huggingface_hub.utils import filter_repo_objects

        files = filter_repo_objects(
            getattr(info, "siblings", None) or [],
            allow_patterns=item.files,
            ignore_patterns=SECOND_COPIES if item.origin == "model" else None,
            key=lambda file: file.rfilename,
        )
        return sum(file.size or 0 for file in files)


def fetch_description(api: Any, item: Download, folder: Path) -> None:
    """Download the `DESCRIPTION` of a model, beside the hub cache, to which a part of a model would look like all of it."""
    api.snapshot_download(item.hub, revision=item.revision, allow_patterns=DESCRIPTION, local_dir=folder)


def in_cache(item: Download) -> bool:
    """Whether a repository lies complete in the local hub cache; of a data set, also where `datasets` prepared it."""
    from huggingface_hub import constants, snapshot_download

    if item.origin == "dataset":
        from datasets.naming import camelcase_to_snakecase

        owner, _, name = item.hub.rpartition("/")
        prepared = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
        if (prepared / f"{owner}___{camelcase_to_snakecase(name)}").is_dir():
            return True
    try:
        folder = snapshot_download(
            item.hub,
            repo_type=item.origin,
            revision=item.revision,
            allow_patterns=item.files,
            local_files_only=True,
        )
        if item.origin == "model" and item.files == tuple(MODEL_FILES):
            check_checkpoint(Path(folder))
    except (OSError, ValueError, UserError):  # not there, only in part, or damaged
        return False
    return True
