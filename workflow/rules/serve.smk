"""Serving with vLLM: every point of the configuration, whatever it measures (Sections 4.3 and 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}; for models served without
                 weights only their architecture file; for points that send chats <results>/data/heldout.jsonl
OUTPUTS: <results>/dummy/{model}/{variant}, <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""


rule dummy_checkpoint:
    """A checkpoint folder with configuration and tokenizer but no weights, for vLLM's `--load-format dummy`."""
    input:
        source=model_file,
    output:
        directory("<results>/dummy/{model}/{variant}"),
    log:
        "<logs>/dummy_checkpoint/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/dummy_checkpoint/{model}/{variant}.tsv"
    params:
        spec=spec_json,
        tokenizer=lambda w: getattr(scale.models[w.model].source, "hub", []),
    shell:
        """
        exec &> >(tee {log:q})
        online python -m pipeline.stages dummy_checkpoint \
            --source {input.source:q} \
            --spec {params.spec:q} \
            --tokenizer {params.tokenizer:q} \
            --output {output:q}
        """


rule measure:
    """One serving point of one model and variant: throughput, latency, forward time, decoding or KV capacity."""
    input:
        source=model_file,
        served=served_folder,
        baseline=baseline_folder,
        chats=chats_file,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/measure/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/measure/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point=pattern(scale.serving.points),
    priority: if_granted("serve")
    threads: workflow.resource_settings.cores or 1  # a measurement has the machine to itself; a cluster's profile sets its own
    resources:
        **on_gpus("serve", measured_alone),
    params:
        title=lambda w: scale.models[w.model].title,
        weights=served_weights,
        spec=spec_json,
        merge=lambda w: scale.variants[w.variant].merge_all_layers,
        quantization=lambda w: scale.models[w.model].quantization or [],
        plugin=lambda w: scale.variants[w.variant].plugin or [],
        settings=point_json,
        gpus=lambda w: scale.models[w.model].gpus.serve,
        # Asks for the input only to be no trigger: it changes no number.
        start_timeout=lambda w, input: scale.serving.engine.start_timeout,
        # Not an output: Snakemake would delete the finished rates of a job that was killed.
        state=lambda w: f"{SERVING_STATE}/{w.point}/{w.model}/{w.variant}/{w.kv_cache}",
        minutes=lambda w, resources: resources.get("runtime", []),
    shell:
        """
        exec &> >(tee {log:q})
        python -m pipeline.stages measure \
            --model {wildcards.model:q} \
            --title {params.title:q} \
            --weights {params.weights} \
            --variant {wildcards.variant:q} \
            --spec {params.spec:q} \
            --kv-cache {wildcards.kv_cache} \
            --merge-all-layers {params.merge} \
            --quantization {params.quantization} \
            --plugin {params.plugin} \
            --point {wildcards.point:q} \
            --settings {params.settings:q} \
            --source {input.source:q} \
            --checkpoint {input.served:q} \
            --baseline {input.baseline:q} \
            --heldout {input.chats:q} \
            --start-timeout {params.start_timeout} \
            --threads {threads} \
            --gpus {params.gpus} \
            --work-dir {params.state:q} \
            --minutes {params.minutes} \
            --output {output:q}
        """
