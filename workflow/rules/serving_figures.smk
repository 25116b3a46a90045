"""Serving figures as PDF, PNG and the plotted CSV.

REQUIRED INPUTS: <results>/serving/{point}/{model}/{variant}/{kv_cache}.json, <results>/similarity/{model}.json,
                 resources/paper/serving_claims.csv
OUTPUTS: <results>/figures/*.{pdf,png,csv}
"""


localrules:
    figure2,
    figure3,
    figure4,
    figureB1,
    blog_figure3,
    blog_figure4,
    blog_figure5,
    blog_figure6,
    blog_figure7,


rule figure2:
    """SimScore of several models, and the time of a forward pass over batch sizes (Figure 2)."""
    input:
        similarity=get_similarity("figure2_left"),
        records=get_serving("figure2"),
    output:
        pdf="<results>/figures/figure2.pdf",
        png=report(
            "<results>/figures/figure2.png",
            caption="../report/figure2.rst",
            category="Figures",
            labels={"paper": "Figure 2"},
        ),
        csv="<results>/figures/figure2.csv",
    log:
        "<logs>/figure2.log",
    benchmark:
        "<benchmarks>/figure2.tsv"
    params:
        shown=lambda w: get_shown("figure2"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figure2.py \
            --similarity {input.similarity:q} \
            --records {input.records:q} \
            {params.shown} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule figure3:
    """Combined throughput and normalized TFLOP/s by input length (Figure 3)."""
    input:
        records=get_serving("figure3"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/figure3.pdf",
        png=report(
            "<results>/figures/figure3.png",
            caption="../report/figure3.rst",
            category="Figures",
            labels={"paper": "Figure 3"},
        ),
        csv="<results>/figures/figure3.csv",
    log:
        "<logs>/figure3.log",
    benchmark:
        "<benchmarks>/figure3.tsv"
    params:
        shown=lambda w: get_shown("figure3"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figure3.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule figure4:
    """Latency of the 70B model by request rate (Figure 4)."""
    input:
        records=get_serving("figure4"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/figure4.pdf",
        png=report(
            "<results>/figures/figure4.png",
            caption="../report/figure4.rst",
            category="Figures",
            labels={"paper": "Figure 4"},
        ),
        csv="<results>/figures/figure4.csv",
    log:
        "<logs>/figure4.log",
    benchmark:
        "<benchmarks>/figure4.tsv"
    params:
        shown=lambda w: get_shown("figure4"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figure4.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule figureB1:
    """Latency of the 8B model by request rate (Figure B.1)."""
    input:
        records=get_serving("figureB1"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/figureB1.pdf",
        png=report(
            "<results>/figures/figureB1.png",
            caption="../report/figureB1.rst",
            category="Figures",
            labels={"paper": "Figure B.1"},
        ),
        csv="<results>/figures/figureB1.csv",
    log:
        "<logs>/figureB1.log",
    benchmark:
        "<benchmarks>/figureB1.tsv"
    params:
        shown=lambda w: get_shown("figureB1"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figureB1.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule blog_figure3:
    """Throughput of a node of GPUs by input length (blog, Figure 3)."""
    input:
        records=get_serving("blog_figure3"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/blog_figure3.pdf",
        png=report(
            "<results>/figures/blog_figure3.png",
            caption="../report/blog_figure3.rst",
            category="Figures",
            labels={"paper": "Blog, Figure 3"},
        ),
        csv="<results>/figures/blog_figure3.csv",
    log:
        "<logs>/blog_figure3.log",
    benchmark:
        "<benchmarks>/blog_figure3.tsv"
    params:
        shown=lambda w: get_shown("blog_figure3"),
        node_gpus=lambda w: artifact("blog_figure3")["node_gpus"],
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_figure3.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --node-gpus {params.node_gpus} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule blog_figure4:
    """Throughput of a node of GPUs with FP8 weights (blog, Figure 4)."""
    input:
        records=get_serving("blog_figure4"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/blog_figure4.pdf",
        png=report(
            "<results>/figures/blog_figure4.png",
            caption="../report/blog_figure4.rst",
            category="Figures",
            labels={"paper": "Blog, Figure 4"},
        ),
        csv="<results>/figures/blog_figure4.csv",
    log:
        "<logs>/blog_figure4.log",
    benchmark:
        "<benchmarks>/blog_figure4.tsv"
    params:
        shown=lambda w: get_shown("blog_figure4"),
        node_gpus=lambda w: artifact("blog_figure4")["node_gpus"],
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_figure4.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --node-gpus {params.node_gpus} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule blog_figure5:
    """Latency of the 70B model by request rate (blog, Figure 5)."""
    input:
        records=get_serving("blog_figure5"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/blog_figure5.pdf",
        png=report(
            "<results>/figures/blog_figure5.png",
            caption="../report/blog_figure5.rst",
            category="Figures",
            labels={"paper": "Blog, Figure 5"},
        ),
        csv="<results>/figures/blog_figure5.csv",
    log:
        "<logs>/blog_figure5.log",
    benchmark:
        "<benchmarks>/blog_figure5.tsv"
    params:
        shown=lambda w: get_shown("blog_figure5"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_figure5.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule blog_figure6:
    """Latency of the 405B model by request rate (blog, Figure 6)."""
    input:
        records=get_serving("blog_figure6"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/blog_figure6.pdf",
        png=report(
            "<results>/figures/blog_figure6.png",
            caption="../report/blog_figure6.rst",
            category="Figures",
            labels={"paper": "Blog, Figure 6"},
        ),
        csv="<results>/figures/blog_figure6.csv",
    log:
        "<logs>/blog_figure6.log",
    benchmark:
        "<benchmarks>/blog_figure6.tsv"
    params:
        shown=lambda w: get_shown("blog_figure6"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_figure6.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule blog_figure7:
    """Latency without and with n-gram speculation (blog, Figure 7)."""
    input:
        records=get_serving("blog_figure7"),
        published="resources/paper/serving_claims.csv",
    output:
        pdf="<results>/figures/blog_figure7.pdf",
        png=report(
            "<results>/figures/blog_figure7.png",
            caption="../report/blog_figure7.rst",
            category="Figures",
            labels={"paper": "Blog, Figure 7"},
        ),
        csv="<results>/figures/blog_figure7.csv",
    log:
        "<logs>/blog_figure7.log",
    benchmark:
        "<benchmarks>/blog_figure7.tsv"
    params:
        shown=lambda w: get_shown("blog_figure7"),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/blog_figure7.py \
            --records {input.records:q} \
            {params.shown} \
            --published {input.published:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """
