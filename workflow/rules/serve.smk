"""Serving with vLLM: every point of the configuration, whatever it measures (Sections 4.3 and 5.1, Appendix B.2).

REQUIRED INPUTS: <results>/models/{model}/source.json, <results>/checkpoints/{model}/{variant}; for models served without
                 weights only their architecture file; for points that send chats <results>/data/heldout.jsonl
OUTPUTS: <results>/dummy/{model}/{variant}, <results>/serving/{point}/{model}/{variant}/{kv_cache}.json
"""

# Hours a measurement may take, by what it measures.
SERVING_HOURS = {
    "throughput": 12,
    "latency": 12,
    "forward_time": 2,
    "decode": 2,
    "kv_capacity": 1,
}


def serves_dummy(w):
    return config["models"][w.model].get("serving_weights", "trained") == "dummy"


def get_source(w):
    """The resolved model; where nothing but its dimensions is needed, the file of those."""
    source = f"<results>/models/{w.model}/source.json"
    architecture = config["models"][w.model].get("architecture")
    return in_project(architecture) if serves_dummy(w) and architecture else source


def get_served_variant(w):
    """The variant whose checkpoint is served: one that differs in the plugin alone has none of its own."""
    variants = config["variants"]
    served = {
        key: variants[w.variant][key] for key in variants[w.variant] if key != "plugin"
    }
    return next((name for name in variants if variants[name] == served), w.variant)


def get_served(w):
    """The folder that is served: a trained checkpoint or one without weights; none for the source model itself."""
    variant = config["variants"][w.variant]
    if serves_dummy(w):
        changed = variant["prefill_reduction"] is not None
        return f"<results>/dummy/{w.model}/{get_served_variant(w) if changed else 'baseline'}"
    if "recipe" in variant:
        return f"<results>/checkpoints/{w.model}/{get_served_variant(w)}"
    return []


def get_chats(w):
    """The held-out chats a point sends, if it does not send random tokens."""
    sends_chats = "dataset" in config["serving"]["points"][w.point]
    return "<results>/data/heldout.jsonl" if sends_chats else []


def get_subject(w, input):
    """The arguments that say what is served."""
    model, variant = config["models"][w.model], config["variants"][w.variant]
    words = ["--model", w.model, "--title", model["title"], "--source", input.source]
    if input.served:
        words += ["--checkpoint", input.served]
    if serves_dummy(w):
        words += ["--weights", "dummy"]
    else:
        words += ["--weights", "trained" if input.served else "original"]
    words += ["--variant", w.variant, "--spec", get_spec(w), "--kv-cache", w.kv_cache]
    if variant.get("merge_all_layers"):
        words.append("--merge-all-layers")
    if "quantization" in model:
        words += ["--quantization", model["quantization"]]
    if "plugin" in variant:
        words += ["--plugin", variant["plugin"]]
    return shlex.join(words)


def get_point(w, input):
    """The arguments that say how it is served."""
    words = ["--point", w.point, "--settings", json.dumps(cfg.point(config, w.point))]
    words += ["--gpus", str(get_gpus("serve")(w))]
    if input.chats:
        words += ["--heldout", input.chats]
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
        source=get_source,
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
        spec=get_spec,
        tokenizer=lambda w: (
            f"--tokenizer {config['models'][w.model]['source']['hub']}"
            if "hub" in config["models"][w.model]["source"]
            else ""
        ),
    shell:
        """
        exec &> >(tee {log:q})
        python {SCRIPTS}/dummy_checkpoint.py \
            --source {input.source:q} \
            --spec {params.spec:q} \
            {params.tokenizer} \
            --output {output:q}
        """


rule measure:
    """One serving point of one model and variant: throughput, latency, forward time, decoding or KV capacity."""
    input:
        source=get_source,
        served=get_served,
        chats=get_chats,
    output:
        "<results>/serving/{point}/{model}/{variant}/{kv_cache}.json",
    log:
        "<logs>/measure/{point}/{model}/{variant}/{kv_cache}.log",
    benchmark:
        "<benchmarks>/measure/{point}/{model}/{variant}/{kv_cache}.tsv"
    wildcard_constraints:
        point="|".join(map(re.escape, config["serving"]["points"])),
    threads: get_serving_threads()
    resources:
        gpu=get_gpus("serve"),
        nodes=1,
        mem_mb=get_serving_memory,
        runtime=lambda w: f"{SERVING_HOURS[config['serving']['points'][w.point]['measure']]}h",
    params:
        subject=get_subject,
        point=get_point,
    shell:
        """
        exec &> >(tee {log:q})
        python {SCRIPTS}/measure.py \
            {params.subject} \
            {params.point} \
            --threads {threads} \
            --output {output:q}
        """
