# The shell of every job reads this first.

export PYTHONSAFEPATH=1 # no file of the working directory stands in for a library
export PYTHONUTF8=1     # text is UTF-8, whatever the locale

# A pod or a shell of torchrun has these; a job without a launcher would wait for ranks that never come.
unset RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME
unset MASTER_ADDR MASTER_PORT "${!TORCHELASTIC_@}" "${!PET_@}"

# A socket of vLLM has a name of 37 characters in this folder, and its path at most 107.
temporary=${TMPDIR-}
((${#temporary} <= 70)) || export VLLM_RPC_BASE_PATH=${VLLM_RPC_BASE_PATH:-/tmp}

export no_proxy=${no_proxy:-${NO_PROXY-}},127.0.0.1,localhost # requests to a server of the job's own take no proxy

# No job asks the hub or downloads anything, but for rules that say so: `online python ...`.
asked_offline=${HF_HUB_OFFLINE:-0}
hub_cache=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
export HF_HUB_OFFLINE=1
online() { HF_HUB_OFFLINE=$asked_offline HF_HOME=$hub_cache "$@"; }

# In a job with GPUs, gpu_jobs.local_cache names the folder on its node below which it gets one of its own for what compilers
# and libraries keep; it goes when the job ends.
if [[ -n ${LOCAL_CACHE-} && -n ${CUDA_VISIBLE_DEVICES-} ]]; then
    if job_cache=$(mktemp -d "$LOCAL_CACHE/swiftkv-XXXXXXXX"); then
        trap 'rm -rf "$job_cache"' EXIT
        export XDG_CACHE_HOME=$job_cache HF_HOME=$job_cache/huggingface
        export TRITON_CACHE_DIR=$job_cache/triton TORCHINDUCTOR_CACHE_DIR=$job_cache/inductor
        export VLLM_CACHE_ROOT=$job_cache/vllm FLASHINFER_WORKSPACE_BASE=$job_cache
        export TORCH_EXTENSIONS_DIR=$job_cache/torch_extensions CUDA_CACHE_PATH=$job_cache/cuda
    else
        echo "warning: gpu_jobs.local_cache is no folder of this node; caches stay where they are" >&2
    fi
fi
