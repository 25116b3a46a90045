"""Error messages for unknown targets and missing profiles."""

from pipeline.run import targets
from pipeline.run.retries import Retries


@command_line
def refuse_unknown_names():
    """Refuse rules and resources of the profile or the site file that nothing reads; explain why nothing makes a file."""
    settings = workflow.resource_settings
    set_resources = settings._parsed_overwrite_resources
    targets.check_names(
        [rule.name for rule in workflow.rules],
        {"set-resources": set_resources, "set-threads": settings.overwrite_threads},
        {
            "resources": workflow.global_resources,
            "the profile's default-resources": settings._parsed_default_resources,
            "gpu_jobs.resources of the site file": scale.gpu_jobs.resources,
            **{f"the profile's set-resources of {rule}": names for rule, names in set_resources.items()},
        },
    )
    logger.addFilter(Retries(workflow))
    # Before other filters, so that those see the reason too.
    logger.filters.insert(0, lambda record: targets.explain(scale, record))


def every_artifact(w):
    """Return all tables and figures; at paper scale only if a profile or the rule itself is named."""
    named = workflow.dag_settings.targets or workflow.overwrite_configfiles
    if not named and workflow.global_resources.get("gpu").value is None:
        sys.exit(
            "error: neither a profile nor a target is named, and everything at the paper's scale takes thousands of "
            "GPU-hours. You may have meant one of\n"
            "  snakemake --profile profiles/local                    everything on a small real model, on this machine\n"
            "  snakemake --cores 2 table1                            one table of the paper's scale\n"
            "  snakemake --profile profiles/slurm                    all of the paper's scale, on a cluster\n"
            "  make plan PROFILE=slurm                               what that costs\n"
            "  make help                                             what else there is"
        )
    return files_of_artifacts(contents.standard(scale))


def say_where_results_are():
    """Print where results are, at the end of a run that made everything."""
    results = scale.pathvars.results
    if not TERMINAL and os.path.exists(f"{results}/report.html"):
        print(
            f"Done. {results}/report.html shows everything, {results}/tables/claims.md judges the claims.",
            file=sys.stderr,
        )


# Names of artifacts and of sets of them are targets.
for name, members in [*((name, [name]) for name in contents.names(scale)), *scale.sets.artifacts.items()]:
    if workflow.is_rule(name):
        sys.exit(f"error: config, at artifacts: a rule or an artifact is called {name!r} already; choose another name")

    rule:
        """All files of the table, of the figure, or of all in the set of this name."""
        name:
            name
        input:
            lambda w, members=members: files_of_artifacts(members),

    # for `snakemake --list`
    getattr(rules, name).rule.docstring = "; ".join(scale.artifacts[member].title for member in members)


if workflow.is_main_process:
    refuse_unknown_names()
