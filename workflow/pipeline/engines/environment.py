"""The environment of vLLM's processes."""

import os


def engine_environment(gpus: int, threads: int) -> dict[str, str]:
    """The environment vLLM is served in on so many GPUs (0: the processor) and processor threads.

    It reports nothing and downloads nothing. Only this project's plugin is loaded: an installed arctic-inference would change
    how every model runs. On a CPU, one process computes with all of the point's threads. vLLM by itself keeps a core free for
    each server process, which would leave one of two cores idle. And glibc keeps the memory of large activations: given back
    after each step, they cost a page fault every 4 KiB in the next, up to 40 % of a step in a virtual machine, by chance.
    """
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # `log.py` reads it.
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_COLOR": "0",
        "TOKENIZERS_PARALLELISM": "false",
        # Else torch's gloo listens on whatever address the host's name has.
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_PLUGINS": "swiftkv",
        "ARCTIC_INFERENCE_ENABLED": "0",
    }
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win over the memory this point states
    if gpus:
        # A forked engine fails if anything has looked for GPUs before, e.g. another plugin.
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # It would be compiled at the first start, and decoding is greedy.
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        environment["OMP_NUM_THREADS"] = str(threads)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
        # The engine process is the worker: 10 s less to start.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment
