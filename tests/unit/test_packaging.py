"""The vLLM plugin can be installed alone, and pyproject.toml names what the code imports, part by part."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from swiftkv.serve import TESTED

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/swiftkv"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Which files of the package need which extra; all others belong to the base.
PARTS = {
    "serve": ("measure/",),
    "train": ("distill/", "start/"),
    "score": ("score/", "similarity.py"),
    "pipeline": (
        "artifacts/",
        "check/",
        "data/",
        "reference/",
        "stages/",
        "config/",
        "estimate.py",
        "hub.py",
        "jobs.py",
        "plan.py",
        "points.py",
        "progress.py",
        "published.py",
        "section.py",
        "sizes.py",
        "sources.py",
        "statistics.py",
        "targets.py",
    ),
}
BASE = (
    "models/",
    "quantize/",
    "serve/",
    "__init__.py",
    "architectures.py",
    "cost.py",
    "device.py",
    "dimensions.py",
    "errors.py",
    "gpus.py",
    "records.py",
    "spec.py",
    "tensor_file.py",
)
# Used without having to be imported here: the workflow is run by Snakemake, whose plugin for the terminal, a package beside this
# one, uses rich; and transformers reads GGUF with gguf.
RUN = {"snakemake", "snakemake-executor-plugin-slurm", "gguf", "rich"}
NAMES = {"yaml": "pyyaml", "PIL": "pillow"}


def part_of(file):
    path = file.relative_to(SOURCE).as_posix()
    return next((part for part, places in PARTS.items() if path.startswith(places)), "base")


def imported(file):
    """Top-level modules, and modules of this package, that a file imports anywhere in its code."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def needed(part):
    """Distributions that the files of a part import."""
    modules = {
        name.partition(".")[0] for file in SOURCE.rglob("*.py") if part_of(file) == part for name in imported(file)
    }
    return {NAMES.get(name, name.replace("_", "-")) for name in modules - sys.stdlib_module_names - {"swiftkv"}}


def named(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", requirement)[0] for requirement in requirements}


def test_every_file_belongs_to_a_part():
    places = [place for part in PARTS.values() for place in part] + list(BASE)
    for file in SOURCE.rglob("*.py"):
        assert file.relative_to(SOURCE).as_posix().startswith(tuple(places)), f"{file} belongs to no part"


def test_the_base_names_what_the_models_and_the_plugin_import():
    assert named(PROJECT["dependencies"]) == needed("base") - {"vllm"}  # vLLM loads the plugin, not the other way round


@pytest.mark.parametrize("part", PARTS)
def test_an_extra_names_what_its_part_imports_beside_the_base(part):
    imports = needed(part) - named(PROJECT["dependencies"]) | ({"vllm"} if part == "serve" else set())
    assert named(PROJECT["optional-dependencies"][part]) - RUN == imports - RUN


def test_what_is_run_is_named():
    assert named(PROJECT["optional-dependencies"]["pipeline"]) >= RUN
    assert PROJECT["optional-dependencies"]["all"] == [f"{PROJECT['name']}[{','.join(PARTS)}]"]


def test_the_vllm_asked_for_is_no_older_than_the_tested_ones():
    (vllm,) = (text for text in PROJECT["optional-dependencies"]["serve"] if text.startswith("vllm"))
    assert vllm == "vllm>={}.{}".format(*TESTED[0])


def test_the_base_imports_no_other_part():
    modules = {f"swiftkv.{place.strip('/').removesuffix('.py')}" for place in BASE}
    for file in SOURCE.rglob("*.py"):
        if part_of(file) == "base":
            own = {name for name in imported(file) if name and name.startswith("swiftkv.")}
            outside = {name for name in own if not any(f"{name}.".startswith(f"{module}.") for module in modules)}
            assert not outside, f"{file} imports {outside}"


def run_without(modules, code):
    """Run `code` in a Python that has none of `modules`."""
    code = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]


# Without yaml and jinja2 there is no torch and no transformers; that the base does not import them itself is seen above.
ABSENT = ["deepspeed", "lm_eval", "snakemake", "pandas", "matplotlib", "datasets"]


def test_models_and_plugin_import_without_the_libraries_of_the_pipeline():
    code = "import swiftkv.serve, swiftkv.models, swiftkv.quantize, swiftkv.records, swiftkv.cost"
    run_without([*ABSENT, "pydantic"], code)


def test_the_plugin_needs_nothing_that_a_vllm_does_not_bring():
    """So `pip install --no-deps` beside a vLLM is enough (README.md)."""
    code = "import swiftkv.serve\nswiftkv.serve.register()\nimport swiftkv.serve.model, swiftkv.serve.merge_all_layers"
    run_without([*ABSENT, "accelerate"], code)


def test_an_absent_library_would_be_noticed():
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        run_without(["yaml"], "import swiftkv.config")
