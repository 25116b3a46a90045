"""What jobs ask of a cluster or this machine, and how a training starts on several GPUs or nodes (docs/cluster.md)."""

import shlex

from pipeline.gpus import gpus_of
from pipeline.run.jobs import EXCLUSIVE, PlannedJob
from pipeline.stages import rule_of


def on_gpus(stage, alone=None):
    """Return the resources of a job that runs a model: GPUs, nodes, and what `gpu_jobs` adds on this cluster.

    `alone`, a function of wildcards, returns True if the job needs a node of its own, which leaves the node's other GPUs idle.
    """

    def gpus(w):
        return getattr(scale.models[w.model].gpus, stage)

    def nodes(w):
        return getattr(scale.models[w.model].nodes, stage, 1)

    def mem_mb(w, attempt):
        wanted = attempt * site.mem_mb_per_gpu * gpus(w) // nodes(w)
        return min(wanted, site.mem_mb_per_node) if gpus(w) else None

    def runtime(w, threads, attempt, rulename):
        from pipeline.run.estimate import Work, time_limit
        from pipeline.run.jobs import Resources

        outputs, _ = workflow.get_rule(rulename).expand_output(w)
        resources = Resources(gpu=gpus(w))
        job = PlannedJob(
            rule_of(rulename), dict(w.items()), outputs=tuple(outputs), threads=threads, resources=resources
        )
        return min(attempt * time_limit(Work(job, scale)), site.longest_runtime)

    site = scale.gpu_jobs
    # Nothing gives a job GPUs of its own where there is no scheduler, so jobs with GPUs take turns there (share_machine).
    asked = {"gpu": gpus, "nodes": nodes, "gpu_turn": lambda w: 1 if gpus(w) else None}
    if site.gres:  # on each node; the executor takes one of both
        asked["gres"] = lambda w: f"{site.gres}:{gpus(w) // nodes(w)}" if gpus(w) else None
        del asked["gpu"]
    if stage == "distill":
        # One task a node, started by the job's own shell (launcher) and not by Snakemake, whose step would keep
        # everything there is to itself.
        asked["mpi"] = lambda w: "srun" if nodes(w) > 1 else None
        asked["tasks"] = lambda w: nodes(w) if nodes(w) > 1 else None
        asked["tasks_per_gpu"] = 0
    for name, value in site.resources.items():
        asked[name] = lambda w, value=value: value if gpus(w) else None
    if site.gres and (cores := site.resources.get("cpus_per_gpu")):  # which needs --gpus
        asked["cpus_per_task"] = lambda w: cores * gpus(w) // nodes(w) if gpus(w) else None
        del asked["cpus_per_gpu"]
    if site.mem_mb_per_gpu:
        asked["mem_mb"] = mem_mb
    if site.longest_runtime:
        asked["runtime"] = runtime
    if alone is not None:
        own = asked.get("slurm_extra", lambda w: None)
        asked["slurm_extra"] = lambda w: " ".join(filter(None, [own(w), EXCLUSIVE if alone(w) else None]))
    return asked


def priority_or_exit(stage, priority=0):
    """Return a job's priority; exit if the profile has fewer GPUs or nodes than its model needs.

    Snakemake would silently reduce the GPUs to what the profile has. Of all that it evaluates before a run or a dry run
    starts, only priorities are evaluated for the jobs that are to run and no others.
    """

    def priority_of(w):
        model = scale.models[w.model]
        gpus, nodes = getattr(model.gpus, stage), getattr(model.nodes, stage, 1)
        limit = workflow.global_resources.get("gpu").value
        if limit is not None and limit < gpus:
            sys.exit(
                f"error: model {w.model!r} asks for {gpus} GPUs (gpus.{stage}) and this profile shares out {limit}: "
                f"set `resources: gpu` of the profile, or --resources gpu={gpus}"
            )
        # Only where there is a cluster, jobs in its queue have a limit; jobs themselves are not asked again.
        if nodes > 1 and workflow.nodes is None and workflow.is_main_process:
            sys.exit(
                f"error: model {w.model!r} asks for {nodes} nodes (nodes.{stage}), which only a profile with "
                "`executor: slurm` has"
            )
        return priority

    return priority_of


def number_of_gpus(w, resources):
    """Return the GPUs of a job over all its nodes."""
    return gpus_of(resources)


def gpus_of_step(resources):
    """Return srun's argument for all GPUs of a job."""
    gres = resources.get("gres")
    return f"--gres {gres}" if gres else f"--gpus-per-node {gpus_of(resources) // resources.nodes}"


