#!/usr/bin/env bash
# Pack what the checks of one GPU need on a machine without network that has Python 3.12, torch for CUDA 13, transformers and
# the usual numerical packages:
#     bash performance/pack_check.sh FOLDER [LOCK [NAMES]]
# FOLDER gets parts of at most 55 MiB, and check.sh, which joins them there and runs the checks. PYTHON is a Python 3.12 here.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1") lock=${2:-envs/gpu.lock} names=${3:-performance/pack.txt}
install=("${PYTHON:-python3.12}" -m pip --disable-pip-version-check install --quiet --no-deps)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mkdir -p "$folder" "$scratch/project"
grep -E "^($(paste -sd '|' "$names"))==" "$lock" >"$scratch/lock"
"${install[@]}" --target "$scratch/site" --requirement "$scratch/lock" .
# Kernels of other attention, of mixtures of experts and of other GPUs, and vLLM's server in Rust: half a gigabyte.
for unused in vllm_flash_attn/_vllm_fa2_C.abi3.so _moe_C_stable_libtorch.abi3.so _flashmla_C.abi3.so _flashkda_C.abi3.so \
    _deepselect_C.abi3.so _qutlass_C.abi3.so third_party/deep_gemm third_party/fmha_sm100 third_party/tml_fa4 vllm-rs; do
    rm -rf "$scratch/site/vllm/$unused"
done
git archive HEAD performance src workflow config config.yaml artifacts.yaml profiles resources/architectures resources/paper |
    tar -xC "$scratch/project"
rm -f "$folder"/part.*
tar --exclude __pycache__ -cC "$scratch" site project | xz -T0 | split --bytes="${PART:-55M}" - "$folder/part."
cat >"$folder/check.sh" <<CHECK
#!/usr/bin/env bash
# Unpack the parts beside this file and run the checks: bash check.sh [OPTIONS of check_gpu.py]
set -euo pipefail
cd "\$(dirname "\$0")"
[ -d project ] || cat part.* | tar -xJ
echo "checks of commit $(git rev-parse --short HEAD)"
export PYTHONPATH=\$PWD/project/src:\$PWD/project/workflow:\$PWD/site VLLM_USE_FLASHINFER_SAMPLER=0 # FlashInfer is not packed
python3 project/performance/check_gpu.py "\$@"
CHECK
