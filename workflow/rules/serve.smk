"""Serving with vLLM: every point of the configuration, whatever it measures (Sections 4.3 and 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}/config.json; for models served
                 without weights only their architecture file; for points with `dataset` <results>/data/heldout.jsonl or
                 <results>/data/{data}/train.jsonl
OUTPUTS: <results>/dummy/{model}/{variant}/config.json, <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""


rule dummy_checkpoint:
    """A checkpoint folder with configuration and tokenizer but no weights, for vLLM's `--load-format dummy`."""
    input:
        source=model_file,
    output:
        "<results>/dummy/{model}/{variant}/config.json",
    log:
        "<logs>/dummy_checkpoint/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/dummy_checkpoint/{model}/{variant}.tsv"
    params:
        folder=lambda w, output: folder_of(output[0]),
        spec=spec_json,
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages dummy_checkpoint \
            --source {input.source:q} \
            --spec {params.spec:q} \
            --output {params.folder:q}
        """


# A start of vLLM takes longer than most points, so one job measures all points that artifacts show of one engine, in rule
# `measure_<group>`: a single one that is wanted brings the others. `measure` makes any other point alone. A profile's
# settings of `measure` are those of all.
for group, (points, cases) in {"measure": ([], []), **serving_groups()}.items():
    copy_overrides("measure", group)
    point = points[0] if points else "{point}"

    rule:
        """Serving points of one model, variant and KV cache that need the same engine."""
        name:
            group
        input:
            source=model_file,
            served=served_file,
            baseline=lambda w, points=points: baseline_file(w, points),
            chats=lambda w, points=points: chats_file(w, points),
        output:
            expand("<results>/serving/{point}/{{model}}/{{variant}}/{{kv_cache}}.json", point=points or point),
        log:
            run=f"<logs>/measure/{point}/{{model}}/{{variant}}/{{kv_cache}}.log",
            engine=f"<logs>/measure/{point}/{{model}}/{{variant}}/{{kv_cache}}.vllm.log",
        benchmark:
            f"<benchmarks>/measure/{point}/{{model}}/{{variant}}/{{kv_cache}}.tsv"
        wildcard_constraints:
            point=ungrouped_points(),
            model=models_of(cases),
        priority: priority_or_exit("serve")
        threads: workflow.resource_settings.cores or 1  # a measurement has the machine to itself; a cluster's profile sets its own
        resources:
            **on_gpus("serve", lambda w, points=points: measured_alone(points or [w.point])),
        params:
            settings=lambda w, points=points: serving_json(w, points),
            gpus=lambda w: scale.models[w.model].gpus.serve,
            title=untracked(lambda w: scale.models[w.model].title),
            start_timeout=untracked(lambda w: scale.serving.engine.start_timeout),
            served=lambda w, input: folder_of(input.served),
            baseline=lambda w, input: folder_of(input.baseline),
            state=answers_folder,
        shell:
            """
            exec &> >(tee {log.run:q})
            python -m pipeline.stages measure \
                --settings {params.settings:q} \
                --model {wildcards.model:q} \
                --title {params.title:q} \
                --variant {wildcards.variant:q} \
                --kv-cache {wildcards.kv_cache} \
                --source {input.source:q} \
                --checkpoint {params.served:q} \
                --baseline {params.baseline:q} \
                --chats {input.chats:q} \
                --start-timeout {params.start_timeout} \
                --threads {threads} \
                --gpus {params.gpus} \
                --log {log.engine:q} \
                --state {params.state:q} \
                --outputs {output:q}
            """
