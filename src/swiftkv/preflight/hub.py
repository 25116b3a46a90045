"""Access to every hub repository that the planned jobs will load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from swiftkv.errors import UserError
from swiftkv.hub import SECOND_COPIES, answer
from swiftkv.planning.jobs import PlannedJob
from swiftkv.score.fetch import data_set
from swiftkv.sources import MODEL_FILES, TOKENIZER_FILES, check_checkpoint

HUB_SECONDS = 10


class Source(NamedTuple):
    """A repository of the hub.

    Attributes:
        kind: "model" or "dataset", as the hub calls it.
        identifier: org/name.
        revision: branch, tag or commit.
        files: patterns of the files that are loaded; None loads all.
        optional: whether a run goes on without it.
    """

    kind: str
    identifier: str
    revision: str
    files: tuple[str, ...] | None = None
    optional: bool = False


def sources_in_use(config: dict[str, Any], jobs: Iterable[PlannedJob]) -> list[Source]:
    """The hub repositories that planned jobs load: models, checkpoints, chats and questions.

    Args:
        config: the merged configuration.

    Raises:
        UserError: lm-eval does not know a task.
    """
    found: dict[tuple[str, str, str], Source] = {}

    def add(kind: str, entry: dict[str, Any] | None, files: Iterable[str] | None = None) -> None:
        if entry and "hub" in entry:
            wanted = None if files is None else tuple(files)
            new = Source(kind, entry["hub"], entry.get("revision", "main"), wanted, entry.get("optional", False))
            old = found.get(new[:3], new)
            most = max(old.files or (), new.files or (), key=len) or None
            found[new[:3]] = new._replace(files=most, optional=old.optional and new.optional)

    def add_mix(name: str) -> None:
        for entry in config["data"][name]["sources"]:
            add("dataset", entry)

    for job in jobs:
        wildcards = job.wildcards
        if job.rule == "resolve_model":
            model = config["models"][wildcards["model"]]
            add("model", model["source"], MODEL_FILES)
            add("model", model.get("chat_template"), TOKENIZER_FILES)
        elif job.rule == "fetch_checkpoint":
            add("model", config["models"][wildcards["model"]]["checkpoints"][wildcards["variant"]], MODEL_FILES)
        elif job.rule == "heldout":
            add_mix(config["heldout"]["data"])
        elif job.rule == "corpus":
            add_mix(wildcards["data"])
        elif job.rule == "workload":
            entry = config["workloads"][wildcards["workload"]]
            add("dataset", None if entry.get("stand_in") else entry["source"], [entry["source"].get("file")])
        elif job.rule == "fetch_questions":
            entry = config["tasks"][wildcards["task"]]
            add("dataset", entry.get("source") or {"hub": data_set(entry["task"])})
    return list(found.values())


class Hub:
    """Asks the hub for one repository after the other; once it is silent, only the local cache counts.

    Attributes:
        missing: bytes that will be downloaded of what has been looked at, as the hub states them.

    Args:
        api: of huggingface_hub; its `repo_info` and `auth_check` are called.
        cached: whether a repository is in the local cache.
        token: whether there is a token here.
        offline: do not ask the hub.
        seconds: for an answer.
    """

    def __init__(
        self,
        api: Any,
        cached: Callable[[Source], bool],
        *,
        token: bool,
        offline: bool = False,
        seconds: float = HUB_SECONDS,
    ) -> None:
        self.api, self.cached, self.token, self.seconds = api, cached, token, seconds
        self.silence = "HF_HUB_OFFLINE is set" if offline else ""
        self.missing = 0

    def look(self, source: Source) -> str:
        """Whether jobs will be able to load a repository.

        Raises:
            UserError: they will not; the message says why and what to do.
        """
        try:
            info = None if self.silence else self._ask(source)
            if info is None and not self.cached(source):
                raise UserError(
                    f"{self.silence}, and it is not in the local cache: connect to the hub, or download it elsewhere and name it "
                    "as a `local` source"
                )
        except UserError as error:
            if source.optional:
                return f"optional; its results will say that it is unavailable ({str(error).partition(':')[0]})"
            raise
        if info is None:
            return f"in the local cache ({self.silence})"
        if self.cached(source):
            return "accessible, and in the local cache"
        size = self._size(source, info)
        self.missing += size
        return f"accessible, {size / 10**9:.1f} GB to be downloaded"

    def _ask(self, source: Source) -> Any:
        """The hub's description of a repository that may be loaded; None if it does not answer."""

        def ask() -> Any:
            where = {"repo_type": source.kind}
            info = self.api.repo_info(
                source.identifier, revision=source.revision, timeout=self.seconds, files_metadata=True, **where
            )
            if getattr(info, "gated", None):  # everybody may read the description of a gated one
                self.api.auth_check(source.identifier, **where)
            return info

        try:
            return answer(ask, 2 * self.seconds)
        except Exception as error:  # a network fails in many ways
            if sentence := self._refusal(source, error):
                raise UserError(sentence) from None
            self.silence = f"the hub cannot be reached ({type(error).__name__})"
            return None

    def _refusal(self, source: Source, error: Exception) -> str | None:
        """What the hub refuses; None where it is the network that fails."""
        from huggingface_hub import errors

        name = source.identifier
        login = "the token here has no access to it" if self.token else "there is no token here"
        if isinstance(error, errors.GatedRepoError):
            return f"{name} is gated and {login}: accept its license on its hub page, then run `hf auth login` or set HF_TOKEN"
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"the hub has no {source.kind} {name} that you may see, and {login}: check the id in the configuration, or log "
                "in with `hf auth login`"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"{name} has no revision {source.revision!r}: check `revision` in the configuration"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return f"the hub refuses {name} ({status}): the token here may have expired; log in with `hf auth login`"
        return None

    def _size(self, source: Source, info: Any) -> int:
        from huggingface_hub.utils import filter_repo_objects

        files = filter_repo_objects(
            getattr(info, "siblings", None) or [],
            allow_patterns=source.files,
            ignore_patterns=SECOND_COPIES if source.kind == "model" else None,
            key=lambda file: file.rfilename,
        )
        return sum(file.size or 0 for file in files)


def in_cache(source: Source) -> bool:
    """Whether a repository lies complete in the local hub cache; of a data set, also where `datasets` prepared it."""
    from huggingface_hub import constants, snapshot_download

    if source.kind == "dataset":
        from datasets.naming import camelcase_to_snakecase

        owner, _, name = source.identifier.rpartition("/")
        prepared = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
        if (prepared / f"{owner}___{camelcase_to_snakecase(name)}").is_dir():
            return True
    try:
        folder = snapshot_download(
            source.identifier,
            repo_type=source.kind,
            revision=source.revision,
            allow_patterns=source.files,
            local_files_only=True,
        )
        if source.kind == "model" and source.files == tuple(MODEL_FILES):
            check_checkpoint(Path(folder))
    except (OSError, ValueError, UserError):  # not there, only in part, or damaged
        return False
    return True
