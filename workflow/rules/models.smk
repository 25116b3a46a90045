"""Sources: models and text.

REQUIRED INPUTS: the sources named in the configuration
OUTPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}/config.json (of others' training),
         <results>/data/heldout.jsonl, <results>/data/{data}/train.jsonl, <results>/questions/{task} (of the hub)

All that is downloaded is downloaded here.
"""


rule resolve_model:
    """Make a model available as a plain checkpoint and record what it resolved to."""
    output:
        source="<results>/models/{model}/source.json",
    log:
        "<logs>/resolve_model/{model}.log",
    benchmark:
        "<benchmarks>/resolve_model/{model}.tsv"
    params:
        title=untracked(lambda w: scale.models[w.model].title),  # tables take titles from the configuration
        source=lambda w: source_json(scale.models[w.model].source),
        template=lambda w: source_json(scale.models[w.model].chat_template),
        layers=lambda w: scale.models[w.model].num_hidden_layers,
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages resolve_model \
            --name {wildcards.model:q} \
            --title {params.title:q} \
            --source {params.source:q} \
            --chat-template {params.template:q} \
            --num-hidden-layers {params.layers} \
            --output {output.source:q}
        """


rule fetch_checkpoint:
    """Make a SwiftKV checkpoint that others trained available, checked to be of this model and variant."""
    input:
        model="<results>/models/{model}/source.json",
    output:
        "<results>/checkpoints/{model}/{variant}/config.json",
    log:
        "<logs>/fetch_checkpoint/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/fetch_checkpoint/{model}/{variant}.tsv"
    wildcard_constraints:
        variant=variants_with(lambda variant: variant.rewired and not variant.recipe),
    params:
        spec=spec_json,  # first: it refuses a model that names no checkpoint for the variant
        source=lambda w: source_json(scale.models[w.model].checkpoints[w.variant]),
        folder=lambda w, output: folder_of(output[0]),
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages fetch_checkpoint \
            --model-source {input.model:q} \
            --variant {wildcards.variant:q} \
            --source {params.source:q} \
            --spec {params.spec:q} \
            --output {params.folder:q}
        """


rule heldout:
    """Set aside the chats that everything is measured on and nothing is trained on."""
    output:
        chats="<results>/data/heldout.jsonl",
        source="<results>/data/heldout.json",
    log:
        "<logs>/heldout.log",
    benchmark:
        "<benchmarks>/heldout.tsv"
    params:
        sources=lambda w: sources_json(scale.heldout.data),
        chats=scale.heldout.chats,
        seed=scale.heldout.seed,
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages heldout \
            --sources {params.sources:q} \
            --chats {params.chats} \
            --seed {params.seed} \
            --output {output.chats:q} \
            --record {output.source:q}
        """


rule corpus:
    """Gather the training chats of one data mix: all but the held-out ones."""
    input:
        heldout="<results>/data/heldout.jsonl",
    output:
        chats="<results>/data/{data}/train.jsonl",
        source="<results>/data/{data}/source.json",
    log:
        "<logs>/corpus/{data}.log",
    benchmark:
        "<benchmarks>/corpus/{data}.tsv"
    params:
        sources=lambda w: sources_json(w.data),
        seed=lambda w: scale.data[w.data].seed,
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages corpus \
            --sources {params.sources:q} \
            --seed {params.seed} \
            --heldout {input.heldout:q} \
            --output {output.chats:q} \
            --record {output.source:q}
        """


rule fetch_questions:
    """Fetch the questions of a task that come from the hub, for all models."""
    output:
        directory("<results>/questions/{task}"),
    log:
        "<logs>/fetch_questions/{task}.log",
    benchmark:
        "<benchmarks>/fetch_questions/{task}.tsv"
    wildcard_constraints:
        task=pattern(scale.tasks),
    params:
        task=lambda w: json.dumps(questions_of(w)),
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages fetch_questions \
            --task {params.task:q} \
            --output {output:q}
        """
