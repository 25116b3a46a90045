"""SwiftKV: every table and figure of the paper, from source models to LaTeX. See README.md and docs/."""

from snakemake.utils import min_version

min_version("9.20")
# This file's folder, also where workflow/Snakefile includes it
PROJECT = os.fspath(workflow.current_basedir)


# As pipeline.config.FILES
configfile: f"{PROJECT}/config.yaml"
configfile: f"{PROJECT}/config/beyond.yaml"
configfile: f"{PROJECT}/config/planning.yaml"
configfile: f"{PROJECT}/artifacts.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/software.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/similarity.smk"
include: "workflow/rules/distill.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/reading.smk"
include: "workflow/rules/serve.smk"
include: "workflow/rules/artifacts.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/targets.smk"


onstart:
    refuse_what_cannot_run()


onsuccess:
    say_where_results_are()


localrules:
    all,


rule all:
    """Every table and figure of artifacts.yaml that this scale has a model for, and the report on them."""
    default_target: True
    input:
        every_artifact,
        "<results>/report.html",
