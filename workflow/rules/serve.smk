"""Serving with vLLM: every point of the configuration, whatever it measures (Sections 4.3 and 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}; for models served without
                 weights only their architecture file; for points that send chats <results>/data/heldout.jsonl,
                 for points that send workloads <results>/workloads/{workload}
OUTPUTS: <results>/dummy/{model}/{variant}, <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""


rule dummy_checkpoint:
    """A checkpoint folder with configuration and tokenizer but no weights, for vLLM's `--load-format dummy`."""
    input:
        source=get_source,
    output:
        directory("<results>/dummy/{model}/{variant}"),
    log:
        "<logs>/dummy_checkpoint/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/dummy_checkpoint/{model}/{variant}.tsv"
    params:
        spec=get_spec,
        tokenizer=lambda w: (
            f"--tokenizer {config['models'][w.model]['source']['hub']}"
            if "hub" in config["models"][w.model]["source"]
            else ""
        ),
    shell:
        """
        exec &> >(tee {log:q})
        online python "$SCRIPTS/dummy_checkpoint.py" \
            --source {input.source:q} \
            --spec {params.spec:q} \
            {params.tokenizer} \
            --output {output:q}
        """


rule measure:
    """One serving point of one model and variant: throughput, latency, goodput, forward time, decoding or KV capacity."""
    input:
        source=get_source,
        served=get_served,
        chats=get_chats,
        workloads=get_workloads,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/measure/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/measure/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point="|".join(map(re.escape, config["serving"]["points"])),
    priority: if_granted("serve")
    threads: workflow.resource_settings.cores or 1  # a measurement has the machine to itself; a cluster's profile sets its own
    resources:
        **on_gpus("serve", measured_alone),
    params:
        subject=get_subject,
        point=get_point,
        # Asks for the input only to be no trigger: it changes no number.
        start_timeout=lambda w, input: config["serving"]["engine"]["start_timeout"],
        # Not an output: Snakemake would delete the finished rates of a job that was killed.
        state=lambda w: f"{config['pathvars']['results']}/serving-state/{w.point}/{w.model}/{w.variant}/{w.kv_cache}",
    shell:
        """
        exec &> >(tee {log:q})
        python "$SCRIPTS/measure.py" \
            {params.subject} \
            {params.point} \
            --source {input.source:q} \
            --checkpoint {input.served:q} \
            --heldout {input.chats:q} \
            --workloads {input.workloads:q} \
            --start-timeout {params.start_timeout} \
            --threads {threads} \
            --work-dir {params.state:q} \
            --output {output:q}
        """
