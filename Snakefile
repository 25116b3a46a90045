"""SwiftKV: every table and figure of the paper, from source models to LaTeX. See README.md and docs/."""

from snakemake.utils import min_version

min_version("9.20")


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/similarity.smk"
include: "workflow/rules/distill.smk"
include: "workflow/rules/score.smk"
include: "workflow/rules/serve.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/serving_tables.smk"
include: "workflow/rules/serving_figures.smk"


localrules:
    all,


rule all:
    """Every table and figure the configuration names."""
    default_target: True
    input:
        expand(
            "<results>/tables/{table}.{format}",
            table=TABLES,
            format=["csv", "tex", "md"],
        ),
        expand(
            "<results>/figures/{figure}.{format}",
            figure=FIGURES,
            format=["pdf", "png", "csv"],
        ),
