"""The exactness tests on other CPU builds of vLLM, each in an environment of its own, and checkpoints read by transformers 4.

`pytest -m versions` runs them.

The first run makes the environments below results/: 0.5 GB each, 5 GB where vLLM needs another torch that the package index
has with CUDA only.
"""

import json
import sys

import pytest
from tests.conftest import byte_tokenizer, tiny_swiftkv
from tests.programs import ROOT, succeed
from transformers import AutoTokenizer

from swiftkv.io import read_json, write_json
from swiftkv.models import save_model

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


OLDER = ("transformers==4.57.6", "tokenizers==0.22.1", "huggingface-hub==0.36.0")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
READ = """
import json, sys
from transformers import CONFIG_MAPPING, AutoTokenizer
fields = json.load(open(sys.argv[1] + "/config.json"))
read = CONFIG_MAPPING[fields.pop("model_type").removesuffix("_swiftkv")].from_dict(fields)
ids = [AutoTokenizer.from_pretrained(folder)("<s>user\\nw1<x></s>").input_ids for folder in sys.argv[1:]]
names = ("rope_theta", "rope_scaling", "num_experts")
print(json.dumps([{name: getattr(read, name, None) for name in names}, str(read.dtype), ids]))
"""


@pytest.fixture(scope="module")
def older():
    folder = ROOT / "results/transformers-4"
    if not (folder / "transformers").exists():
        succeed(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, *OLDER)
    return folder


@pytest.mark.versions
@pytest.mark.parametrize("own", ["PreTrainedTokenizerFast", "Qwen2Tokenizer"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_transformers_4_reads_the_same_model(older, architecture, own, tmp_path):
    """As do readers of the published format that need it."""
    scaling = LLAMA3 | {"original_max_position_embeddings": 64} if architecture == "llama" else None
    rope = {"rope_theta": 500000.0} | (scaling or {"rope_type": "default"})
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<x>"]})
    tokenizer.save_pretrained(tmp_path / "base")
    file = tmp_path / "base/tokenizer_config.json"
    settings = read_json(file)
    more = {"additional_special_tokens": settings.pop("extra_special_tokens")}
    write_json(file, settings | more | {"tokenizer_class": own})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    save_model(tiny_swiftkv(architecture, rope_parameters=rope), tmp_path / "saved", tokenizer=tokenizer)
    folders = [tmp_path / "saved", tmp_path / "base"]
    read, dtype, (ids, expected) = json.loads(succeed(sys.executable, "-c", READ, *folders, PYTHONPATH=str(older)))
    experts = 8 if architecture == "qwen3_moe" else None
    assert read == {"rope_theta": 500000.0, "rope_scaling": scaling, "num_experts": experts}
    assert dtype == "torch.float32" and ids == expected
