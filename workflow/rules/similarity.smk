"""Similarity of layer inputs (Section 3.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/data/{data}/train.jsonl
OUTPUTS: <results>/similarity/{model}.json
"""


rule similarity:
    """Average cosine similarity between the inputs of all pairs of layers, and SimScore (Eq. 1)."""
    input:
        model="<results>/models/{model}/source.json",
        chats=f"<results>/data/{scale.similarity.data}/train.jsonl",
    output:
        "<results>/similarity/{model}.json",
    log:
        "<logs>/similarity/{model}.log",
    benchmark:
        "<benchmarks>/similarity/{model}.tsv"
    priority: priority_or_exit("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        settings=scale.similarity.model_dump_json(exclude={"data"}),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages similarity \
            --model-source {input.model:q} \
            --data {input.chats:q} \
            --settings {params.settings:q} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """
