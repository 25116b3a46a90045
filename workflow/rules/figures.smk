"""Figures as PDF, PNG and the plotted CSV.

REQUIRED INPUTS: <results>/similarity/{model}.json
OUTPUTS: <results>/figures/*.{pdf,png,csv}
"""


localrules:
    figure2_left,
    figureA1,


def get_similarity(name, group="models"):
    return expand(
        "<results>/similarity/{model}.json", model=artifact(name).get(group, [])
    )


rule figure2_left:
    """SimScore of every layer's input, for several models (Figure 2, left)."""
    input:
        similarity=get_similarity("figure2_left"),
    output:
        pdf="<results>/figures/figure2_left.pdf",
        png=report(
            "<results>/figures/figure2_left.png",
            caption="../report/figure2_left.rst",
            category="Figures",
            labels={"paper": "Figure 2, left"},
        ),
        csv="<results>/figures/figure2_left.csv",
    log:
        "<logs>/figure2_left.log",
    benchmark:
        "<benchmarks>/figure2_left.tsv"
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figure2_left.py \
            --similarity {input.similarity:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """


rule figureA1:
    """SimScore of smaller and larger models, and every pair of layers (Figure A.1)."""
    input:
        similarity=get_similarity("figureA1"),
        large=get_similarity("figureA1", "large_models"),
    output:
        pdf="<results>/figures/figureA1.pdf",
        png=report(
            "<results>/figures/figureA1.png",
            caption="../report/figureA1.rst",
            category="Figures",
            labels={"paper": "Figure A.1"},
        ),
        csv="<results>/figures/figureA1.csv",
    log:
        "<logs>/figureA1.log",
    benchmark:
        "<benchmarks>/figureA1.tsv"
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/figureA1.py \
            --similarity {input.similarity:q} \
            --large {input.large:q} \
            --output-pdf {output.pdf:q} \
            --output-png {output.png:q} \
            --output-csv {output.csv:q}
        """
