"""The configuration of a scale: every key of config.yaml, artifacts.yaml and the overrides of the profiles, and what follows."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator

from pipeline import PROJECT
from pipeline.config.planning import Planning
from pipeline.config.points import AnswerSettings, LatencySettings, Requests, Serving
from pipeline.config.recipes import with_inherited_keys
from pipeline.config.settings import (
    Artifact,
    DataMix,
    EarlyExit,
    Fidelity,
    GpuJobs,
    Heldout,
    Model,
    Pathvars,
    Reading,
    Scoring,
    Sets,
    Similarity,
    Task,
    Variant,
)
from swiftkv.architectures import architecture, check_fit, check_latent_heads, key_value_heads
from swiftkv.distill.recipe import FitSettings, ForwardSettings, PackingSettings, Recipe
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.section import Name, Section, Text, key, read
from swiftkv.spec import SwiftKVSpec

# Of every scale, each laid over those before it; then come a profile's.
FILES = [PROJECT / name for name in ("config.yaml", "config/beyond.yaml", "config/planning.yaml", "artifacts.yaml")]


class _Loader(yaml.CSafeLoader):  # the fast one: every job of a cluster reads the configuration twice
    """Refuse keys that YAML drops or changes: all but the last of equal ones, and words such as `no`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, mark = self.construct_object(key_node, deep=True), key_node.start_mark
            place = f"{mark.name}, line {mark.line + 1}: key"
            if key is None or isinstance(key, bool):
                raise UserError(f"{place} {key_node.value} means {key} in YAML; write it in quotes")
            if key in seen:
                raise UserError(f"{place} {key!r} stands twice in the same block")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(file: str | Path) -> dict[str, Any]:
    """Read a YAML file of keys and values; raise a `UserError` if it is missing or invalid, or YAML does not keep a key."""
    try:
        with open(file, encoding="utf-8") as stream:
            content = yaml.load(stream, Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} has no keys at its top level, such as `models:`")
    return content


def load(*files: str | Path) -> dict[str, Any]:
    """Read the files of every scale and further ones, each laid over those before it, as Snakemake does.

    Raises:
        UserError: as `load_yaml`.
    """
    from snakemake.utils import update_config

    config: dict[str, Any] = {}
    for file in (*FILES, *files):
        update_config(config, load_yaml(file))
    return config


