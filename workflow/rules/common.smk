"""Checks the configuration before anything runs, and turns its names into the slices the rules pass on."""

import json
import shlex
import sys
from pathlib import Path

from swiftkv import config as cfg
from swiftkv import points
from swiftkv.artifacts import contents
from swiftkv.config.local import check_local_sources
from swiftkv.errors import UserError
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


def names(section):
    """A regular expression that matches exactly the names defined in one section of the configuration."""
    return "|".join(re.escape(name) for name in config[section])


wildcard_constraints:
    model=names("models"),
    variant=names("variants"),
    recipe=names("recipes"),
    data=names("data"),
    task="|".join(
        re.escape(task)
        for task in config["tasks"]
        if cfg.scored_together(config, task) == [task]
    )
    or "(?!)",
    kv_cache="auto|fp8",


def get_spec(w):
    """The SwiftKVSpec of a variant on a model as JSON; `null` for the unchanged model."""
    try:
        return json.dumps(cfg.spec(config, w.model, w.variant))
    except UserError as error:
        sys.exit(f"error: {error}")


def get_state(source):
    """A source in its present state, so that what is made of a local one is made again when its files change."""
    try:
        return source and with_state(source)
    except UserError as error:
        sys.exit(f"error: {error}")


def get_origin(source):
    """A source as the programs take it: not whether it is gated, which changes nothing that is made."""
    return json.dumps(
        source and {k: v for k, v in get_state(source).items() if k != "gated"}
    )


def get_sources(mix):
    """The sources of a data mix, as JSON."""
    return json.dumps([get_state(source) for source in config["data"][mix]["sources"]])


def variants_with(recipe):
    """A regular expression for the names of the rewired or trained variants that have a recipe, or have none."""
    found = [
        name
        for name, variant in config["variants"].items()
        if ("recipe" in variant) == recipe
        and (recipe or variant["prefill_reduction"] is not None)
    ]
    return "|".join(map(re.escape, found)) or "(?!)"


def has_checkpoint(w):
    """Whether a variant is measured on a checkpoint of its own."""
    variant = config["variants"][w.variant]
    return "recipe" in variant or variant["prefill_reduction"] is not None


def get_recipe_name(w):
    return config["variants"][w.variant]["recipe"]


def get_recipe(w):
    """A recipe's settings as JSON, with the model's ZeRO stage."""
    name = w.recipe if hasattr(w, "recipe") else get_recipe_name(w)
    return json.dumps(cfg.recipe(config, w.model, name))


def get_checkpoint(w):
    """The trained checkpoint a variant is measured on; none for the unchanged model."""
    if not has_checkpoint(w):
        return []
    return f"<results>/checkpoints/{w.model}/{w.variant}"


def get_early_exit_checkpoint(w):
    """The trained checkpoint of a variant that can exit early."""
    try:
        cfg.check_early_exit(config, w.variant)
    except UserError as error:
        sys.exit(f"error: {error}")
    return get_checkpoint(w)


def get_scoring_engines(w, group):
    """The vLLM engine of each task a job scores; None where transformers computes it."""
    tasks = config["sets"]["tasks"][group] if group else [w.task]
    subject = (config, w.model, w.variant, w.kv_cache)
    try:
        return {task: cfg.scoring_engine(*subject, task) for task in tasks}
    except UserError as error:
        sys.exit(f"error: {error}")


def scored_models(sharded):
    """A regular expression for a score's model, if the task at the end of its path has shards on it, or has none."""
    pairs = "|".join(
        rf"{re.escape(model)}/[^/]+/[^/]+/{re.escape(task)}\.json$"
        for model in config["models"]
        for task in config["tasks"]
        if shards_of(config, model, task) > 1
    )
    return f"(?{'=' if sharded else '!'}{pairs or '(?!)'})(?:{names('models')})"


def get_shards(w):
    """The records of the shards of a score."""
    shards = shards_of(config, w.model, w.task)
    folder = f"<results>/score-shards/{w.model}/{w.variant}/{w.kv_cache}/{w.task}"
    return [f"{folder}/{shard}-of-{shards}.json" for shard in range(1, shards + 1)]


def get_questions(w, group=None):
    """The folders with the questions of a job's tasks, of those that come from the hub."""
    tasks = config["sets"]["tasks"][group] if group else [w.task]
    return [
        f"<results>/questions/{task}"
        for task in tasks
        if fetch.from_hub(config["tasks"][task].get("source"))
    ]


def option(name, path):
    """An option of a program with its path, if there is one."""
    return shlex.join([name, path]) if path else ""


def get_fetched(w, input):
    """The argument that says where they are."""
    return shlex.join(["--fetched", *input.questions]) if input.questions else ""


def get_answers(w, output):
    """Where a job keeps its answers so far. Not an output: Snakemake would delete those of a job that was killed."""
    results = Path(config["pathvars"]["results"])
    place = Path(*Path(output[0]).relative_to(results).parts[1:])
    return str(results / "score-state" / place.with_name(place.stem))


def get_attempt(w):
    """Changes where the questions of a task could not be fetched and now can, so that they are fetched again."""
    folder = Path(config["pathvars"]["results"], "questions", w.task)
    attempts = folder.with_name(f"{w.task}.attempts")
    return f"attempt {fetch.attempt(config['tasks'][w.task], folder, attempts)}"


def get_tasks(w, group=None):
    """The entries of a job's tasks as JSON, with the engines that generate answers."""
    entries = {}
    for task, engine in get_scoring_engines(w, group).items():
        entries[task] = config["tasks"][task] | ({"engine": engine} if engine else {})
        entries[task].pop("shards", None)  # the same score for any number
        if "source" in entries[task]:
            entries[task]["source"] = get_state(entries[task]["source"])
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


