"""Checks the configuration before anything runs, and turns its names into the slices the rules pass on."""

import json
import sys
from pathlib import Path

from swiftkv import config as cfg
from swiftkv import points
from swiftkv.artifacts import contents
from swiftkv.config.local import check_local_sources
from swiftkv.errors import UserError, command_line
from swiftkv.measure.run import KINDS
from swiftkv.score import fetch
from swiftkv.score.shards import shards_of
from swiftkv.sources import with_state

PROJECT = workflow.basedir

try:
    cfg.refuse_duplicate_keys(
        [
            f"{PROJECT}/config.yaml",
            f"{PROJECT}/artifacts.yaml",
            *map(str, workflow.overwrite_configfiles),
        ]
    )
    config |= cfg.check(config)
    contents.check(config)
    check_local_sources(config)
except UserError as error:
    sys.exit(f"error: {error}")


def in_project(path):
    """A file that the project ships, also where the workflow runs in another directory."""
    return (
        f"{PROJECT}/{path}"
        if path.startswith("resources/") and not os.path.exists(path)
        else path
    )


def pattern(names):
    """A regular expression that matches exactly the given names."""
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    model=pattern(config["models"]),
    variant=pattern(config["variants"]),
    recipe=pattern(config["recipes"]),
    data=pattern(config["data"]),
    task=pattern(
        task for task in config["tasks"] if cfg.scored_together(config, task) == [task]
    ),
    kv_cache="auto|fp8",


@command_line
def spec_json(w):
    """The SwiftKVSpec of a variant on a model as JSON; `null` for the unchanged model."""
    return json.dumps(cfg.spec(config, w.model, w.variant))


@command_line
def with_file_state(source):
    """A source in its present state, so that what is made of a local one is made again when its files change."""
    return source and with_state(source)


def source_json(source):
    """A source as the programs take it: not whether it is gated, which changes nothing that is made."""
    return json.dumps(
        source and {k: v for k, v in with_file_state(source).items() if k != "gated"}
    )


def sources_json(mix):
    """The sources of a data mix, as JSON."""
    return json.dumps(
        [with_file_state(source) for source in config["data"][mix]["sources"]]
    )


def variants_with(recipe):
    """A regular expression for the names of the rewired or trained variants that have a recipe, or have none."""
    return pattern(
        name
        for name, variant in config["variants"].items()
        if ("recipe" in variant) == recipe
        and (recipe or variant["prefill_reduction"] is not None)
    )


def has_checkpoint(w):
    """Whether a variant is measured on a checkpoint of its own."""
    variant = config["variants"][w.variant]
    return "recipe" in variant or variant["prefill_reduction"] is not None


def recipe_of(w):
    return config["variants"][w.variant]["recipe"]


def recipe_json(w):
    """A recipe's settings as JSON, with the model's ZeRO stage."""
    name = w.recipe if hasattr(w, "recipe") else recipe_of(w)
    return json.dumps(cfg.recipe(config, w.model, name))


def checkpoint_folder(w):
    """The trained checkpoint a variant is measured on; none for the unchanged model."""
    if not has_checkpoint(w):
        return []
    return f"<results>/checkpoints/{w.model}/{w.variant}"


@command_line
def early_exit_checkpoint(w):
    """The trained checkpoint of a variant that can exit early."""
    cfg.check_early_exit(config, w.variant)
    return checkpoint_folder(w)


def tasks_of(w, group):
    """The tasks that a job scores: those of a set, or the one that its output names."""
    return config["sets"]["tasks"][group] if group else [w.task]


def scored_models(sharded):
    """A regular expression for a score's model, if the task at the end of its path has shards on it, or has none."""
    pairs = "|".join(
        rf"{re.escape(model)}/[^/]+/[^/]+/{re.escape(task)}\.json$"
        for model in config["models"]
        for task in config["tasks"]
        if shards_of(config, model, task) > 1
    )
    return (
        f"(?{'=' if sharded else '!'}{pairs or '(?!)'})(?:{pattern(config['models'])})"
    )


def shard_records(w):
    """The records of the shards of a score."""
    shards = shards_of(config, w.model, w.task)
    folder = f"<results>/score-shards/{w.model}/{w.variant}/{w.kv_cache}/{w.task}"
    return [f"{folder}/{shard}-of-{shards}.json" for shard in range(1, shards + 1)]


def question_folders(w, group):
    """The folders with the questions of a job's tasks, of those that come from the hub."""
    return [
        f"<results>/questions/{task}"
        for task in tasks_of(w, group)
        if fetch.from_hub(config["tasks"][task].get("source"))
    ]


def answers_folder(w, output):
    """Where a job keeps its answers so far. Not an output: Snakemake would delete those of a job that was killed."""
    results = Path(config["pathvars"]["results"])
    place = Path(*Path(output[0]).relative_to(results).parts[1:])
    return str(results / "score-state" / place.with_name(place.stem))


def fetch_attempt(w):
    """Changes where the questions of a task could not be fetched and now can, so that they are fetched again."""
    folder = Path(config["pathvars"]["results"], "questions", w.task)
    attempts = folder.with_name(f"{w.task}.attempts")
    return f"attempt {fetch.attempt(config['tasks'][w.task], folder, attempts)}"


@command_line
def tasks_json(w, group):
    """The entries of a job's tasks as JSON, with the vLLM engines that generate answers."""
    entries = {}
    for task in tasks_of(w, group):
        entry = dict(config["tasks"][task])
        for key in ("shards", "asks"):  # the same score for any
            entry.pop(key, None)
        if engine := cfg.scoring_engine(config, w.model, w.variant, w.kv_cache, task):
            entry["engine"] = engine
        if "source" in entry:
            entry["source"] = with_file_state(entry["source"])
        entries[task] = entry
    return json.dumps(entries)


