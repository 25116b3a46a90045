"""A short job that checks what a run meets on its nodes, started by `make probe` (docs/cluster.md)."""


rule probe:
    """Check the nodes of the largest job, and let its ranks meet; `make probe` says how large it is."""
    log:
        "<logs>/probe.log",
    # In none: its commands start the image themselves, as srun has to on several nodes.
    container:
        lambda w: None
    # Further ones are those of the largest job.
    resources:
        nodes=1,
    params:
        nodes=node_check,
        ranks=lambda w, resources: ('"${IN_IMAGE[@]}" env ' if resources.nodes == 1 else "")
        + f"{launcher(w, resources)} -m pipeline.run.probe_rank",
    shell:
        """
        exec &>{log:q}
        within() {{ timeout --kill-after 5 "$1" bash -c "$(declare -p IN_IMAGE); $2"; }}
        HF_HOME=$hub_cache within 100 {params.nodes:q} \
            || echo "FAIL  nodes: not all answered within 100 seconds, or their checks could not start; see the lines above"
        within 80 {params.ranks:q} \
            || echo "FAIL  all-reduce: the ranks did not meet and add within 80 seconds; mend what is above, else set" \
                "NCCL_SOCKET_IFNAME to the network between the nodes, and NCCL_DEBUG=INFO for NCCL's own reasons"
        ! grep --quiet ^FAIL {log:q}
        """
