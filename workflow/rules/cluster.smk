"""What jobs ask of a cluster, and how a training starts on several GPUs or nodes (docs/cluster.md)."""

EXCLUSIVE = "--exclusive"


def on_gpus(stage, alone=None):
    """What a job asks for that runs a model: GPUs, nodes, and what `gpu_jobs` adds on this cluster.

    `alone` says, by wildcards, whether it must have its node to itself, which leaves the node's other GPUs idle.
    """

    def gpus(w):
        return config["models"][w.model]["gpus"][stage]

    def nodes(w):
        return config["models"][w.model]["nodes"].get(stage, 1)

    def mem_mb(w, attempt):
        wanted = attempt * site["mem_mb_per_gpu"] * gpus(w) // nodes(w)
        return min(wanted, site["mem_mb_per_node"]) if gpus(w) else None

    site = config["gpu_jobs"]
    asked = {"gpu": gpus, "nodes": nodes}
    if stage == "distill":
        # One task a node, started by the job's own shell (get_launcher) and not by Snakemake, whose step would keep
        # everything there is to itself.
        asked["mpi"] = lambda w: "srun" if nodes(w) > 1 else None
        asked["tasks"] = lambda w: nodes(w) if nodes(w) > 1 else None
        asked["tasks_per_gpu"] = 0
    for name, value in site.get("resources", {}).items():
        asked[name] = lambda w, value=value: value if gpus(w) else None
    if "mem_mb_per_gpu" in site:
        asked["mem_mb"] = mem_mb
    if alone is not None:
        own = asked.get("slurm_extra", lambda w: None)
        asked["slurm_extra"] = lambda w: " ".join(
            filter(None, [own(w), EXCLUSIVE if alone(w) else None])
        )
    return asked


def get_launcher(w, resources):
    """How a training starts: plain Python for one process, torchrun on one node, srun and torchrun on several."""
    if resources.gpu <= 1:
        return "python"
    # How long torchrun lets its ranks save their state when it is told to end: as long as the cluster does, not 30 seconds.
    patience = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=3600"
    if resources.nodes == 1:
        return f"{patience} torchrun --standalone --nproc-per-node {resources.gpu}"
    free_port = "from swiftkv.measure.process import free_port; print(free_port())"
    # This shell runs on the first node, where the ranks meet on a port of their own; of SLURM's variables Snakemake leaves
    # it the job's number only, so srun has to be told again what the job may use.
    nodes, gpus = resources.nodes, resources.gpu // resources.nodes
    cpus = resources.get("cpus_per_gpu")
    # At the end torchrun warns, with host names and folders, where another node's was gone first; errors are still said.
    return (
        f"{patience} TORCH_CPP_LOG_LEVEL=ERROR TORCH_LOGS=-torch.distributed.elastic "
        f"srun --nodes {nodes} --ntasks {nodes} --ntasks-per-node 1 --gpus-per-node {gpus} --kill-on-bad-exit "
        + (f"--cpus-per-task {cpus * gpus} " if cpus else "")
        + f'"${{IN_IMAGE[@]}}" torchrun --nnodes {nodes} --nproc-per-node {gpus} --rdzv-backend c10d '
        f'--rdzv-endpoint "$(hostname):$(python -c "{free_port}")" --rdzv-id "$SLURM_JOB_ID"'
    )


def refuse_what_slurm_would_refuse():
    """Stop a controller before it submits what SLURM would refuse, or would run beside others; jobs run without this hook."""
    if workflow.executor_plugin.name != "slurm":
        return
    from swiftkv.preflight.slurm import problems_at_start

    jobs = [
        (job.rule.name, job) for job in workflow.dag.needrun_jobs() if not job.is_local
    ]
    problems = problems_at_start(
        jobs, workflow.executor_settings, workflow.workdir_init
    )
    if any(
        name == "measure"
        and measured_alone(job.wildcards)
        and EXCLUSIVE not in job.resources.slurm_extra
        for name, job in jobs
    ):
        problems.append(
            f"the profile's slurm_extra of rule measure replaces {EXCLUSIVE}, without which latencies are measured beside "
            "other jobs; state it under gpu_jobs.resources in site.yaml, where it is added"
        )
    if problems:
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
