"""Serving with vLLM: every point of the configuration, whatever it measures (Sections 4.3 and 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}/config.json; for models served
                 without weights only their architecture file; for points with `dataset` <results>/data/heldout.jsonl or
                 <results>/data/{data}/train.jsonl
OUTPUTS: <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""

# A start of vLLM takes longer than most points, so one job measures all of a set of serving.together. A profile's settings of
# `measure` are those of all.
for group in [None, *scale.serving.together]:
    name = f"measure_{group}" if group else "measure"
    copy_overrides("measure", name)
    measured = group or "{point}"

    rule:
        """Serving points of one model, variant and KV cache that need the same engine."""
        name:
            name
        input:
            source=model_file,
            checkpoint=served_file,
            chats=lambda w, group=group: chats_file(w, group),
        output:
            expand(
                "<results>/serving/{point}/{{model}}/{{variant}}/{{kv_cache}}.json",
                point=scale.sets.points.get(group, measured),
            ),
        log:
            run=f"<logs>/measure/{measured}/{{model}}/{{variant}}/{{kv_cache}}.log",
            engine=f"<logs>/measure/{measured}/{{model}}/{{variant}}/{{kv_cache}}.vllm.log",
        benchmark:
            f"<benchmarks>/measure/{measured}/{{model}}/{{variant}}/{{kv_cache}}.tsv"
        priority: priority_or_exit("serve")
        threads: workflow.resource_settings.cores or 1  # a measurement has the machine to itself; a cluster's profile sets its own
        resources:
            **on_gpus("serve", lambda w, group=group: measured_alone(points_of(w, group))),
        params:
            settings=lambda w, group=group: serving_json(w, group),
            gpus=lambda w: scale.models[w.model].gpus.serve,
            title=untracked(lambda w: scale.models[w.model].title),
            start_timeout=untracked(lambda w: scale.serving.engine.start_timeout),
            checkpoint=lambda w, input: folder_of(input.checkpoint),
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
                --checkpoint {params.checkpoint:q} \
                --chats {input.chats:q} \
                --start-timeout {params.start_timeout} \
                --threads {threads} \
                --gpus {params.gpus} \
                --log {log.engine:q} \
                --state {params.state:q} \
                --outputs {output:q}
            """
