"""Self-distillation (Section 3.4).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/data/{data}/train.jsonl
OUTPUTS: <results>/packed/{model}/{recipe}.safetensors, <results>/teacher/{model}/{recipe}.safetensors (if stored),
         <results>/checkpoints/{model}/{variant}, <results>/training/{model}/{variant}.csv
"""


rule pack:
    """Tokenize the chats with the model's template and pack them into rows, each chat attending to itself only."""
    input:
        model="<results>/models/{model}/source.json",
        chats=lambda w: f"<results>/data/{config['recipes'][w.recipe]['data']}/train.jsonl",
    output:
        "<results>/packed/{model}/{recipe}.safetensors",
    log:
        "<logs>/pack/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/pack/{model}/{recipe}.tsv"
    priority: 10
    resources:
        mem_mb=32000,
        runtime="4h",
    params:
        recipe=get_recipe,
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/pack.py \
            --model-source {input.model:q} \
            --data {input.chats:q} \
            --recipe {params.recipe:q} \
            --output {output:q}
        """


rule teacher_states:
    """The teacher's hidden states on the training rows, once for all variants of a model."""
    input:
        model="<results>/models/{model}/source.json",
        data="<results>/packed/{model}/{recipe}.safetensors",
    output:
        "<results>/teacher/{model}/{recipe}.safetensors",
    log:
        "<logs>/teacher_states/{model}/{recipe}.log",
    benchmark:
        "<benchmarks>/teacher_states/{model}/{recipe}.tsv"
    priority: 10
    threads: 1
    resources:
        gpu=get_gpus("score"),
        nodes=1,
        mem_mb=4000,
        runtime="4h",
    params:
        recipe=get_recipe,
        layers=lambda w: cfg.layers_below(config, w.model),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/teacher_states.py \
            --model-source {input.model:q} \
            --recipe {params.recipe:q} \
            --data {input.data:q} \
            --layers {params.layers} \
            --threads {threads} \
            --output {output:q}
        """


def get_teacher_states(w):
    """The stored teacher states, if the recipe asks for them."""
    recipe = get_recipe_name(w)
    if config["recipes"][recipe]["teacher_states"] == "online":
        return []
    return f"<results>/teacher/{w.model}/{recipe}.safetensors"


rule distill:
    """Train the new Q, K and V projections from the model's own logits; resumes from its last state."""
    input:
        model="<results>/models/{model}/source.json",
        data=lambda w: f"<results>/packed/{w.model}/{get_recipe_name(w)}.safetensors",
        teacher=get_teacher_states,
    output:
        checkpoint=directory("<results>/checkpoints/{model}/{variant}"),
        losses="<results>/training/{model}/{variant}.csv",
    log:
        "<logs>/distill/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/distill/{model}/{variant}.tsv"
    priority: 10
    threads: 1
    resources:
        gpu=get_gpus("distill"),
        nodes=lambda w: config["models"][w.model]["nodes"]["distill"],
        mem_mb=lambda w: (
            3500 if config["models"][w.model]["gpus"]["distill"] == 0 else 900_000
        ),
        runtime="24h",
    params:
        launcher=get_launcher,
        spec=get_spec,
        recipe=get_recipe,
        teacher=lambda w, input: (
            f"--teacher-states {input.teacher}" if input.teacher else ""
        ),
        # Not an output: Snakemake would delete the progress of a job that was killed.
        state=lambda w: f"{config['pathvars']['results']}/training-state/{w.model}/{w.variant}",
    shell:
        """
        exec &> >(tee {log:q})
        {params.launcher} workflow/scripts/distill.py \
            --model-source {input.model:q} \
            --spec {params.spec:q} \
            --recipe {params.recipe:q} \
            --data {input.data:q} \
            {params.teacher} \
            --state-dir {params.state:q} \
            --threads {threads} \
            --checkpoint {output.checkpoint:q} \
            --loss-log {output.losses:q}
        """
