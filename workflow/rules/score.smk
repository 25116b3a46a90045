"""Quality: benchmark accuracy (Table B.1), and fidelity to the teacher.

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}/config.json,
                 <results>/questions/{task} (of the hub), <results>/data/heldout.jsonl,
                 <results>/moments/{model}/{recipe}.safetensors (of fitted starts)
OUTPUTS: <results>/scores/{model}/{variant}/{kv_cache}/{task}.json, <results>/fidelity/{model}/{variant}/{kv_cache}.json,
         <results>/early_exit/{model}/{variant}.json
"""

SCORED = variants_with(lambda variant: not variant.merge_all_layers)  # which is served only

# Small tasks take less time than a start of the model, so one job may score several: the sets of scoring.together.
for group in [None, *scale.scoring.together]:
    scored = group or "{task}"

    rule:
        """Scores of one variant on one benchmark, or on a set of them, with lm-eval."""
        name:
            f"score_{group}" if group else "score"
        input:
            model="<results>/models/{model}/source.json",
            checkpoint=checkpoint_file,
            questions=lambda w, group=group: question_folders(w, group),
        output:
            expand(
                "<results>/scores/{{model}}/{{variant}}/{{kv_cache}}/{task}.json",
                task=scale.sets.tasks.get(group, scored),
            ),
        log:
            run=f"<logs>/score/{{model}}/{{variant}}/{{kv_cache}}/{scored}.log",
            engine=f"<logs>/score/{{model}}/{{variant}}/{{kv_cache}}/{scored}.vllm.log",
        benchmark:
            f"<benchmarks>/score/{{model}}/{{variant}}/{{kv_cache}}/{scored}.tsv"
        wildcard_constraints:
            variant=SCORED,
        priority: priority_or_exit("score")
        threads: 1
        resources:
            **on_gpus("score"),
        params:
            gpus=number_of_gpus,
            checkpoint=lambda w, input: folder_of(input.checkpoint),
            spec=spec_json,
            tasks=lambda w, group=group: tasks_json(w, group),
            seed=scale.scoring.seed,
            state=answers_folder,
        shell:
            """
            exec &> >(tee {log.run:q})
            python -m pipeline.stages score \
                --model-source {input.model:q} \
                --checkpoint {params.checkpoint:q} \
                --variant {wildcards.variant:q} \
                --spec {params.spec:q} \
                --kv-cache {wildcards.kv_cache} \
                --tasks {params.tasks:q} \
                --fetched {input.questions:q} \
                --seed {params.seed} \
                --threads {threads} \
                --gpus {params.gpus} \
                --engine-log {log.engine:q} \
                --state {params.state:q} \
                --outputs {output:q}
            """


rule fidelity:
    """KL to the teacher, top-1 agreement and perplexity on held-out chats, before and after training."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=checkpoint_file,
        moments=moments_file,
        chats="<results>/data/heldout.jsonl",
    output:
        "<results>/fidelity/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/fidelity/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/fidelity/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        variant=SCORED,
    priority: priority_or_exit("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        checkpoint=lambda w, input: folder_of(input.checkpoint),
        spec=spec_json,
        settings=scale.fidelity.model_dump_json(),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages fidelity \
            --model-source {input.model:q} \
            --checkpoint {params.checkpoint:q} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --kv-cache {wildcards.kv_cache} \
            --moments {input.moments:q} \
            --heldout {input.chats:q} \
            --settings {params.settings:q} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """


rule evaluate_early_exit:
    """Agreement of the early exit head with the full model, and answers decoded with and without early exit."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=early_exit_checkpoint,
        chats="<results>/data/heldout.jsonl",
    output:
        "<results>/early_exit/{model}/{variant}.json",
    log:
        "<logs>/evaluate_early_exit/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/evaluate_early_exit/{model}/{variant}.tsv"
    priority: priority_or_exit("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        gpus=number_of_gpus,
        checkpoint=lambda w, input: folder_of(input.checkpoint),
        spec=spec_json,
        settings=scale.early_exit.model_dump_json(),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages evaluate_early_exit \
            --model-source {input.model:q} \
            --checkpoint {params.checkpoint:q} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --heldout {input.chats:q} \
            --settings {params.settings:q} \
            --threads {threads} \
            --gpus {params.gpus} \
            --output {output:q}
        """
