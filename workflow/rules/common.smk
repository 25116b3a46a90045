"""Checks the configuration before anything runs, and turns its names into the slices the rules pass on."""

import json
import shlex
import sys

from swiftkv import config as cfg
from swiftkv.artifacts import contents
from swiftkv.errors import UserError

PROJECT = workflow.basedir
SCRIPTS = f"{PROJECT}/workflow/scripts"

try:
    cfg.refuse_duplicate_keys(
        [
            f"{PROJECT}/config.yaml",
            f"{PROJECT}/artifacts.yaml",
            *map(str, workflow.overwrite_configfiles),
        ]
    )
    cfg.check(config, f"{PROJECT}/workflow/schemas/config.schema.yaml")
    contents.check(config)
except UserError as error:
    sys.exit(f"error: {error}")

# Jobs use the Python that runs Snakemake, also where its environment is not activated.
shell.prefix(f'export PATH="{os.path.dirname(sys.executable)}:$PATH"; ')


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
    task=names("tasks"),
    kv_cache="auto|fp8",


def get_spec(w):
    """The SwiftKVSpec of a variant on a model as JSON; `null` for the unchanged model."""
    try:
        return json.dumps(cfg.spec(config, w.model, w.variant))
    except UserError as error:
        sys.exit(f"error: {error}")


def get_recipe_name(w):
    return config["variants"][w.variant]["recipe"]


def get_recipe(w):
    """A recipe's settings as JSON, with the model's ZeRO stage."""
    name = w.recipe if hasattr(w, "recipe") else get_recipe_name(w)
    return json.dumps(cfg.recipe(config, w.model, name))


def get_checkpoint(w):
    """The trained checkpoint a variant is measured on; none for the unchanged model."""
    if "recipe" not in config["variants"][w.variant]:
        return []
    return f"<results>/checkpoints/{w.model}/{w.variant}"


def get_gpus(stage):
    return lambda w: config["models"][w.model]["gpus"][stage]
def get_launcher(w, resources):
    """How a training starts: plain Python for one process, torchrun on one node, srun and torchrun on several."""
    if resources.gpu <= 1:
        return "python"
    if resources.nodes == 1:
        return f"torchrun --standalone --nproc-per-node {resources.gpu}"
    return (
        f"srun --nodes {resources.nodes} --ntasks-per-node 1 torchrun --nnodes {resources.nodes} "
        f"--nproc-per-node {resources.gpu // resources.nodes} --rdzv-backend c10d "
        '--rdzv-endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500" '
        '--rdzv-id "$SLURM_JOB_ID"'
    )
