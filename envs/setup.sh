#!/usr/bin/env bash
# Make .venv from envs/cpu.lock. Every step says what it does; a failed one is named and leaves no .venv/.ready.
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

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "Python 3.11 or newer is needed, and $python was not found"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed; set PYTHON=/path/to/python"

step "creating .venv with $("$python" --version)"
"$python" -m venv --clear .venv || fail "python -m venv failed; on Debian and Ubuntu install python3-venv"
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input)
quietly "${pip[@]}" install --upgrade pip || fail "pip cannot reach its package index; see $log"

step "installing torch for the processor"
torch=$(grep '^torch==' envs/cpu.lock)
# A CPU build may be in one of pip's configured places; PyPI itself only has CUDA builds, so asking there fails at once.
quietly "${pip[@]}" install --no-deps "$torch" 2>/dev/null ||
    quietly "${pip[@]}" install --no-deps --retries 1 --index-url https://download.pytorch.org/whl/cpu "$torch" ||
    fail "$torch was found neither in pip's configured places nor in PyTorch's CPU wheel index; see $log"

step "installing $(grep -c '^[a-zA-Z]' envs/cpu.lock) packages (about 2 minutes, 3 GB)"
quietly "${pip[@]}" install --no-deps -r envs/cpu.lock || fail "a package of envs/cpu.lock could not be installed; see $log"
quietly "${pip[@]}" install --no-deps --no-build-isolation ./envs/vllm-metadata -e . || fail "this project could not be installed; see $log"

touch .venv/.ready
step "ready: . .venv/bin/activate"
