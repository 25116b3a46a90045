#!/usr/bin/env bash
# Make the Python environment of a GPU machine that reaches no package index and has PyTorch, so that the workflow runs
# there (profiles/one-gpu). Where there is an index, `make setup-gpu` is all. Run from the project's root.
#
# Packages travel in parts (50 MiB at most, about 10 for vLLM 0.26.0):
#   1. There:  python3 -m pip list --format=freeze > PRESENT, and bring PRESENT here.
#   2. Here:   bash performance/gpu_prepare.sh pack DIR PRESENT 0.26.0     makes DIR/part-01, DIR/part-02, ...
#   3. There, once for each part:  bash performance/gpu_prepare.sh collect DIR/part-NN PLACE
#   4. There:  bash performance/gpu_prepare.sh install PLACE SITE
#   5. There:  PYTHONPATH=SITE python3 -m snakemake --profile profiles/one-gpu TARGET ...     (docs/serving.md)
# vLLM 0.26.0 needs torch 2.11 and 0.32.0 needs torch 2.13: where another torch is installed, pack carries that too (GBs).
# The reference plugin comes with 0.26.0 only; it is a source package and is compiled at install (CMake, C++ compiler).
set -euo pipefail

PYTHON=${PYTHON:-python3}
PYTHON_VERSION=${PYTHON_VERSION:-3.12} # of the GPU machine
REFERENCE=arctic-inference==0.3.0
BUILD=(nanobind==2.9.2 grpcio-tools wheel) # what compiling it takes, besides torch, CMake and Ninja
# What planning, measuring and drawing take besides vLLM and what it brings.
mapfile -t PIPELINE < <(grep -E '^(snakemake|matplotlib|pandas|jsonschema|setuptools)==' envs/gpu.lock)
SOURCES=(connection-pool) # of snakemake; it comes as source only
# Large packages for other GPUs, other models or video, which Llama on Hopper never imports.
SKIP=${SKIP:-tokenspeed-triton nvidia-cutlass-dsl-libs-cu12 nvidia-nvvm nvidia-cuda-nvcc tilelang z3-solver pynvvideocodec torchcodec}
PART=${PART:-$((50 * 1024 * 1024))} # bytes of a part

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

pack() { # DIR PRESENT VERSION
    [ -s "$2" ] || fail "$2 is missing or empty; make it with: python3 -m pip list --format=freeze"
    mkdir -p "$1/wheels" "$1/made"
    rm -rf "$1"/part-* "$1/all"
    local platforms=(--platform any --platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
    for glibc in $(seq 5 39); do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
    local target=(--only-binary :all: --python-version "$PYTHON_VERSION" --implementation cp "${platforms[@]}" --find-links "$1/made")
    local wanted=("vllm==$3" "${PIPELINE[@]}")
    [ "$3" != 0.26.0 ] || wanted+=("${BUILD[@]}")
    # Needs setuptools here: the project's own environment has it.
    "$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$1/made" "${SOURCES[@]}" ||
        fail "a wheel of ${SOURCES[*]} cannot be made; run this with the project's environment (PYTHON=.venv/bin/python)"
    # The large ones stay as they are there if vLLM can use them; the rest is resolved anew.
    grep -E '^(transformers|triton)==' "$2" >"$1/keep" || true
    "$PYTHON" -m pip install --dry-run --ignore-installed --quiet --report "$1/report.json" --target "$1/none" \
        --constraint "$1/keep" "${target[@]}" "${wanted[@]}" || fail "the packages of vLLM $3 cannot be resolved"
    "$PYTHON" - "$1/report.json" "$2" "$SKIP" >"$1/carry" <<'PYTHON'
import json, re, sys
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
there = {}
for line in open(sys.argv[2]):
    name, mark, version = line.strip().partition("==")
    if mark:
        there[plain(name)] = version.partition("+")[0]  # 2.11.0+cu130 serves as 2.11.0
for entry in json.load(open(sys.argv[1]))["install"]:
    name, version = plain(entry["metadata"]["name"]), entry["metadata"]["version"]
    if there.get(name) != version and name not in sys.argv[3].split():
        print(f"{name}=={version}")
PYTHON
    rm -f "$1"/wheels/*
    "$PYTHON" -m pip download --quiet --no-deps "${target[@]}" --dest "$1/wheels" --requirement "$1/carry" ||
        fail "a package of $1/carry cannot be fetched"
    if [ "$3" = 0.26.0 ]; then # needs torch and setuptools here: the project's own environment has both
        "$PYTHON" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest "$1/wheels" "$REFERENCE" ||
            fail "$REFERENCE cannot be fetched; run this with the project's environment (PYTHON=.venv/bin/python)"
    fi
    tar -cf "$1/all" -C "$1" wheels
    (cd "$1" && sha256sum all >sum && split --bytes="$PART" --numeric-suffixes=1 all piece-)
    for piece in "$1"/piece-*; do
        part="$1/part-${piece##*-}"
        mkdir "$part"
        mv "$piece" "$part/"
        cp "$1/sum" "$part/"
    done
    rm "$1/all"
    printf '%s packages, %s parts in %s\n' "$(wc -l <"$1/carry")" "$(ls -d "$1"/part-* | wc -l)" "$1"
}

collect() { # PART PLACE
    mkdir -p "$2"
    cp "$1"/* "$2/"
}

install() { # PLACE SITE
    cat "$1"/piece-* >"$1/all"
    (cd "$1" && sha256sum --check --quiet sum) || fail "a part is missing or damaged in $1"
    tar -xf "$1/all" -C "$1"
    local pip=("$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile --upgrade --target "$2")
    "${pip[@]}" "$1"/wheels/*.whl
    export PYTHONPATH=$2
    for source in "$1"/wheels/arctic_inference-*.tar.gz; do
        [ ! -e "$source" ] || "${pip[@]}" "$source" || fail "the reference plugin cannot be compiled"
    done
    "${pip[@]}" .
    "$PYTHON" -c 'import snakemake, torch, vllm; print("torch", torch.__version__, "vllm", vllm.__version__, torch.cuda.get_device_name())'
}

usage="usage: gpu_prepare.sh pack DIR PRESENT VLLM | collect PART PLACE | install PLACE SITE"
case "${1:-} $#" in
    "pack 4" | "collect 3" | "install 3") "$@" ;;
    *) fail "$usage" ;;
esac
