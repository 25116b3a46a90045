"""Sources: models and text.

REQUIRED INPUTS: the sources named in the configuration
OUTPUTS: <results>/models/{model}/source.json, <results>/data/{data}/{train,heldout}.jsonl
"""


rule resolve_model:
    """Make a model available as a plain checkpoint and record what it resolved to."""
    output:
        source="<results>/models/{model}/source.json",
    log:
        "<logs>/resolve_model/{model}.log",
    benchmark:
        "<benchmarks>/resolve_model/{model}.tsv"
    resources:
        mem_mb=4000,
        runtime="4h",
    params:
        title=lambda w: config["models"][w.model]["title"],
        source=lambda w: json.dumps(config["models"][w.model]["source"]),
        layers=lambda w: config["models"][w.model]["num_hidden_layers"],
        folder=lambda w, output: f"{os.path.dirname(output.source)}/base",
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/resolve_model.py \
            --name {wildcards.model:q} \
            --title {params.title:q} \
            --source {params.source:q} \
            --num-hidden-layers {params.layers} \
            --folder {params.folder:q} \
            --output {output.source:q}
        """


rule corpus:
    """Gather the chats of one data mixture and set some aside for measuring."""
    output:
        train="<results>/data/{data}/train.jsonl",
        heldout="<results>/data/{data}/heldout.jsonl",
        source="<results>/data/{data}/source.json",
    log:
        "<logs>/corpus/{data}.log",
    benchmark:
        "<benchmarks>/corpus/{data}.tsv"
    resources:
        mem_mb=16000,
        runtime="4h",
    params:
        sources=lambda w: json.dumps(config["data"][w.data]["sources"]),
        heldout=lambda w: config["data"][w.data]["heldout"],
        seed=lambda w: config["data"][w.data]["seed"],
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/corpus.py \
            --sources {params.sources:q} \
            --heldout {params.heldout} \
            --seed {params.seed} \
            --output-train {output.train:q} \
            --output-heldout {output.heldout:q} \
            --output-source {output.source:q}
        """