# Training


PACKING = ["data", "max_length", "seed", "max_steps", "batch_size"]
TEACHING = [
    *PACKING,
    "teacher_states",
    "dtype",
    "micro_batch_size",
    "attention",
    "start_tokens",
]


def alike(recipe, keys):
    """All recipes that agree with `recipe` in all `keys`."""
    recipes = config["recipes"]
    return [
        name
        for name in recipes
        if all(recipes[name][key] == recipes[recipe][key] for key in keys)
    ]


def first_alike(recipe, keys):
    """The first of them; what they share has its name."""
    return alike(recipe, keys)[0]


def packed_rows(w):
    """The packed rows a variant is trained on."""
    return (
        f"<results>/packed/{w.model}/{first_alike(recipe_of(w), PACKING)}.safetensors"
    )


def teacher_states_file(w):
    """The stored teacher states, if the recipe has a teacher and asks for them."""
    name = recipe_of(w)
    recipe = config["recipes"][name]
    if recipe["loss"] == "lm" or recipe["teacher_states"] == "online":
        return []
    return f"<results>/teacher/{w.model}/{first_alike(name, TEACHING)}.safetensors"


def recipes_with(teacher_states):
    """A regular expression for the names of the recipes whose teacher states are stored, or are not ("online")."""
    recipes = config["recipes"]
    return pattern(
        name for name in recipes if recipes[name]["teacher_states"] == teacher_states
    )


def moments_file(w):
    """What a variant's start is fitted to, if its recipe fits it."""
    if "recipe" not in config["variants"][w.variant]:
        return []
    name = recipe_of(w)
    if config["recipes"][name]["start"] == "copied":
        return []
    return f"<results>/moments/{w.model}/{first_alike(name, TEACHING)}.safetensors"


@command_line
def starts_moments_file(w):
    """The moments that starts are compared with, if a start of the model can be fitted to them."""
    cfg.check_fitted(config, w.model)
    recipe = first_alike(config["choose_l"]["recipe"], TEACHING)
    return f"<results>/moments/{w.model}/{recipe}.safetensors"


def start_ridge(w, input):
    """The penalty of the fit that a variant starts from; 0 where its start is not fitted."""
    return config["recipes"][recipe_of(w)]["start_ridge"] if input.moments else 0


# Serving


def serves_dummy(w):
    return config["models"][w.model].get("serving_weights", "trained") == "dummy"


def model_file(w):
    """The resolved model; where nothing but its dimensions is needed, the file of those."""
    source = f"<results>/models/{w.model}/source.json"
    architecture = config["models"][w.model].get("architecture")
    return in_project(architecture) if serves_dummy(w) and architecture else source


def served_variant(w):
    """The variant whose checkpoint is served: one that differs in the plugin alone has none of its own."""
    variants = config["variants"]
    served = {
        key: variants[w.variant][key] for key in variants[w.variant] if key != "plugin"
    }
    return next((name for name in variants if variants[name] == served), w.variant)


def served_folder(w):
    """The folder that is served: a trained checkpoint or one without weights; none for the source model itself."""
    variant = config["variants"][w.variant]
    if serves_dummy(w):
        changed = variant["prefill_reduction"] is not None
        return (
            f"<results>/dummy/{w.model}/{served_variant(w) if changed else 'baseline'}"
        )
    if has_checkpoint(w):
        return f"<results>/checkpoints/{w.model}/{served_variant(w)}"
    return []


def measured_alone(w):
    """Whether a point's numbers would be others beside other jobs."""
    return KINDS[config["serving"]["points"][w.point]["measure"]].alone


def chats_file(w):
    """The held-out chats a point sends, if it does not send random tokens."""
    sends_chats = "dataset" in config["serving"]["points"][w.point]
    return "<results>/data/heldout.jsonl" if sends_chats else []


def workload_json(w):
    """What a workload's requests are made of, as JSON: not the rates and limits they are sent with."""
    entry = config["workloads"][w.workload]
    settings = {key: entry[key] for key in ("chunk_tokens", "longest")}
    if entry.get("stand_in"):
        settings |= {key: entry[key] for key in ("stand_in", "statistics")}
    else:
        settings["source"] = with_file_state(entry["source"])
    return json.dumps(settings)


def workload_folders(w):
    """The workloads a point sends, if it does."""
    sent = config["serving"]["points"][w.point].get("workloads", [])
    return [f"<results>/workloads/{workload}" for workload in sent]


def served_weights(w):
    """What is in the folder that is served."""
    if serves_dummy(w):
        return "dummy"
    return "trained" if served_folder(w) else "original"


def point_json(w):
    """How a point is served, as JSON; the same in whatever order the configuration has the keys."""
    return json.dumps(points.point(config, w.point), sort_keys=True)


# Tables and figures


@command_line
def files_of_artifact(w):
    """The measurement and published files an artifact is made of, by name."""
    contents.check_made(config, w.artifact)
    return {
        name: [in_project(path) for path in paths]
        for name, paths in contents.needs(config, w.artifact).items()
    }


def entry_json(w):
    """An artifact's entry with all it refers to, as JSON: what it shows, and what triggers making it again."""
    return json.dumps(contents.resolve(config, w.artifact))


def section_of_artifact(w):
    """The part of the paper an artifact belongs to, as the report groups it."""
    return config["artifacts"][w.artifact]["section"]


def labels_of_artifact(w):
    """What the report says about an artifact."""
    entry = config["artifacts"][w.artifact]
    return {"item": contents.label(entry), "shows": entry["title"]}
