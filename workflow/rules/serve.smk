"""Serving with vLLM: throughput, latency, forward time and KV capacity (Section 4.3, 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}; for models served without
                 weights only their architecture file
OUTPUTS: <results>/dummy/{model}/{variant}, <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""


def get_points(benchmark):
    """A regular expression for the points of one kind; it matches nothing where there are none."""
    points = config["serving"]["points"]
    return (
        "|".join(re.escape(p) for p in points if points[p]["measure"] == benchmark)
        or "(?!)"
    )


def serves_dummy(w):
    return config["models"][w.model].get("serving_weights", "trained") == "dummy"


def get_architecture(w):
    """A model's public dimensions, or else the resolved model."""
    return config["models"][w.model].get(
        "architecture", f"<results>/models/{w.model}/source.json"
    )


def get_served(w):
    """What is served: the distilled checkpoint, the source model, or a folder without weights."""
    if serves_dummy(w):
        changed = config["variants"][w.variant]["prefill_reduction"] is not None
        return f"<results>/dummy/{w.model}/{w.variant if changed else 'baseline'}"
    return get_checkpoint(w) or f"<results>/models/{w.model}/source.json"


def get_chats(w):
    """The chats a latency point sends, if it does not send random tokens."""
    data = config["serving"]["points"][w.point].get("dataset")
    return f"<results>/data/{data}/heldout.jsonl" if data else []


def get_subject(w, input):
    """The arguments that say what is served."""
    model, variant = config["models"][w.model], config["variants"][w.variant]
    kind = "--model-source" if input.served.endswith(".json") else "--checkpoint"
    words = ["--model", w.model, "--title", model["title"], kind, input.served]
    words += ["--weights", model.get("serving_weights", "trained")]
    words += ["--variant", w.variant, "--spec", get_spec(w), "--kv-cache", w.kv_cache]
    if variant.get("merge_all_layers"):
        words.append("--merge-all-layers")
    if "quantization" in model:
        words += ["--quantization", model["quantization"]]
    return shlex.join(words)


def get_point(w):
    """The arguments that say how it is served."""
    words = [
        "--point",
        w.point,
        "--settings",
        json.dumps(cfg.point(config, w.point)),
    ]
    words += ["--gpus", str(get_gpus("serve")(w))]
    # Not an output: Snakemake would delete the finished rates of a job that was killed.
    folder = f"{config['pathvars']['results']}/serving-state/{w.point}/{w.model}/{w.variant}/{w.kv_cache}"
    return shlex.join([*words, "--work-dir", folder])


def get_serving_memory(w):
    """Megabytes; on a processor the weights, the cache and vLLM itself."""
    if get_gpus("serve")(w):
        return 64_000 + 120_000 * get_gpus("serve")(w)
    return int(3000 + 1100 * config["serving"]["engine"]["cpu_kv_cache_gib"])


def get_serving_threads():
    """All cores of this machine, so that nothing else runs beside a measurement; a cluster's profile sets its own."""
    return workflow.cores or 8


rule dummy_checkpoint:
    """A checkpoint folder with configuration and tokenizer but no weights, for vLLM's `--load-format dummy`."""
    input:
        dimensions=get_architecture,
    output:
        directory("<results>/dummy/{model}/{variant}"),
    log:
        "<logs>/dummy_checkpoint/{model}/{variant}.log",
    benchmark:
        "<benchmarks>/dummy_checkpoint/{model}/{variant}.tsv"
    resources:
        mem_mb=2000,
        runtime="15m",
    params:
        kind=lambda w, input: (
            "--model-source"
            if input.dimensions.endswith("source.json")
            else "--architecture"
        ),
        spec=get_spec,
        tokenizer=lambda w: (
            f"--tokenizer {config['models'][w.model]['source']['hub']}"
            if "hub" in config["models"][w.model]["source"]
            else ""
        ),
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/dummy_checkpoint.py \
            {params.kind} {input.dimensions:q} \
            --spec {params.spec:q} \
            {params.tokenizer} \
            --output {output:q}
        """


rule throughput:
    """Tokens a second when all requests come at once, with `vllm bench throughput` (Figure 3, Table 5)."""
    input:
        served=get_served,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/throughput/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/throughput/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point=get_points("throughput"),
    threads: get_serving_threads()
    resources:
        gpu=get_gpus("serve"),
        nodes=1,
        mem_mb=get_serving_memory,
        runtime="12h",
    params:
        subject=get_subject,
        point=get_point,
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/throughput.py \
            {params.subject} \
            {params.point} \
            --threads {threads} \
            --output {output:q}
        """


rule latency:
    """TTFT and TPOT over request rates, from a real server under Poisson arrivals (Figures 4 and B.1)."""
    input:
        served=get_served,
        chats=get_chats,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/latency/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/latency/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point=get_points("latency"),
    threads: get_serving_threads()
    resources:
        gpu=get_gpus("serve"),
        nodes=1,
        mem_mb=get_serving_memory,
        runtime="12h",
    params:
        subject=get_subject,
        point=get_point,
        heldout=lambda w, input: f"--heldout {input.chats}" if input.chats else "",
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/latency.py \
            {params.subject} \
            {params.point} \
            {params.heldout} \
            --threads {threads} \
            --output {output:q}
        """


rule forward_time:
    """Time of one forward pass over batch sizes (Figure 2, right)."""
    input:
        served=get_served,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/forward_time/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/forward_time/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point=get_points("forward_time"),
    threads: get_serving_threads()
    resources:
        gpu=get_gpus("serve"),
        nodes=1,
        mem_mb=get_serving_memory,
        runtime="2h",
    params:
        subject=get_subject,
        point=get_point,
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/forward_time.py \
            {params.subject} \
            {params.point} \
            --threads {threads} \
            --output {output:q}
        """


rule kv_capacity:
    """Tokens that fit into the KV cache, as vLLM reports them."""
    input:
        served=get_served,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/kv_capacity/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/kv_capacity/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point=get_points("kv_capacity"),
    threads: get_serving_threads()
    resources:
        gpu=get_gpus("serve"),
        nodes=1,
        mem_mb=get_serving_memory,
        runtime="1h",
    params:
        subject=get_subject,
        point=get_point,
    shell:
        """
        exec &> >(tee {log:q})
        python workflow/scripts/kv_capacity.py \
            {params.subject} \
            {params.point} \
            --threads {threads} \
            --output {output:q}
        """
