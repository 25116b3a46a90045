"""Self-distillation (Section 3.4), and fine-tuning of a model as it is (Appendix D).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/data/{data}/train.jsonl
OUTPUTS: <results>/packed/{model}/{recipe}.safetensors, <results>/teacher/{model}/{recipe}.safetensors (if stored),
         <results>/moments/{model}/{recipe}.safetensors (for a fitted start),
         <results>/checkpoints/{model}/{variant}/{config.json,README.md}, <results>/training/{model}/{variant}.{csv,json}

Recipes with equal settings for a file share it; it has the name of the first of them.
"""


localrules:
    model_card,


rule pack:
    """Tokenize the chats with the model's template and pack them into rows, each chat attending to itself only."""
    input:
        model="<results>/models/{model}/source.json",
        chats=lambda w: f"<results>/data/{scale.recipe(w.model, w.recipe).data}/train.jsonl",
    output:
        "<results>/packed/{model}/{recipe}.safetensors",
    log:
        "<logs>/pack/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/pack/{model}/{recipe}.tsv"
    priority: 10
    params:
        recipe=lambda w: recipe_json(w, PackingSettings),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages pack \
            --model-source {input.model:q} \
            --data {input.chats:q} \
            --recipe {params.recipe:q} \
            --output {output:q}
        """


rule teacher_states:
    """The teacher's hidden states on the training rows, once for all variants of a model."""
    input:
        model="<results>/models/{model}/source.json",
        data=packed_rows,
    output:
        "<results>/teacher/{model}/{recipe}.safetensors",
    log:
        "<logs>/teacher_states/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/teacher_states/{model}/{recipe}.tsv"
    priority: priority_or_exit("score", 10)
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        recipe=lambda w: recipe_json(w, ForwardSettings),
        layers=lambda w: scale.stored_layers(w.model, w.recipe),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages teacher_states \
            --model-source {input.model:q} \
            --recipe {params.recipe:q} \
            --data {input.data:q} \
            --layers {params.layers} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """


rule moments:
    """Regressions to the teacher's keys and values that starts are fitted by, for every l of variants with the recipe."""
    input:
        model="<results>/models/{model}/source.json",
        data=packed_rows,
    output:
        "<results>/moments/{model}/{recipe}.safetensors",
    log:
        "<logs>/moments/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/moments/{model}/{recipe}.tsv"
    priority: priority_or_exit("score", 10)
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        recipe=lambda w: recipe_json(w, FitSettings),
        layers=lambda w: scale.fitted_layers(w.model, w.recipe),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages moments \
            --model-source {input.model:q} \
            --recipe {params.recipe:q} \
            --data {input.data:q} \
            --layers {params.layers} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """


rule distill:
    """Train a variant, as a rule its new projections from the model's own logits; resumes from its last state."""
    input:
        model="<results>/models/{model}/source.json",
        data=packed_rows,
        teacher=teacher_states_file,
        moments=moments_file,
    output:
        checkpoint="<results>/checkpoints/{model}/{variant}/config.json",
        losses="<results>/training/{model}/{variant}.csv",
        record="<results>/training/{model}/{variant}.json",
    log:
        "<logs>/distill/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/distill/{model}/{variant}.tsv"
    wildcard_constraints:
        variant=variants_with(lambda variant: variant.recipe),
    priority: priority_or_exit("distill", 10)
    container:
        training_image
    threads: 1
    resources:
        **on_gpus("distill"),
    params:
        gpus=number_of_gpus,
        checkpoint=lambda w, output: folder_of(output.checkpoint),
        launcher=launcher,
        spec=spec_json,
        recipe=lambda w: recipe_json(w, WeightSettings),
        runtime_settings=untracked(lambda w: recipe_json(w, Recipe, beyond=WeightSettings)),
        minutes=lambda w, resources: resources.get("runtime", []),
        # Not an output: Snakemake would delete the progress of a job that was killed.
        state=lambda w: f"{scale.pathvars.results}/training-state/{w.model}/{w.variant}",
    shell:
        """
        exec &> >(tee {log:q})
        {params.launcher} -m pipeline.stages distill \
            --model-source {input.model:q} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --recipe {params.recipe:q} \
            --runtime-settings {params.runtime_settings:q} \
            --data {input.data:q} \
            --teacher-states {input.teacher:q} \
            --moments {input.moments:q} \
            --state-dir {params.state:q} \
            --minutes {params.minutes} \
            --threads {threads} \
            --gpus $(({params.gpus} / {resources.nodes})) \
            --checkpoint {params.checkpoint:q} \
            --loss-log {output.losses:q} \
            --record {output.record:q}
        """


rule model_card:
    """Add to the model card of a trained checkpoint, which its training wrote, its closeness to the base model."""
    input:
        training="<results>/training/{model}/{variant}.json",
        fidelity="<results>/fidelity/{model}/{variant}/auto.json",
    output:
        "<results>/checkpoints/{model}/{variant}/README.md",
    log:
        "<logs>/model_card/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/model_card/{model}/{variant}.tsv"
    wildcard_constraints:
        variant=variants_with(lambda variant: variant.recipe),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages model_card \
            --training {input.training:q} \
            --fidelity {input.fidelity:q} \
            --output {output:q}
        """
