"""How big a model is, and what a job downloads, before anything is downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config import PROJECT, Config, model_config
from pipeline.config.catalogue import KNOWN_TASKS
from pipeline.config.sources import LocalModel, PackagedModel
from pipeline.run.jobs import PlannedJob
from pipeline.sources import MODEL_FILES, TOKENIZER_FILES, package_file
from pipeline.sources.hub import refusal
from swiftkv.architectures import architecture, check_loaded
from swiftkv.cost import Dimensions, added_weights, parameter_count, passed_parameters
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.section import Section
from swiftkv.spec import SwiftKVSpec

DOWNLOADED = ("model", "checkpoint", "tokenizer", "data set", "questions")  # in the order in which plans list them
TOKENIZER_BYTES = 10**7
# What config.json calls a GGUF file's fields, with their ending there.
GGUF = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}


class Unreachable(UserError):
    """The hub does not answer, and what it was asked for is not in the local cache."""


class Size:
    """The size of a model, most of it in parameters.

    Args:
        config: its config.json, as far as sizes go.
        fp8: whether its weights are stored in 8 bits, all but those of embedding and head.

    Attributes:
        layers: number of layers, L.
        width: of the residual stream.
        dimensions: those that cost depends on.
        parameters: all.
        head: those of the language-model head.
        vocabulary: those of embedding and head.
        body: those of the layers that one token passes; of experts, the active ones.
        passed: those that one token passes on its way to its logits.
        bytes: of its weights.
    """

    def __init__(self, config: Mapping[str, Any], fp8: bool = False) -> None:
        self.layers, self.width = config["num_hidden_layers"], config["hidden_size"]
        self.dimensions, self.parameters = Dimensions.from_config(config), parameter_count(config)
        self.head = config["vocab_size"] * self.width
        self.vocabulary = self.head * (1 if config.get("tie_word_embeddings") else 2)
        self.passed = passed_parameters(self.dimensions)
        self.body = self.passed - self.head
        self.bytes = 2 * self.vocabulary + (self.parameters - self.vocabulary) * (1 if fp8 else 2)

    @classmethod
    def of(cls, config: Config, model: str) -> Size:
        """Return the size of a model of the configuration, without downloading anything.

        Args:
            config: the configuration.
            model: its name there.

        Raises:
            UserError: its config.json cannot be read, its architecture is unknown, or its weights are quantized in a form
                that is not loaded.
        """
        entry = config.models[model]
        source, resolved = entry.source, Path(config.pathvars.results) / "models" / model / "source.json"
        if resolved.exists():
            found = model_config(resolved)
        elif entry.architecture:
            found = model_config(PROJECT / entry.architecture)
        elif isinstance(source, PackagedModel):
            found = _gguf(package_file(source.package, source.gguf))
            found = {**found, **(source.random.model_dump(exclude_unset=True) if source.random else {})}
        elif isinstance(source, LocalModel):
            found = model_config(Path(source.local).expanduser() / "config.json")
        else:
            found = hub_config(source.hub, source.revision)
        architecture(found.get("model_type"))
        check_loaded(found, "its config.json")
        return cls(found, fp8=bool(found.get("quantization_config")) or "fp8" in getattr(source, "hub", "").lower())

    def trained(self, spec: SwiftKVSpec | None, train: str, *, passed: bool = False) -> float:
        """Return the parameters that a recipe's `train` trains, or those of them that one token passes.

        `spec` None is the unchanged model.
        """
        if spec is None or train == "all":
            return self.passed if passed else self.parameters
        if train == "upper_layers":
            layers = self.body if passed else self.parameters - self.vocabulary
            return layers * (1 - spec.num_key_value_layers / self.layers)
        return added_weights(self.dimensions, spec) + (self.head if spec.early_exit else 0)

    def checkpoint_bytes(self, spec: SwiftKVSpec | None) -> float:
        """Return the bytes of a trained checkpoint, in which the teacher's projections stay beside the new ones."""
        return self.bytes + (2 * self.trained(spec, "qkv") if spec else 0)


def hub_config(name: str, revision: str = "main") -> dict[str, Any]:
    """Return the config.json of a model of the hub: the cached one, or a few kilobytes from there.

    Raises:
        Unreachable: the hub does not answer.
        UserError: it has no such file, or refuses it.
    """
    if isinstance(found := _hub_config(name, revision), UserError):
        raise found
    return found


