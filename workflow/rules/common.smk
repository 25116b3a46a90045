"""Check the configuration before anything runs, and define the functions of rules, which Snakemake's linter wants together."""

import json
import sys
from pathlib import Path

from snakemake.logging import logger
from pipeline import shipped
from pipeline.artifacts import contents
from pipeline.artifacts.entry import FORMS
from pipeline.config import FILES, load_yaml
from pipeline.config.checks import at
from pipeline.config.settings import FAMILIES, Prompts, Scored
from swiftkv.errors import UserError, command_line
from pipeline.run.jobs import checked, refuse_replaced_configuration
from pipeline.measure.job import ServingSettings
from pipeline.measure.run import KINDS
from pipeline.records import code_digest
from pipeline.quality import fetch
from swiftkv.distill.recipe import FitSettings, ForwardSettings, PackingSettings, Recipe, WeightSettings
from pipeline.sources import with_state

try:
    refuse_replaced_configuration(sys.argv, workflow.overwrite_configfiles)
    # Snakemake itself lets a duplicate key win silently.
    for file in (*FILES, *workflow.overwrite_configfiles):
        load_yaml(file)
    scale = checked(config)
except UserError as error:
    sys.exit(f"error: {error}")


def pattern(names):
    """A regular expression that matches exactly the given names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def alone(names, together, sets):
    """Return a regular expression for the names that are in no set of `together`."""
    return pattern(name for name in names if not any(name in sets[group] for group in together))


wildcard_constraints:
    model=pattern(scale.models),
    variant=pattern(scale.variants),
    recipe=pattern(scale.recipes),
    data=pattern(scale.data),
    task=alone(scale.tasks, scale.scoring.together, scale.sets.tasks),
    point=alone(scale.serving.points, scale.serving.together, scale.sets.points),
    kv_cache="auto|fp8",


@command_line
def spec_json(w):
    """The SwiftKVSpec of a variant on a model as JSON; `null` for the unchanged model."""
    spec = scale.spec(w.model, w.variant)
    return json.dumps(spec and spec.fields)


@command_line
def source_of_job(source):
    """Return a source for a job's parameters: without `gated`, with sizes and times of local files, so that jobs rerun when files
    change."""
    return source and with_state(source.model_dump(exclude_unset=True, exclude={"gated"}))


def source_json(source):
    """Return a source for a job's parameters, as JSON."""
    return json.dumps(source_of_job(source))


def sources_json(mix):
    """Return the sources of a data mix, as JSON."""
    return json.dumps([source_of_job(source) for source in scale.data[mix].sources])


def untracked(value):
    """Turn a function of wildcards into a parameter that does not make jobs rerun, as it changes no result.

    Snakemake does not compare parameters whose function takes `output` with those of the last run.
    """
    return lambda w, output: value(w)


def variants_with(wanted):
    """Return a regular expression for the names of the variants for which `wanted` is true."""
    return pattern(name for name, variant in scale.variants.items() if wanted(variant))


def recipe_of(w):
    """Return the name of a job's recipe, or of its variant's."""
    return w.recipe if hasattr(w, "recipe") else scale.variants[w.variant].recipe


@command_line
def recipe_json(w, part, beyond=None):
    """Return the settings of a recipe that class `part` has and class `beyond` does not, as JSON."""
    names = part.model_fields.keys() - (beyond.model_fields.keys() if beyond else ())
    recipe = scale.recipe(w.model, recipe_of(w))
    if hasattr(w, "variant"):
        with at(f"variants.{w.variant}, for model {w.model!r}"):
            recipe.check_spec(scale.spec(w.model, w.variant))
    return recipe.model_dump_json(include=names)


def folder_of(file):
    """Return the folder of a checkpoint's file; rules name one file, as Snakemake would leave a file of its own in a folder."""
    return os.path.dirname(file) if file else []


def checkpoint_file(w):
    """Return a file of the checkpoint that a variant is measured on; none for the unchanged model."""
    changed = scale.variants[w.variant].changed
    return f"<results>/checkpoints/{w.model}/{w.variant}/config.json" if changed else []


@command_line
def early_exit_checkpoint(w):
    """Return a file of the trained checkpoint of a variant that can exit early."""
    scale.check_early_exit(w.variant)
    return checkpoint_file(w)


def tasks_of(w, group):
    """Return the tasks that a job scores: those of a set, or the one that its output names."""
    return scale.sets.tasks[group] if group else [w.task]


def question_folders(w, group):
    """Return the folders with questions of those of a job's tasks that come from the hub."""
    return [
        f"<results>/questions/{task}"
        for task in tasks_of(w, group)
        if fetch.from_hub(source_of_job(scale.tasks[task].source))
    ]


def answers_folder(w, output):
    """Return the folder for a job's answers so far. Not an output: Snakemake would delete it when the job is killed."""
    results = Path(scale.pathvars.results)
    place = Path(output[0]).relative_to(results)
    return str(results / "job-state" / place.with_name(place.stem))


def questions_of(w):
    """Return the lm-eval task and the source of the questions that a job fetches."""
    task = scale.tasks[w.task]
    return {"task": task.task, "source": source_of_job(task.source)}


