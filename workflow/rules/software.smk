"""The Python of jobs, which a profile's `software-deployment-method` chooses (docs/environment.md).

apptainer: the image envs/gpu.sif. conda: the environment .conda. Neither: the Python that runs Snakemake.
"""

# Snakemake takes no image whose path has a space, as that of a checkout may.
IMAGE = os.path.relpath(f"{PROJECT}/envs/gpu.sif")
CONDA = f"{PROJECT}/.conda"
# Where the jobs of a cluster keep caches; braces would be wildcards in a shell prefix.
LOCAL_CACHE = scale.gpu_jobs.local_cache or ""
LOCAL_CACHE = LOCAL_CACHE.replace("{", "{{").replace("}", "}}")
# Whether the profile has `logger: swiftkv`; the output of steps is then in their logs alone.
TERMINAL = "swiftkv" in workflow.output_settings.log_handler_settings
METHODS = sorted(map(str, workflow.deployment_settings.deployment_method))

if METHODS not in ([], ["apptainer"], ["conda"]):
    sys.exit(
        f"error: software-deployment-method is {' and '.join(METHODS)}; "
        "it may be apptainer or conda, or left out for the Python that runs Snakemake"
    )
if METHODS == ["apptainer"] and not os.path.exists(IMAGE):
    sys.exit(f"error: there is no {IMAGE}; make it with `make image`, or link yours there")
if METHODS == ["conda"] and not os.access(f"{CONDA}/bin/python", os.X_OK):
    sys.exit(f"error: there is no Python in {CONDA}; make it with `make setup-conda`")


container: IMAGE


def shell_prefix(method):
    """Return the first commands of every job's shell.

    In .conda nothing of the user's own stands in for a locked package. An image has a PATH of its own and takes the project's
    code from the checkout. On several nodes srun starts the image (IN_IMAGE) as Snakemake does on one; there the job's shell
    itself is outside. Jobs are offline unless their rule says `online` (workflow/environment.sh).
    """
    here = f'export PATH="{os.path.dirname(sys.executable)}:$PATH"; '
    if method == "conda":
        here = f'export PATH="{CONDA}/bin:$PATH" PYTHONNOUSERSITE=1; unset PYTHONPATH; '
    if method == "apptainer":
        arguments = workflow.deployment_settings.apptainer_args
        here = (
            f'export PYTHONPATH="{PROJECT}/src:{PROJECT}/workflow"; '
            f'if [ -z "${{{{APPTAINER_CONTAINER:-}}}}${{{{SINGULARITY_CONTAINER:-}}}}" ]; then {here}'
            f'IN_IMAGE=(apptainer exec --home "{os.getcwd()}" {arguments} "{IMAGE}"); fi; '
        )
    return f"{'exec > /dev/null; ' if TERMINAL else ''}IN_IMAGE=(); {here}"


shell.prefix(shell_prefix("".join(METHODS)) + f'LOCAL_CACHE="{LOCAL_CACHE}"; . "{PROJECT}/workflow/environment.sh"; ')


def training_image(w):
    """Return a training's image; none on several nodes, because srun, which starts the nodes, is in no image."""
    nodes = scale.models[w.model].nodes.distill
    return IMAGE if nodes == 1 else None