def get_rows(w):
    """The packed rows a variant is trained on."""
    return f"<results>/packed/{w.model}/{first_alike(get_recipe_name(w), PACKING)}.safetensors"


def get_teacher_states(w):
    """The stored teacher states, if the recipe has a teacher and asks for them."""
    name = get_recipe_name(w)
    recipe = config["recipes"][name]
    if recipe["loss"] == "lm" or recipe["teacher_states"] == "online":
        return []
    return f"<results>/teacher/{w.model}/{first_alike(name, TEACHING)}.safetensors"


def recipes_with(**settings):
    """A regular expression for the names of the recipes that have the given settings."""
    found = [
        name
        for name in config["recipes"]
        if all(config["recipes"][name][key] == settings[key] for key in settings)
    ]
    return "|".join(map(re.escape, found)) or "(?!)"


def get_moments(w):
    """What a variant's start is fitted to, if its recipe fits it."""
    if "recipe" not in config["variants"][w.variant]:
        return []
    name = get_recipe_name(w)
    if config["recipes"][name]["start"] == "copied":
        return []
    return f"<results>/moments/{w.model}/{first_alike(name, TEACHING)}.safetensors"


def get_starts_moments(w):
    """The moments that starts are compared with, if a start of the model can be fitted to them."""
    try:
        cfg.check_fitted(config, w.model)
    except UserError as error:
        sys.exit(f"error: {error}")
    recipe = first_alike(config["choose_l"]["recipe"], TEACHING)
    return f"<results>/moments/{w.model}/{recipe}.safetensors"


def get_fit(w, input):
    """The arguments that say how a variant's start was fitted."""
    if not input.moments:
        return ""
    ridge = config["recipes"][get_recipe_name(w)]["start_ridge"]
    return shlex.join(["--moments", input.moments, "--ridge", str(ridge)])


# Serving


def serves_dummy(w):
    return config["models"][w.model].get("serving_weights", "trained") == "dummy"


def get_source(w):
    """The resolved model; where nothing but its dimensions is needed, the file of those."""
    source = f"<results>/models/{w.model}/source.json"
    architecture = config["models"][w.model].get("architecture")
    return in_project(architecture) if serves_dummy(w) and architecture else source


def get_served_variant(w):
    """The variant whose checkpoint is served: one that differs in the plugin alone has none of its own."""
    variants = config["variants"]
    served = {
        key: variants[w.variant][key] for key in variants[w.variant] if key != "plugin"
    }
    return next((name for name in variants if variants[name] == served), w.variant)


def get_served(w):
    """The folder that is served: a trained checkpoint or one without weights; none for the source model itself."""
    variant = config["variants"][w.variant]
    if serves_dummy(w):
        changed = variant["prefill_reduction"] is not None
        return f"<results>/dummy/{w.model}/{get_served_variant(w) if changed else 'baseline'}"
    if has_checkpoint(w):
        return f"<results>/checkpoints/{w.model}/{get_served_variant(w)}"
    return []


def measured_alone(w):
    """Whether a point's numbers would be others beside other jobs."""
    return KINDS[config["serving"]["points"][w.point]["measure"]].alone


def get_chats(w):
    """The held-out chats a point sends, if it does not send random tokens."""
    sends_chats = "dataset" in config["serving"]["points"][w.point]
    return "<results>/data/heldout.jsonl" if sends_chats else []


def get_workload(w):
    """What a workload's requests are made of, as JSON: not the rates and limits they are sent with."""
    entry = config["workloads"][w.workload]
    settings = {key: entry[key] for key in ("chunk_tokens", "longest")}
    if entry.get("stand_in"):
        settings |= {key: entry[key] for key in ("stand_in", "statistics")}
    else:
        settings["source"] = get_state(entry["source"])
    return json.dumps(settings)


def get_workloads(w):
    """The workloads a point sends, if it does."""
    sent = config["serving"]["points"][w.point].get("workloads", [])
    return [f"<results>/workloads/{workload}" for workload in sent]


def get_subject(w):
    """The arguments that say what is served, but for its files: of parameters made from those, none is a trigger."""
    model, variant = config["models"][w.model], config["variants"][w.variant]
    words = ["--model", w.model, "--title", model["title"]]
    if serves_dummy(w):
        words += ["--weights", "dummy"]
    else:
        words += ["--weights", "trained" if get_served(w) else "original"]
    words += ["--variant", w.variant, "--spec", get_spec(w), "--kv-cache", w.kv_cache]
    if variant.get("merge_all_layers"):
        words.append("--merge-all-layers")
    if "quantization" in model:
        words += ["--quantization", model["quantization"]]
    if "plugin" in variant:
        words += ["--plugin", variant["plugin"]]
    return shlex.join(words)


def get_point(w):
    """The arguments that say how it is served; the same in whatever order the configuration has the keys."""
    settings = json.dumps(points.point(config, w.point), sort_keys=True)
    gpus = str(config["models"][w.model]["gpus"]["serve"])
    return shlex.join(["--point", w.point, "--settings", settings, "--gpus", gpus])


# Tables and figures


def get_files(w):
    """The measurement and published files an artifact is made of, by name."""
    return {
        name: [in_project(path) for path in paths]
        for name, paths in contents.needs(config, w.artifact).items()
    }


def get_entry(w):
    """An artifact's entry with all it refers to, as JSON: what it shows, and what triggers making it again."""
    return json.dumps(contents.resolve(config, w.artifact))


def get_section(w):
    """The part of the paper an artifact belongs to, as the report groups it."""
    return config["artifacts"][w.artifact]["section"]


def get_labels(w):
    """What the report says about an artifact."""
    entry = config["artifacts"][w.artifact]
    return {"item": contents.label(entry), "shows": entry["title"]}
