"""The exactness tests on other CPU builds of vLLM, each in an environment of its own; `pytest -m versions` runs them.

The first run makes the environments below results/: 0.5 GB each, 5 GB where vLLM needs another torch that the package index
has with CUDA only.
"""

import sys

import pytest
from tests.programs import ROOT, succeed

VERSIONS = ("0.26.0", "0.29.0")  # and 0.32.0, the installed one
FILES = ("registration", "one_step", "equal_to_huggingface", "cache", "architectures", "refusals", "features")


@pytest.fixture(scope="module", params=VERSIONS)
def python(request):
    folder = ROOT / "results/vllm" / request.param
    if not (folder / "ready").exists():
        made = succeed("bash", ROOT / "envs/other-vllm.sh", request.param, folder, BASE=sys.prefix)
        (folder / "ready").write_text(made)
    return folder / "bin/python"


@pytest.mark.versions
@pytest.mark.parametrize("file", FILES)
def test_exactness(python, file):
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not versions", f"tests/serve/test_{file}.py"]
    succeed(python, *words, PYTHONPATH=f"{ROOT}/src:{ROOT}/workflow", OMP_NUM_THREADS="1")