def launcher(w, resources):
    """How a training starts: plain Python for one process, torchrun on one node, srun and torchrun on several."""
    gpus, nodes = gpus_of(resources), resources.nodes
    if gpus <= 1:
        return "python"
    # How long torchrun lets its ranks save their state when it is told to end: as long as the cluster does, not 30 seconds.
    patience = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=3600"
    if nodes == 1:
        # Ranks would look for this machine's full name, which need not have an address.
        return f"{patience} torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node {gpus}"
    free_port = "from pipeline.engines.process import free_port; print(free_port())"
    # This shell runs on the first node, where the ranks meet on a port of their own; of SLURM's variables Snakemake leaves
    # it the job's number only, so srun has to be told again what the job may use.
    gpus //= nodes
    cpus = resources.get("cpus_per_task") or resources.get("cpus_per_gpu", 0) * gpus
    on_nodes = f"srun --nodes {nodes} --ntasks {nodes} --ntasks-per-node 1"
    # torchrun would try for 90 seconds, and not name the host for which a node knows no address.
    unknown = "error: a node of this job, named above, finds no address of $(hostname), on which the ranks meet"
    # Without --master-addr ranks would meet at the full name of any node, which others need not know.
    torchrun = """bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun"""
    # At the end torchrun warns, with host names and folders, where another node's was gone first; errors are still said.
    return (
        f'{on_nodes} getent hosts "$(hostname)" > /dev/null || {{ echo "{unknown}"; exit 1; }}; '
        f"{patience} TORCH_LOGS=-torch.distributed.elastic "
        f"{on_nodes} {gpus_of_step(resources)} --kill-on-bad-exit "
        + (f"--cpus-per-task {cpus} " if cpus else "")
        + f'"${{IN_IMAGE[@]}}" {torchrun} --nnodes {nodes} --nproc-per-node {gpus} '
        f'--master-addr "$(hostname)" --master-port "$(python -c "{free_port}")"'
    )


def node_check(w, resources):
    """Return the command that checks every node of a probe, before ranks that meet need them to be right."""
    from pipeline.run.probe_rank import EXCHANGE

    nodes, gpus = resources.nodes, gpus_of(resources) // resources.nodes
    on_nodes = f"srun --overlap --nodes {nodes} --ntasks {nodes} --ntasks-per-node 1 {gpus_of_step(resources)} "
    results = shlex.quote(f"{scale.pathvars.results}/{EXCHANGE}")
    return (
        f'{on_nodes if nodes > 1 else ""}"${{IN_IMAGE[@]}}" '
        f"python -m pipeline.run.probe_rank {nodes} {gpus} {results}"
    )


def share_machine():
    """Limit what jobs on this machine share besides GPUs, unless the run states it: memory in MB, and turns at the GPUs."""
    from pipeline.run.jobs import machine_resources

    for name, amount in machine_resources().items():
        if workflow.global_resources.get(name).value is None:
            # register_resource only sets what is free now
            workflow.scheduler.global_resources[name] = amount
            workflow.register_resource(name, amount)
    # Snakemake's own limits, such as _nodes, may be none.
    return {name: limit.value for name, limit in workflow.global_resources.items() if limit.value is not None}


def planned(job):
    """Return a job of this run as plans have it."""
    from pipeline.run.jobs import planned

    return planned(job.rule.name, job.wildcards_dict, job)


@command_line
def refuse_what_cannot_run():
    """Stop a run before its first job if one could not run, and share out this machine's memory; jobs run without this hook."""
    from pipeline.run.check import problems_at_start
    from pipeline.gpus import python_of_jobs
    from pipeline.run import slurm
    from pipeline.run.jobs import Profile

    executor = workflow.executor_plugin.name
    if executor not in ("slurm", "local"):
        return
    # Before memory is shared out, jobs say what they take; then, what Snakemake would cut it to.
    jobs = [planned(job) for job in workflow.dag.needrun_jobs() if job.output]
    profile = Profile(
        Path(),
        jobs=workflow.nodes,
        cores=workflow.cores if executor == "local" else None,
        resources=share_machine() if executor == "local" else {},
        python=python_of_jobs(METHODS, PROJECT),
        directory=workflow.workdir_init,
        slurm=workflow.executor_settings if executor == "slurm" else None,
    )
    # Profiles ignore such marks (ignore-incomplete), as jobs put their results in place whole.
    unrecorded = workflow.async_run(workflow.dag.incomplete_files())
    problems = problems_at_start(profile, jobs, sorted(map(str, unrecorded)))
    if executor == "slurm" and any(
        measured_alone(job.points) and EXCLUSIVE not in job.resources.get("slurm_extra") for job in jobs
    ):
        problems.append(
            f"the profile's slurm_extra of rule measure replaces {EXCLUSIVE}, without which latencies are measured "
            "beside other jobs; state it under gpu_jobs.resources in site.yaml, where it is added"
        )
    if problems:
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
    if executor == "slurm":
        slurm.requeue_preempted(workflow.workdir_init)
    if TERMINAL:
        hand_over_progress(profile)


def hand_over_progress(profile):
    """Give the terminal the steps of this run, with their estimates."""
    from pipeline.run.estimate import estimates
    from pipeline.run.progress import RunProgress

    dag = workflow.dag
    jobs = {job.jobid: planned(job) for job in dag.needrun_jobs() if job.output}
    finished = [planned(job) for job in dag.jobs if job.output and not dag.needrun(job)]
    logs = {job.jobid: list(job.log) for job in dag.needrun_jobs()}
    found = estimates(profile, scale, list(jobs.values()), finished)
    progress = RunProgress(jobs, dict(zip(jobs, found.seconds)), logs, profile, scale.pathvars.results)
    logger.info(progress.beginning(), extra={"progress": progress})
