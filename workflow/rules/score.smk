"""Quality: benchmark accuracy (Table B.1), fidelity to the teacher, and what each l leaves before training.

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant},
                 <results>/questions/{task} (of the hub), <results>/data/heldout.jsonl,
                 <results>/moments/{model}/{recipe}.safetensors (of fitted starts)
OUTPUTS: <results>/scores/{model}/{variant}/{kv_cache}/{task}.json, <results>/fidelity/{model}/{variant}/{kv_cache}.json,
         <results>/score-shards/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.json,
         <results>/starts/{model}.json, <results>/early_exit/{model}/{variant}.json
"""


localrules:
    merge_scores,


SCORE = """
exec &> >(tee {log.run:q})
python "$SCRIPTS/score.py" \
    --model-source {input.model:q} \
    {params.checkpoint} \
    --variant {wildcards.variant:q} \
    --spec {params.spec:q} \
    --kv-cache {wildcards.kv_cache} \
    --tasks {params.tasks:q} \
    {params.fetched} \
    --seed {params.seed} \
    --threads {threads} \
    --gpus {resources.gpu} \
    --engine-log {log.engine:q} \
    --state {params.state:q} \
    --outputs {output:q}
"""


rule score:
    """Accuracy of one variant on one benchmark, with lm-eval."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=get_checkpoint,
        questions=get_questions,
    output:
        "<results>/scores/{model}/{variant}/{kv_cache}/{task}.json",
    log:
        run="<logs>/score/{model}/{variant}/{kv_cache}/{task}.log",
        engine="<logs>/score/{model}/{variant}/{kv_cache}/{task}.vllm.log",
    benchmark:
        "<benchmarks>/score/{model}/{variant}/{kv_cache}/{task}.tsv"
    wildcard_constraints:
        model=scored_models(sharded=False),
    priority: if_granted("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        spec=get_spec,
        tasks=get_tasks,
        fetched=get_fetched,
        seed=config["scoring"]["seed"],
        state=get_answers,
        checkpoint=lambda w, input: option("--checkpoint", input.checkpoint),
    shell:
        SCORE


rule score_shard:
    """A part of a score: every so many-th question, where one job would take too long for all."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=get_checkpoint,
        questions=get_questions,
    output:
        "<results>/score-shards/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.json",
    log:
        run="<logs>/score/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.log",
        engine="<logs>/score/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.vllm.log",
    benchmark:
        "<benchmarks>/score/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.tsv"
    wildcard_constraints:
        shard="[1-9][0-9]*",
        shards="[1-9][0-9]*",
    priority: if_granted("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        spec=get_spec,
        tasks=get_tasks,
        fetched=get_fetched,
        seed=config["scoring"]["seed"],
        state=get_answers,
        checkpoint=lambda w, input: option("--checkpoint", input.checkpoint),
    shell:
        f"{SCORE.rstrip()} --shard {{wildcards.shard}} {{wildcards.shards}}"


rule merge_scores:
    """The score that one job would have written, from its shards."""
    input:
        get_shards,
    output:
        "<results>/scores/{model}/{variant}/{kv_cache}/{task}.json",
    log:
        "<logs>/merge_scores/{model}/{variant}/{kv_cache}/{task}.log",
    benchmark:
        "<benchmarks>/merge_scores/{model}/{variant}/{kv_cache}/{task}.tsv"
    wildcard_constraints:
        model=scored_models(sharded=True),
    shell:
        """
        exec &> >(tee {log:q})
        python "$SCRIPTS/merge_scores.py" \
            --shards {input:q} \
            --output {output:q}
        """


# Small tasks take less time than a start of the model, so one job may score several: the sets of scoring.together.
for group in config["scoring"]["together"]:

    rule:
        """Scores of one variant on a set of tasks."""
        name:
            f"score_{group}"
        input:
            model="<results>/models/{model}/source.json",
            checkpoint=get_checkpoint,
            questions=lambda w, group=group: get_questions(w, group),
        output:
            expand(
                "<results>/scores/{{model}}/{{variant}}/{{kv_cache}}/{task}.json",
                task=config["sets"]["tasks"][group],
            ),
        log:
            run=f"<logs>/score/{{model}}/{{variant}}/{{kv_cache}}/{group}.log",
            engine=f"<logs>/score/{{model}}/{{variant}}/{{kv_cache}}/{group}.vllm.log",
        benchmark:
            f"<benchmarks>/score/{{model}}/{{variant}}/{{kv_cache}}/{group}.tsv"
        priority: if_granted("score")
        threads: 1
        resources:
            **on_gpus("score"),
        params:
            spec=get_spec,
            tasks=lambda w, group=group: get_tasks(w, group),
            fetched=get_fetched,
            seed=config["scoring"]["seed"],
            state=get_answers,
            checkpoint=lambda w, input: option("--checkpoint", input.checkpoint),
        shell:
            SCORE


rule fidelity:
    """KL to the teacher, top-1 agreement and perplexity on held-out chats, before and after training."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=get_checkpoint,
        moments=get_moments,
        chats="<results>/data/heldout.jsonl",
    output:
        "<results>/fidelity/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/fidelity/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/fidelity/{model}/{variant}/{kv_cache}.tsv"
    priority: if_granted("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        spec=get_spec,
        documents=config["fidelity"]["documents"],
        max_length=config["fidelity"]["max_length"],
        seed=config["fidelity"]["seed"],
        checkpoint=lambda w, input: option("--checkpoint", input.checkpoint),
        moments=get_fit,
    shell:
        """
        exec &> >(tee {log:q})
        python "$SCRIPTS/fidelity.py" \
            --model-source {input.model:q} \
            {params.checkpoint} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --kv-cache {wildcards.kv_cache} \
            {params.moments} \
            --heldout {input.chats:q} \
            --documents {params.documents} \
            --max-length {params.max_length} \
            --seed {params.seed} \
            --threads {threads} \
            --gpus {resources.gpu} \
            --output {output:q}
        """


rule starts:
    """Quality before training for every l, with copied and with fitted start values."""
    input:
        model="<results>/models/{model}/source.json",
        moments=get_starts_moments,
        chats="<results>/data/heldout.jsonl",
    output:
        "<results>/starts/{model}.json",
    log:
        "<logs>/starts/{model}.log",
    benchmark:
        "<benchmarks>/starts/{model}.tsv"
    priority: if_granted("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        ridge=config["recipes"][config["choose_l"]["recipe"]]["start_ridge"],
        documents=config["choose_l"]["documents"],
        max_length=config["choose_l"]["max_length"],
        seed=config["choose_l"]["seed"],
    shell:
        """
        exec &> >(tee {log:q})
        python "$SCRIPTS/starts.py" \
            --model-source {input.model:q} \
            --moments {input.moments:q} \
            --ridge {params.ridge} \
            --heldout {input.chats:q} \
            --documents {params.documents} \
            --max-length {params.max_length} \
            --seed {params.seed} \
            --threads {threads} \
            --gpus {resources.gpu} \
            --output {output:q}
        """


rule early_exit:
    """Agreement of the early exit head with the full model, and answers decoded with and without early exit."""
    input:
        model="<results>/models/{model}/source.json",
        checkpoint=get_early_exit_checkpoint,
        chats="<results>/data/heldout.jsonl",
    output:
        "<results>/early_exit/{model}/{variant}.json",
    log:
        "<logs>/early_exit/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/early_exit/{model}/{variant}.tsv"
    priority: if_granted("score")
    threads: 1
    resources:
        **on_gpus("score"),
    params:
        spec=get_spec,
        settings=json.dumps(config["early_exit"]),
    shell:
        """
        exec &> >(tee {log:q})
        python "$SCRIPTS/early_exit.py" \
            --model-source {input.model:q} \
            --checkpoint {input.checkpoint:q} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --heldout {input.chats:q} \
            --settings {params.settings:q} \
            --threads {threads} \
            --gpus {resources.gpu} \
            --output {output:q}
        """