class Config(Section):
    """SwiftKV reproduction pipeline: every key of config.yaml, artifacts.yaml and the overrides of the profiles."""

    pathvars: Pathvars
    gpu_jobs: GpuJobs
    models: dict[Name, Model] = key("The models, by name.")
    variants: dict[Name, Variant] = key("What is done to a model, by name.")
    recipes: Annotated[dict[Name, Recipe], BeforeValidator(with_inherited_keys)] = key(
        "How a variant is trained, by name; `like: other` takes another recipe's keys where it has none of its own."
    )
    data: dict[Name, DataMix] = key("Mixes of chats, by name.")
    heldout: Heldout
    similarity: Similarity
    fidelity: Fidelity
    early_exit: EarlyExit
    reading: Reading
    scoring: Scoring
    tasks: dict[Name, Task] = key("Benchmarks scored with lm-eval, by name.")
    planning: Planning
    roles: dict[Name, Text | None] = key("Which model plays a role of artifacts.yaml; null: none does.")
    stand_ins: dict[Text, Text] = key("At smaller scales, the variant that stands for one the model cannot have.")
    sets: Sets
    artifacts: dict[Name, Artifact] = key("Tables and figures, by name.")
    serving: Serving

    @cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The entries of artifacts.yaml as they are written; their kinds check them."""
        written = {"exclude_unset": True, "exclude_none": True}
        return {name: artifact.model_dump(**written) for name, artifact in self.artifacts.items()}

    @cached_property
    def in_use(self) -> list[str]:
        """The models that play a role at this scale, or that an artifact names itself."""
        scopes = [scope for entry in self.artifacts.values() for scope in (entry, *(entry.parts or []))]
        named = {*self.roles.values(), *(name for scope in scopes for name in scope.models or [])}
        return [name for name in self.models if name in named]

    def spec(self, model: str, variant: str) -> SwiftKVSpec | None:
        """The rewiring of one variant on one model; None for the unchanged model.

        Raises:
            UserError: the model has no such prefill reduction, or l, group size, KV heads or the start cannot be.
        """
        settings, rewiring = self.models[model], self.variants[variant]
        reduction = rewiring.prefill_reduction
        if reduction is None:
            return None
        if reduction not in settings.num_key_value_layers:
            raise UserError(
                f"variant {variant!r} asks for {reduction} % prefill reduction, but models.{model}.num_key_value_layers "
                f"only has {', '.join(settings.num_key_value_layers)}; add its l, or let another variant stand in (stand_ins)"
            )
        if rewiring.recipe is None and variant not in settings.checkpoints:
            raise UserError(
                f"variant {variant!r} is not trained here, and models.{model}.checkpoints names none for it"
            )
        try:
            spec = SwiftKVSpec(
                settings.num_hidden_layers,
                settings.num_key_value_layers[reduction],
                rewiring.acrosskv,
                rewiring.kv_heads,
                rewiring.early_exit,
                rewiring.own_key_values,
            )
            family = settings.family
            check_latent_heads(family is not None and architecture(family).latent, rewiring.kv_heads)
            if family and rewiring.recipe and self.recipe(model, rewiring.recipe).start == "fitted":
                check_fit(family, rewiring.acrosskv)
        except (ValueError, UserError) as error:
            raise UserError(
                f"variant {variant!r} cannot be made of model {model!r}: {error}; another may stand in (stand_ins)"
            ) from None
        return spec

    def check_early_exit(self, variant: str) -> None:
        """Raise a `UserError` where a variant has no head for early exit."""
        having = [name for name, entry in self.variants.items() if entry.early_exit]
        if variant not in having:
            known = ", ".join(having) or "none"
            raise UserError(f"variant {variant!r} has no early exit head; variants with early_exit: true are: {known}")

    @cached_property
    def _recipes_of_models(self) -> dict[str, dict[str, Recipe | UserError]]:
        return {model: {name: self._recipe(model, name) for name in self.recipes} for model in self.models}

    def _recipe(self, model: str, name: str) -> Recipe | UserError:
        settings = self.models[model]
        keys = self.recipes[name].model_dump() | settings.recipe | {"zero_stage": settings.zero_stage}
        try:
            recipe = read(Recipe, keys, f"config, at models.{model}.recipe: on top of recipe {name!r}")
        except UserError as error:
            return error
        rows = recipe.batch_size or recipe.micro_batch_size * max(1, settings.gpus.distill)
        return recipe.model_copy(update={"batch_size": rows})

    def recipe(self, model: str, name: str) -> Recipe:
        """Return a training recipe for one model: with the model's own keys, ZeRO stage and rows per step.

        Raises:
            UserError: the model's own keys do not fit this recipe.
        """
        if isinstance(recipe := self._recipes_of_models[model][name], UserError):
            raise recipe
        return recipe

    def possible_recipes(self, model: str) -> list[str]:
        """Return the recipes that a model's own keys fit; raise a `UserError` if they fit none."""
        recipes = self._recipes_of_models[model]
        fitting = [name for name, recipe in recipes.items() if isinstance(recipe, Recipe)]
        if not fitting:
            self.recipe(model, next(iter(recipes)))
        return fitting

    def recipes_sharing(self, model: str, recipe: str, settings: type[PackingSettings]) -> list[str]:
        """Return the recipes that agree for a model in the keys of `settings`; they share a file named after the first."""

        def values(name: str) -> list[Any]:
            return [getattr(self.recipe(model, name), key) for key in settings.model_fields]

        return [name for name in self.possible_recipes(model) if values(name) == values(recipe)]

    def stored_layers(self, model: str, recipe: str) -> list[int]:
        """Return the layers with stored states for a recipe and those sharing them: every l, and the layer that one compares."""
        total, layers = self.models[model].num_hidden_layers, set(self.models[model].layers_below)
        for name in self.recipes_sharing(model, recipe, ForwardSettings):
            reader = self.recipe(model, name)
            layer = reader.hidden_state_layer
            if reader.hidden_state_weight and reader.teacher_states == "stored":
                layers.add(layer + (total + 1 if layer < 0 else 0))
        return sorted((layer for layer in layers if 0 < layer < total), reverse=True)

    def fitted_layers(self, model: str, recipe: str) -> list[int]:
        """Return every l of the variants that a recipe and those sharing its fit train from a fitted start, largest first."""
        layers = self.models[model].num_key_value_layers
        sharing = self.recipes_sharing(model, recipe, FitSettings)
        fitted = {name for name in sharing if self.recipe(model, name).start == "fitted"}
        reductions = {variant.prefill_reduction for variant in self.variants.values() if variant.recipe in fitted}
        return sorted({layers[reduction] for reduction in reductions & layers.keys()}, reverse=True)

    def reading_layers(self, model: str) -> list[int]:
        """Return every l at which `reading` measures a family."""
        settings = self.models[model]
        layers = settings.num_hidden_layers
        return sorted({*range(layers // 3, layers - 1, self.reading.every), *settings.layers_below})

    def backend(self, model: str, task: str) -> Literal["transformers", "vllm"]:
        """Return the backend that computes a model's score of a task unless it cannot."""
        stated = self.tasks[task].backend or self.scoring.backend
        return stated if stated != "auto" else "vllm" if self.models[model].gpus.score > 1 else "transformers"

    def scoring_engine(self, model: str, variant: str, kv_cache: str, task: str) -> dict[str, Any] | None:
        """The vLLM engine that generates the answers of a task; None where transformers computes the score.

        That it does for every task scored by log-likelihoods, as fast prefill has none of prompts; for an FP8 cache, as
        vLLM's has one scale a tensor and not one a token (Section 5.3); and for variants that vLLM cannot serve.

        Returns:
            gpus, the tensor parallel size (0 is the processor), and what `serving.engine` says of a run.
        """
        if self.backend(model, task) == "transformers" or kv_cache != "auto":
            return None
        if self.unmeasured(model, variant, served=True) or not self.tasks[task].generated:
            return None
        return {"gpus": self.models[model].gpus.score, **self.serving.engine.of_a_run}

    def check_served(self, model: str, place: str) -> None:
        """Refuse to serve a model whose GPUs, or whose memory on a processor, are not stated.

        Raises:
            UserError: naming the key, and the `place` that asks for it.
        """
        gpus = self.models[model].gpus.serve
        if gpus is None:
            raise UserError(f"config, at {place}: models.{model}.gpus has no serve, the GPUs it is served on")
        if gpus == 0 and self.serving.engine.cpu_kv_cache_gib is None:
            raise UserError(
                f"config, at {place}: model {model!r} is served on the processor, which needs "
                "serving.engine.cpu_kv_cache_gib"
            )

    def unmeasured(self, model: str, variant: str, *, served: bool) -> str | None:
        """Return why a variant of a model cannot be measured, which artifacts show in its place; None if it can.

        Args:
            served: whether it would be served, rather than scored.
        """
        settings, rewiring = self.models[model], self.variants[variant]
        if not served:
            return settings.unmeasured("quality")
        if reason := settings.unmeasured("serving"):
            return reason
        if (heads := rewiring.kv_heads or 1) > 1:
            sentence = "of key/value heads that differ between layers, vLLM serves a number that divides the other"
            if (ordinary := _key_value_heads(settings.architecture)) is None:
                return f"{sentence}; without models.{model}.architecture only 1 is known to"
            if ordinary % heads:
                return f"{sentence}, and {heads} does not divide {ordinary}"
        return architecture(settings.family).not_served or None if rewiring.rewired and settings.family else None

    def in_turns(self, point: str) -> bool:
        """Return True if variants are measured in turns with the baseline at a point; servers are not."""
        settings = self.serving.points[point]
        return (
            self.serving.in_turns and not isinstance(settings, LatencySettings) and getattr(settings, "repeats", 1) > 1
        )

    def point(self, name: str) -> dict[str, Any]:
        """A serving point with what all points share, as measurements take it."""
        point = self.serving.points[name]
        asked = {"seed": self.serving.seed, "engine": self.serving.engine.of_a_run}
        if isinstance(point, Requests):
            asked["output_tokens"] = self.serving.output_tokens
        if isinstance(point, AnswerSettings):
            asked["draw"] = self.reading.model_dump(include={"items", "seed"})
        asked |= point.model_dump(exclude_unset=True, exclude_none=True)
        if self.in_turns(name):
            asked["in_turns"] = True
        return asked


def _key_value_heads(architecture: str | None) -> int | None:
    """Return the KV heads of a layer by a file of a model's dimensions, one of the run or of the project; None without."""
    files = [folder / architecture for folder in (Path(), PROJECT)] if architecture else []
    file = next(filter(Path.is_file, files), None)
    return file and key_value_heads(model_config(file))


def model_config(file: str | Path) -> dict[str, Any]:
    """Read a model's config.json, or a file that has it under `config`, as those of `resources/architectures` do.

    Raises:
        UserError: the file is missing, damaged, or no mapping.
    """
    if not isinstance(content := read_json(file), dict):
        raise UserError(f"{file} is no config.json of a model")
    return content.get("config", content)
