"""Tables as CSV, LaTeX and Markdown: pure functions of the measurement files.

REQUIRED INPUTS: <results>/{cost,scores,fidelity}/..., resources/paper/*.csv
OUTPUTS: <results>/cost/{artifact}.json, <results>/tables/*.{csv,tex,md}
"""


localrules:
    cost,
    table1,
    blog_table2,
    table2,
    table7,
    tableB1,


def artifact(name):
    """The configuration entry of an artifact; an empty one where a scale does not make it."""
    return config["artifacts"].get(name, {})


def get_dimensions(w):
    """What the cost model reads: the model's public dimensions, or else the resolved model."""
    model = artifact(w.artifact)["model"]
    return config["models"][model].get(
        "architecture", f"<results>/models/{model}/source.json"
    )


def get_scores(name):
    """Every score an artifact shows."""
    entry = artifact(name)
    return expand(
        "<results>/scores/{model}/{variant}/{kv_cache}/{task}.json",
        model=entry.get("model", []),
        variant=entry.get("variants", []),
        kv_cache=entry.get("kv_caches", ["auto"]),
        task=entry.get("tasks", []),
    )


def get_fidelity(name):
    """Every fidelity measurement an artifact shows."""
    entry = artifact(name)
    return expand(
        "<results>/fidelity/{model}/{variant}/{kv_cache}.json",
        model=entry.get("model", []),
        variant=entry.get("variants", []),
        kv_cache=entry.get("kv_caches", ["auto"]),
    )


def get_tasks(name):
    """The tasks of an artifact in its order, as JSON."""
    return json.dumps(
        {task: config["tasks"][task] for task in artifact(name).get("tasks", [])}
    )


rule cost:
    """FLOPs per prefill token and KV bytes per token of every variant an artifact shows."""
    input:
        dimensions=get_dimensions,
    output:
        "<results>/cost/{artifact}.json",
    log:
        "<logs>/cost/{artifact}.log",
    benchmark:
        "<benchmarks>/cost/{artifact}.tsv"
    params:
        kind=lambda w, input: (
            "--model-source"
            if input.dimensions.endswith("source.json")
            else "--architecture"
        ),
        name=lambda w: artifact(w.artifact)["model"],
        title=lambda w: config["models"][artifact(w.artifact)["model"]]["title"],
        specs=lambda w: get_specs(w.artifact),
        sequence_length=lambda w: artifact(w.artifact)["sequence_length"],
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/cost.py \
            {params.kind} {input.dimensions:q} \
            --name {params.name:q} \
            --title {params.title:q} \
            --specs {params.specs:q} \
            --sequence-length {params.sequence_length} \
            --output {output:q}
        """


rule table1:
    """FLOPs per prefill token by operation (Table 1)."""
    input:
        cost="<results>/cost/table1.json",
        published="resources/paper/table1.csv",
    output:
        csv="<results>/tables/table1.csv",
        tex="<results>/tables/table1.tex",
        md=report(
            "<results>/tables/table1.md",
            caption="../report/table1.rst",
            category="Tables",
            labels={"paper": "Table 1"},
        ),
    log:
        "<logs>/table1.log",
    benchmark:
        "<benchmarks>/table1.tsv"
    params:
        published_model=lambda w: config["models"][artifact("table1")["model"]].get(
            "published", artifact("table1")["model"]
        ),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/table1.py \
            --cost {input.cost:q} \
            --published {input.published:q} \
            --published-model {params.published_model:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule blog_table2:
    """FLOPs per prefill token with Q, K, V and O apart (blog, Table 2)."""
    input:
        cost="<results>/cost/blog_table2.json",
        published="resources/paper/blog_table2.csv",
    output:
        csv="<results>/tables/blog_table2.csv",
        tex="<results>/tables/blog_table2.tex",
        md=report(
            "<results>/tables/blog_table2.md",
            caption="../report/blog_table2.rst",
            category="Tables",
            labels={"paper": "Blog, Table 2"},
        ),
    log:
        "<logs>/blog_table2.log",
    benchmark:
        "<benchmarks>/blog_table2.tsv"
    params:
        published_model=lambda w: config["models"][
            artifact("blog_table2")["model"]
        ].get("published", artifact("blog_table2")["model"]),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_table2.py \
            --cost {input.cost:q} \
            --published {input.published:q} \
            --published-model {params.published_model:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule table2:
    """Quality of every variant on every benchmark, and its fidelity to the teacher (Table 2)."""
    input:
        scores=get_scores("table2"),
        fidelity=get_fidelity("table2"),
        published=expand(
            "resources/paper/table{number}.csv",
            number=["2", "3", "B2", "B3", "B4", "B5"],
        ),
    output:
        csv="<results>/tables/table2.csv",
        tex="<results>/tables/table2.tex",
        md=report(
            "<results>/tables/table2.md",
            caption="../report/table2.rst",
            category="Tables",
            labels={"paper": "Table 2"},
        ),
    log:
        "<logs>/table2.log",
    benchmark:
        "<benchmarks>/table2.tsv"
    params:
        variants=json.dumps(artifact("table2").get("variants", [])),
        tasks=lambda w: get_tasks("table2"),
        published_model=lambda w: config["models"][artifact("table2")["model"]].get(
            "published", artifact("table2")["model"]
        ),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/table2.py \
            --scores {input.scores:q} \
            --fidelity {input.fidelity:q} \
            --variants {params.variants:q} \
            --tasks {params.tasks:q} \
            --published {input.published:q} \
            --published-model {params.published_model:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule table7:
    """Quality with the KV cache in FP8 (Table 7)."""
    input:
        scores=get_scores("table7"),
        fidelity=get_fidelity("table7"),
        published="resources/paper/table7.csv",
    output:
        csv="<results>/tables/table7.csv",
        tex="<results>/tables/table7.tex",
        md=report(
            "<results>/tables/table7.md",
            caption="../report/table7.rst",
            category="Tables",
            labels={"paper": "Table 7"},
        ),
    log:
        "<logs>/table7.log",
    benchmark:
        "<benchmarks>/table7.tsv"
    params:
        variants=json.dumps(artifact("table7").get("variants", [])),
        tasks=lambda w: get_tasks("table7"),
        published_model=lambda w: config["models"][artifact("table7")["model"]].get(
            "published", artifact("table7")["model"]
        ),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/table7.py \
            --scores {input.scores:q} \
            --fidelity {input.fidelity:q} \
            --variants {params.variants:q} \
            --tasks {params.tasks:q} \
            --published {input.published:q} \
            --published-model {params.published_model:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule tableB1:
    """How each benchmark was run, beside the paper's settings (Table B.1)."""
    input:
        scores=get_scores("tableB1"),
        published="resources/paper/tableB1.csv",
    output:
        csv="<results>/tables/tableB1.csv",
        tex="<results>/tables/tableB1.tex",
        md=report(
            "<results>/tables/tableB1.md",
            caption="../report/tableB1.rst",
            category="Tables",
            labels={"paper": "Table B.1"},
        ),
    log:
        "<logs>/tableB1.log",
    benchmark:
        "<benchmarks>/tableB1.tsv"
    params:
        tasks=lambda w: get_tasks("tableB1"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/tableB1.py \
            --scores {input.scores:q} \
            --tasks {params.tasks:q} \
            --published {input.published:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """
