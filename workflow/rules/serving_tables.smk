"""Serving tables as CSV, LaTeX and Markdown, and what all serving artifacts show.

REQUIRED INPUTS: <results>/serving/{point}/{model}/{variant}/{kv_cache}.json, resources/paper/*.csv
OUTPUTS: <results>/tables/{table5,blog_table1,kv_capacity}.{csv,tex,md}
"""


localrules:
    table5,
    blog_table1,
    kv_capacity_table,


def get_cases(name):
    """The (variant, KV-cache format) pairs of a serving artifact, in its order."""
    entry = artifact(name)
    formats = entry.get("kv_caches", ["auto"])
    cases = [[variant, kv] for variant in entry.get("variants", []) for kv in formats]
    return cases + [[variant, "fp8"] for variant in entry.get("fp8_variants", [])]


def get_serving(name):
    """Every serving record an artifact shows."""
    entry = artifact(name)
    return [
        f"<results>/serving/{point}/{model}/{variant}/{kv_cache}.json"
        for model in entry.get("models", [])
        for point in entry.get("points", [])
        for variant, kv_cache in get_cases(name)
    ]


def get_shown(name):
    """The arguments that say what a serving artifact shows, and in which order."""
    entry = artifact(name)
    models = {
        model: config["models"][model].get("published", model)
        for model in entry["models"]
    }
    words = ["--models", json.dumps(models), "--points", json.dumps(entry["points"])]
    return shlex.join([*words, "--cases", json.dumps(get_cases(name))])


rule table5:
    """Throughput under memory limits (Table 5)."""
    input:
        records=get_serving("table5"),
        published="resources/paper/table5.csv",
    output:
        csv="<results>/tables/table5.csv",
        tex="<results>/tables/table5.tex",
        md=report(
            "<results>/tables/table5.md",
            caption="../report/table5.rst",
            category="Tables",
            labels={"paper": "Table 5"},
        ),
    log:
        "<logs>/table5.log",
    benchmark:
        "<benchmarks>/table5.tsv"
    params:
        shown=lambda w: get_shown("table5"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/table5.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule blog_table1:
    """Throughput with less compute against throughput with less memory (blog, Table 1)."""
    input:
        records=get_serving("blog_table1"),
        published="resources/paper/blog_table1.csv",
    output:
        csv="<results>/tables/blog_table1.csv",
        tex="<results>/tables/blog_table1.tex",
        md=report(
            "<results>/tables/blog_table1.md",
            caption="../report/blog_table1.rst",
            category="Tables",
            labels={"paper": "Blog, Table 1"},
        ),
    log:
        "<logs>/blog_table1.log",
    benchmark:
        "<benchmarks>/blog_table1.tsv"
    params:
        shown=lambda w: get_shown("blog_table1"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_table1.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """


rule kv_capacity_table:
    """Tokens that fit into the KV cache, by variant and KV-cache format."""
    input:
        records=get_serving("kv_capacity"),
    output:
        csv="<results>/tables/kv_capacity.csv",
        tex="<results>/tables/kv_capacity.tex",
        md=report(
            "<results>/tables/kv_capacity.md",
            caption="../report/kv_capacity.rst",
            category="Tables",
            labels={"paper": "KV capacity (not in the paper)"},
        ),
    log:
        "<logs>/kv_capacity_table.log",
    benchmark:
        "<benchmarks>/kv_capacity_table.tsv"
    params:
        shown=lambda w: get_shown("kv_capacity"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/kv_capacity_table.py \
            --records {input.records:q} \
            {params.shown} \
            --output-csv {output.csv:q} \
            --output-tex {output.tex:q} \
            --output-md {output.md:q}
        """
