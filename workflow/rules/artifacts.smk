"""Tables and figures: one rule each, for every entry of artifacts.yaml.

REQUIRED INPUTS: what the entry's kind needs (src/swiftkv/artifacts/kinds/), resources/paper/*.csv
OUTPUTS: <results>/tables/{artifact}.{csv,tex,md,html}, <results>/figures/{artifact}.{pdf,png,csv}
"""


localrules:
    table,
    figure,


rule table:
    """One table of the contents page; a pure function of its entry and its measurement files."""
    input:
        unpack(files_of_artifact),
    output:
        csv="<results>/tables/{artifact}.csv",
        tex="<results>/tables/{artifact}.tex",
        md="<results>/tables/{artifact}.md",
        html=report(
            "<results>/tables/{artifact}.html",
            caption="../report/artifact.rst",
            category=section_of_artifact,
            labels=labels_of_artifact,
        ),
    log:
        "<logs>/tables/{artifact}.log",
    benchmark:
        "<benchmarks>/tables/{artifact}.tsv"
    wildcard_constraints:
        artifact=contents.pattern(scale, "table"),
    params:
        entry=entry_json,
        files=lambda w: json.dumps(files_of_artifact(w)),
    shell:
        """
        exec &> >(tee {log:q})
        python -m swiftkv.stages table \
            --entry {params.entry:q} \
            --files {params.files:q} \
            --output {output:q}
        """


use rule table as figure with:
    # One figure of the contents page, made as a table is.
    output:
        pdf="<results>/figures/{artifact}.pdf",
        png=report(
            "<results>/figures/{artifact}.png",
            caption="../report/artifact.rst",
            category=section_of_artifact,
            labels=labels_of_artifact,
        ),
        csv="<results>/figures/{artifact}.csv",
    log:
        "<logs>/figures/{artifact}.log",
    benchmark:
        "<benchmarks>/figures/{artifact}.tsv"
    wildcard_constraints:
        artifact=contents.pattern(scale, "figure"),