@cache  # so that a silent hub is asked once
def _hub_config(name: str, revision: str) -> dict[str, Any] | UserError:
    """Return a config.json, or why there is none."""
    from huggingface_hub import HfApi, errors, hf_hub_download, try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json", revision=revision)
    try:
        if not isinstance(file, str):
            HfApi().repo_info(name, revision=revision, timeout=5)  # hf_hub_download asks a silent hub six times
            file = hf_hub_download(name, "config.json", revision=revision)
    except errors.RemoteEntryNotFoundError:
        return UserError(f"{name} has no config.json on the hub, so it is no model of transformers")
    except Exception as error:  # a network fails in many ways
        if sentence := refusal(name, revision, error):
            return UserError(sentence)
        return Unreachable(
            f"the hub cannot be reached ({type(error).__name__}) and the config.json of {name} is not in the local cache: "
            "connect to it, or download the model elsewhere and name its folder"
        )
    return read_json(file)


@cache  # reading one takes seconds
def _gguf(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    kind = fields["general.architecture"].contents()
    found = {name: fields[f"{kind}.{field}"].contents() for name, field in GGUF.items() if f"{kind}.{field}" in fields}
    # The head is the embedding where the file has none, which its tensors tell; packaged models so far tie them.
    return {"model_type": kind, "tie_word_embeddings": True, **found}


@dataclass(frozen=True)
class Download:
    """A repository or file that a job fetches.

    Attributes:
        what: one of `DOWNLOADED`.
        hub: org/name, or the address of a file elsewhere; of questions whose data set only lm-eval's files name, the name
            of lm-eval's task.
        revision: branch, tag or commit.
        files: patterns of the files that are loaded; None loads all.
        bytes: the size of its weights; None where it is not known here.
        gated: whether its license has to be accepted first.
        optional: whether a run goes on without it.
        layers: how many the model must have; None for all else.
        template: whether it must have a chat template.
    """

    what: str
    hub: str
    revision: str = "main"
    files: tuple[str, ...] | None = None
    bytes: int | None = None
    gated: bool = False
    optional: bool = False
    layers: int | None = None
    template: bool = False

    @property
    def origin(self) -> str:
        """The kind of repository, as the hub calls it: "model" or "dataset"."""
        return "dataset" if self.what in ("data set", "questions") else "model"


def downloads(job: PlannedJob, config: Config) -> list[Download]:
    """Return what a job fetches from the hub or another address.

    Args:
        job: one of those that are planned.
        config: the configuration.
    """
    rule, named = job.rule, job.wildcards
    if rule in ("corpus", "heldout"):
        mix = config.data[named.get("data", config.heldout.data)]
        return [item for source in mix.sources for item in _download("data set", source)]
    if rule == "fetch_questions":
        task = config.tasks[named["task"]]
        if task.metadata is not None:  # lm-eval makes them
            return []
        known = getattr(KNOWN_TASKS.get(task.task), "hub", None) or task.task
        return _download("questions", task.source) if task.source else [Download("questions", known)]
    if rule not in ("resolve_model", "fetch_checkpoint"):
        return []
    model, variant, size = config.models[named["model"]], named.get("variant"), None
    with contextlib.suppress(UserError):  # its size is not known yet
        spec = config.spec(named["model"], variant) if variant else None
        size = round(Size.of(config, named["model"]).checkpoint_bytes(spec))
    weights: dict[str, Any] = {"files": tuple(MODEL_FILES), "bytes": size, "layers": model.num_hidden_layers}
    if variant:
        return _download("checkpoint", model.checkpoints[variant], **weights)
    tokenizer = _download(
        "tokenizer", model.chat_template, files=tuple(TOKENIZER_FILES), bytes=TOKENIZER_BYTES, template=True
    )
    return _download("model", model.source, **weights, template=model.chat_template is None) + tokenizer


def _download(what: str, source: Section | None, **settings: Any) -> list[Download]:
    """Return what a source of the configuration fetches: nothing if it is local or packaged."""
    stated = {name: getattr(source, name) for name in ("revision", "gated", "optional") if hasattr(source, name)}
    return [Download(what, source.hub, **settings, **stated)] if hasattr(source, "hub") else []


def once(found: Iterable[Download]) -> list[Download]:
    """Return each revision of a repository once, as what most of it is loaded and checked for: models first, optional last."""

    def order(item: Download) -> tuple[Any, ...]:
        return item.optional, DOWNLOADED.index(item.what)

    kept: dict[tuple[str, str, str], Download] = {}
    for item in sorted(found, key=order):
        place = item.origin, item.hub, item.revision
        first = kept.get(place, item)
        marks = {"gated": first.gated or item.gated, "template": first.template or item.template}
        kept[place] = replace(first, layers=first.layers or item.layers, **marks)
    return list(kept.values())