@command_line
def tasks_json(w, group):
    """Return the entries of a job's tasks as JSON, with the vLLM engines that generate answers."""
    entries = []
    for task in tasks_of(w, group):
        entry = scale.tasks[task].model_dump(include=Scored.model_fields.keys())
        if engine := scale.scoring_engine(w.model, w.variant, w.kv_cache, task):
            entry["engine"] = engine
        entry["source"] = source_of_job(scale.tasks[task].source)
        entries.append(f"{json.dumps(task)}: {json.dumps(entry, sort_keys=True)}")
    return f"{{{', '.join(entries)}}}"  # in the order of the outputs


def of_family(family, variant):
    """Return a function of wildcards: `family` for families, `variant` for trained variants."""
    return lambda w: family(w) if w.variant in FAMILIES else variant(w)


# Training


@command_line
def shared_file(w, folder, part):
    """Return a file of a job's recipe; recipes with equal settings of class `part` share that of the first."""
    return f"<results>/{folder}/{w.model}/{scale.recipes_sharing(w.model, recipe_of(w), part)[0]}.safetensors"


def packed_rows(w):
    """Return the packed rows of a recipe."""
    return shared_file(w, "packed", PackingSettings)


def teacher_states_file(w):
    """Return the file of the teacher's states, if the recipe has a teacher and stores them."""
    recipe = scale.recipe(w.model, recipe_of(w))
    stored = recipe.loss != "lm" and recipe.teacher_states == "stored"
    return shared_file(w, "teacher", ForwardSettings) if stored else []


def moments_file(w):
    """Return the file of the regressions that a variant starts from, if its recipe has a fitted start."""
    fitted = recipe_of(w) and scale.recipe(w.model, recipe_of(w)).start == "fitted"
    return shared_file(w, "moments", FitSettings) if fitted else []


# Serving


def copy_overrides(name, other):
    """Copy a profile's set-threads and set-resources of a rule to another one, which is generated afterwards."""
    settings = workflow.resource_settings
    for named in (settings._parsed_overwrite_threads, settings._parsed_overwrite_resources):
        if name in named:
            named.setdefault(other, named[name])


def points_of(w, group):
    """Return the points that a job measures: those of a set, or the one that its output names."""
    return scale.sets.points[group] if group else [w.point]


def serves_dummy(w):
    return scale.models[w.model].serving_weights == "dummy"


def model_file(w):
    """Return the file of the resolved model, or that of its dimensions if only these are needed."""
    architecture = scale.models[w.model].architecture
    if serves_dummy(w) and architecture:
        return shipped(architecture)
    return f"<results>/models/{w.model}/source.json"


def served_file(w):
    """Return a file of the trained checkpoint that is served; none for the source model itself, or if weights are made up."""
    return [] if serves_dummy(w) else checkpoint_file(w)


def measured_alone(points):
    """Return True if other jobs on the machine would change the numbers of one of the points."""
    return any(KINDS[scale.serving.points[point].measure].alone for point in points)


def chats_file(w, group):
    """Return the file of the chats that points send, one kind an engine; none if all send random tokens."""
    files = {
        "heldout": "<results>/data/heldout.jsonl",
        "reading": f"<results>/data/{scale.reading.data}/train.jsonl",
    }
    sent = {getattr(scale.serving.points[point], "dataset", None) for point in points_of(w, group)}
    return [file for name, file in files.items() if name in sent]


def serving_json(w, group):
    """Return the model that is served and its points, as JSON."""
    variant = scale.variants[w.variant]
    weights = "dummy" if serves_dummy(w) else "trained" if served_file(w) else "original"
    spec = scale.spec(w.model, w.variant)
    return ServingSettings(
        weights,
        spec and spec.fields,
        variant.merge_all_layers,
        scale.models[w.model].quantization,
        {point: scale.point(point) for point in points_of(w, group)},
    ).text


# Tables and figures

# Of the code that draws, counts and estimates: artifacts are drawn again when it changes.
DRAWING = code_digest(
    *(Path(PROJECT) / f"workflow/pipeline/{name}" for name in ("artifacts", "statistics.py", "text.py")),
    *(Path(PROJECT) / f"src/swiftkv/{name}.py" for name in ("cost", "architectures", "spec")),
)


@command_line
def files_of_artifact(w):
    """Return the measurement and published files that an artifact is made of, by name."""
    contents.check_made(scale, w.artifact)
    needed = contents.input_files(scale, w.artifact).items()
    return {name: [shipped(path) for path in paths] for name, paths in needed}


def entry_json(w):
    """Return an artifact's entry with all it refers to, as JSON; a changed one makes the artifact again."""
    return json.dumps(contents.resolve(scale, w.artifact))


def files_of_artifacts(names):
    """Return the files of the artifacts among `names` that this scale makes."""
    return [
        f"<results>/{form}s/{artifact}.{ending}"
        for form, endings in FORMS.items()
        for artifact in contents.names(scale)
        for ending in endings
        if artifact in names and contents.kind_of(scale, artifact).form == form
    ]


def in_report(file):
    """Mark a file of an artifact for `snakemake --report`, by its section and with its caption."""
    return report(
        file,
        caption="../report/artifact.rst",
        category=lambda w: scale.artifacts[w.artifact].section,
        labels=lambda w: {"artifact": w.artifact, "title": scale.artifacts[w.artifact].title},
    )
