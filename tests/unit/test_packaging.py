"""The vLLM plugin can be installed alone, and pyproject.toml names what the code imports, part by part."""

import re
import sys
import tarfile
import tomllib

import pytest
from tests.programs import ROOT, succeed
from tests.unit.test_import_graph import imported

from swiftkv.serve import TESTED

METHOD, PIPELINE = ROOT / "src/swiftkv", ROOT / "workflow/pipeline"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAINING = ("distill/", "chats.py", "section.py")  # of the method, what the plugin does not need
# Used without having to be imported here: the workflow is run by Snakemake, whose plugin for the terminal, a package beside the
# pipeline, uses rich; and transformers reads GGUF with gguf.
RUN = {"snakemake", "snakemake-executor-plugin-slurm", "gguf", "rich"}
NAMES = {"yaml": "pyyaml", "PIL": "pillow"}


def files_of(part):
    if part == "pipeline":
        return list(PIPELINE.rglob("*.py"))
    files = METHOD.rglob("*.py")
    return [file for file in files if file.relative_to(METHOD).as_posix().startswith(TRAINING) == (part == "train")]


def needed(part):
    modules = {name.partition(".")[0] for file in files_of(part) for name in imported(file)}
    return {
        NAMES.get(name, name.replace("_", "-")) for name in modules - sys.stdlib_module_names - {"swiftkv", "pipeline"}
    }


def named(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", requirement)[0] for requirement in requirements}


def test_the_parts_name_what_they_import():
    extras, base = PROJECT["optional-dependencies"], named(PROJECT["dependencies"])
    assert base == needed("base") - {"vllm"}  # vLLM loads the plugin, not the other way round
    assert named(extras["train"]) == needed("train") - base
    assert named(extras["pipeline"]) - RUN == needed("pipeline") - base - {"deepspeed", "vllm"} - RUN
    assert named(extras["pipeline"]) >= RUN
    assert f"vllm>={TESTED[0]}" in extras["serve"]


@pytest.mark.slow
def test_what_is_built_installs_the_method_alone(tmp_path):
    """`python -m build` makes a source archive, and from it a wheel, which works beside the libraries it needs."""
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,), (archive,) = tmp_path.glob("swiftkv-*.whl"), tmp_path.glob("swiftkv-*.tar.gz")
    with tarfile.open(archive) as files:
        assert not [name for name in files.getnames() if "/workflow/" in name]
    place = tmp_path / "installed"
    succeed(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, wheel)
    assert {path.name for path in place.iterdir() if path.suffix != ".dist-info"} == {"swiftkv"}
    code = "import swiftkv.serve, swiftkv.models; swiftkv.serve.register(); print(swiftkv.__file__)"
    assert succeed(sys.executable, "-c", code, PYTHONPATH=str(place)).strip() == str(place / "swiftkv/__init__.py")


# Without yaml and jinja2 there is no torch and no transformers; that the base does not import them itself is seen above.
ABSENT = ["deepspeed", "lm_eval", "snakemake", "pandas", "matplotlib", "datasets"]


@pytest.mark.parametrize(
    "absent, code",
    [
        ("pydantic", "import swiftkv.serve, swiftkv.models, swiftkv.quantize.linear, swiftkv.cost"),
        # `pip install --no-deps` beside a vLLM is enough (README.md).
        ("accelerate", "import swiftkv.serve; swiftkv.serve.register(); import swiftkv.serve.model"),
    ],
)
def test_models_and_plugin_import_without_the_libraries_of_the_pipeline(absent, code):
    code = f"import sys; sys.modules.update(dict.fromkeys({[*ABSENT, absent]})); {code}"
    succeed(sys.executable, "-c", code)


def test_plans_and_help_import_nothing_of_what_jobs_run():
    heavy = {"torch", "tyro", "matplotlib", "pandas"}
    stages = "[stage.outputs for stage in pipeline.stages.STAGES.values()]"
    program = f"import sys, pipeline.stages, pipeline.artifacts.contents; {stages}; print(*{heavy} & set(sys.modules))"
    assert succeed(sys.executable, "-c", program) == "\n"
