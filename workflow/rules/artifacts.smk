"""Tables and figures: one rule each, for every entry of artifacts.yaml.

REQUIRED INPUTS: what the entry's columns or kind need (workflow/pipeline/artifacts/entry.py), resources/paper/*.csv
OUTPUTS: <results>/tables/{artifact}.{csv,tex,md,html,json}, <results>/figures/{artifact}.{pdf,png,svg,csv,json},
    <results>/report.html, <results>/gallery.md
"""


localrules:
    table,
    figure,
    report_page,


rule table:
    """One table of the contents page; a pure function of its entry and its measurement files."""
    input:
        unpack(files_of_artifact),
    output:
        csv="<results>/tables/{artifact}.csv",
        tex="<results>/tables/{artifact}.tex",
        md="<results>/tables/{artifact}.md",
        html=in_report("<results>/tables/{artifact}.html"),
        json="<results>/tables/{artifact}.json",
    log:
        "<logs>/tables/{artifact}.log",
    benchmark:
        "<benchmarks>/tables/{artifact}.tsv"
    wildcard_constraints:
        artifact=contents.pattern(scale, "table"),
    priority: 20  # what needs no measurement comes first
    params:
        entry=entry_json,
        files=lambda w: json.dumps(files_of_artifact(w)),
        drawing=DRAWING,  # another way to draw draws anew
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages table \
            --entry {params.entry:q} \
            --files {params.files:q} \
            --output {output:q}
        """


use rule table as figure with:
    # One figure of the contents page, made as a table is.
    output:
        pdf="<results>/figures/{artifact}.pdf",
        png=in_report("<results>/figures/{artifact}.png"),
        svg="<results>/figures/{artifact}.svg",
        csv="<results>/figures/{artifact}.csv",
        json="<results>/figures/{artifact}.json",
    log:
        "<logs>/figures/{artifact}.log",
    benchmark:
        "<benchmarks>/figures/{artifact}.tsv"
    wildcard_constraints:
        artifact=contents.pattern(scale, "figure"),


rule report_page:
    """One page with everything that was made, and a gallery of the figures."""
    input:
        lambda w: [file for file in files_of_artifacts(contents.standard(scale)) if file.endswith(".json")],  # written with the others
    output:
        page="<results>/report.html",
        gallery="<results>/gallery.md",
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.tsv"
    params:
        results=lambda w, output: os.path.dirname(output.page),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages report_page \
            --results {params.results:q} \
            --page {output.page:q} \
            --gallery {output.gallery:q}
        """
