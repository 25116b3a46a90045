#!/usr/bin/env bash
# Pack the checks of one GPU for a machine without network that has Python 3.12, torch for CUDA 13, transformers and the usual
# numerical packages, in three folders of about 58 MiB:
#     bash performance/pack_check.sh FOLDER [LOCK [NAMES]]
# There, one after the other: bash FOLDER/1/run.sh OUTPUT [OPTIONS of check_gpu.py], and so on. Each keeps its part in $WORK,
# unpacks what is whole by then, and runs: 1 what needs torch alone, 2 vLLM's checks, 3 trainings of SmolLM2. OUTPUT gets the
# records, and the trained tensors of three trainings, as at most seven files below 16 MiB. VERSION is Python's there.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1") lock=${2:-envs/gpu.lock} names=${3:-performance/pack.txt} version=${VERSION:-3.12}
pip=("${PYTHON:-python3}" -m pip --disable-pip-version-check)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

there=(--only-binary :all: --python-version "$version" --implementation cp --platform manylinux2014_x86_64)
for glibc in {17..39}; do there+=(--platform "manylinux_2_${glibc}_x86_64"); done
mapfile -t unbuilt < <(grep -E '^deepspeed==' "$lock") # has no wheel
"${pip[@]}" wheel --quiet --no-deps --wheel-dir "$scratch/wheels" . "${unbuilt[@]}"
archive() { # NAME: FOLDER of a site, and of the project where there is one, as $scratch/NAME
    awk -v pack="$1" '$1 == pack {print $2}' "$names" >"$scratch/names"
    { grep -hE "^($(paste -sd '|' "$scratch/names"))==" "$lock" envs/cpu.lock || true; } | sort -ut= -k1,1 >"$scratch/lock"
    mkdir -p "$scratch/$1"
    [ -s "$scratch/lock" ] || return 0
    "${pip[@]}" install --quiet --no-deps --no-compile --find-links "$scratch/wheels" "${there[@]}" \
        --target "$scratch/$1/site" --requirement "$scratch/lock" "${@:2}"
}
archive base swiftkv
git archive HEAD performance src workflow config config.yaml artifacts.yaml profiles resources/architectures resources/paper |
    tar -x --one-top-level="$scratch/base/project"
archive vllm
# Kernels of other attention, of mixtures of experts and of other GPUs, and vLLM's server in Rust: half a gigabyte.
for unused in vllm_flash_attn/_vllm_fa2_C.abi3.so _moe_C_stable_libtorch.abi3.so _flashmla_C.abi3.so _flashkda_C.abi3.so \
    _deepselect_C.abi3.so _qutlass_C.abi3.so third_party/deep_gemm third_party/fmha_sm100 third_party/tml_fa4 vllm-rs; do
    rm -rf "$scratch/vllm/site/vllm/$unused"
done
archive smollm2
prepared=${PREPARED:-results/gpu-tokens}
[ -e "$prepared/plan.json" ] || "${PYTHON:-python3}" performance/gpu_training.py prepare "$prepared"
mkdir -p "$scratch/smollm2/project/results/gpu-tokens"
cp "$prepared"/{plan.json,rows.safetensors} "$scratch/smollm2/project/results/gpu-tokens"

rm -rf "${folder:?}"/[1-3]
mkdir -p "$folder"/{1,2,3}
for name in base vllm smollm2; do tar -cC "$scratch/$name" . | xz -T0 >"$scratch/$name.xz"; done
cat "$scratch"/{base,vllm,smollm2}.xz >"$scratch/all"
split --number 3 --numeric-suffixes=1 --suffix-length 1 "$scratch/all" "$scratch/part."
packs=(base vllm smollm2) checks=("0,6,4 --minutes 5" "2,5,1 --minutes 9" "7 --minutes 9") end=0
for call in 1 2 3; do
    size=$(stat -c %s "$scratch/${packs[call - 1]}.xz")
    end=$((end + size))
    mv "$scratch/part.$call" "$folder/$call"
    cat >"$folder/$call/run.sh" <<RUN
#!/usr/bin/env bash
set -euo pipefail
output=\$(realpath -m "\$1") work=\${WORK:-/tmp/swiftkv-checks}
mkdir -p "\$output" "\$work/there"
cp "\$(dirname "\$0")"/part.* "\$work"
cd "\$work"
cat part.* >parts
head -c $end parts | tail -c $size | tar -xJC there
echo "checks of commit $(git rev-parse --short HEAD), unpacked after \$SECONDS s"
export PYTHONPATH=\$PWD/there/project/src:\$PWD/there/project/workflow:\$PWD/there/site
export VLLM_USE_FLASHINFER_SAMPLER=0 # FlashInfer is not packed
status=0
python3 there/project/performance/check_gpu.py --output records --only ${checks[call - 1]} "\${@:2}" || status=\$?
tar -czf "\$output/records-$call.tar.gz" --exclude '*trained*' records
ls -tr records/*trained* 2>/dev/null | head -n 6 | xargs -rI{} cp {} "\$output"
exit \$status
RUN
done
du -sh "$folder"/[1-3]
