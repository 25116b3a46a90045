"""How much a prompt's text lowers the bits of the answer, for trained variants and for untrained families.

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/data/{data}/train.jsonl, and of a trained variant
                 <results>/checkpoints/{model}/{variant}/config.json, of the fitted family <results>/packed/{model}/{recipe}.safetensors
OUTPUTS: <results>/reading/{model}/{variant}.json (copied, fitted: the families),
         <results>/reading/{model}/{recipe}.safetensors (regressions of the fitted family)
"""


rule evaluate_reading:
    """Bits that a passage saves on answers, of a variant or of all members of a family, and of the unchanged model."""
    input:
        model="<results>/models/{model}/source.json",
        questions=f"<results>/data/{scale.reading.data}/train.jsonl",
        moments=lambda w: (
            f"<results>/reading/{w.model}/{scale.reading.fit}.safetensors" if w.variant == "fitted" else []
        ),
        checkpoint=of_family(lambda w: [], checkpoint_file),
    output:
        "<results>/reading/{model}/{variant}.json",
    log:
        "<logs>/evaluate_reading/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/evaluate_reading/{model}/{variant}.tsv"
    wildcard_constraints:
        variant=pattern([*FAMILIES, *(name for name, variant in scale.variants.items() if variant.rewired)]),
    priority: priority_or_exit("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        checkpoint=lambda w, input: folder_of(input.checkpoint),
        spec=of_family(lambda w: "null", spec_json),
        layers=of_family(lambda w: scale.reading_layers(w.model), lambda w: []),
        settings=scale.reading.model_dump_json(include=set(Prompts.model_fields)),
        state=answers_folder,
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages evaluate_reading \
            --model-source {input.model:q} \
            --questions {input.questions:q} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --layers {params.layers} \
            --moments {input.moments:q} \
            --checkpoint {params.checkpoint:q} \
            --settings {params.settings:q} \
            --state {params.state:q} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """


use rule moments as reading_moments with:
    # The regressions for every l of the fitted family, which no training starts from.
    output:
        "<results>/reading/{model}/{recipe}.safetensors",
    log:
        "<logs>/reading_moments/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/reading_moments/{model}/{recipe}.tsv"
    params:
        layers=lambda w: scale.reading_layers(w.model),
