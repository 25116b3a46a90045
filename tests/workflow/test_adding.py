"""The pages of docs/adding do what they say: their files are written and their commands are run, at smoke scale."""

import json
import os
import re
import shlex
import shutil

import pytest
import yaml
from safetensors.numpy import save_file
from tests.programs import ROOT, run

from swiftkv.io import read_json

pytestmark = pytest.mark.thorough

PAGES = sorted((ROOT / "docs/adding").glob("*.md"))
PROJECT = ("Snakefile", "config.yaml", "artifacts.yaml", "profiles", "resources", "src", "workflow")


@pytest.fixture
def project(tmp_path):
    """A copy of the project that shares the results of the smoke run, where there are some."""
    for name in PROJECT:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    (ROOT / "results").mkdir(exist_ok=True)
    (tmp_path / "results").symlink_to(ROOT / "results")
    return tmp_path


def blocks(page, *languages):
    """The code blocks of a page in some languages, in order."""
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)```", page.read_text(), flags=re.DOTALL)


def write_files(page, project, prefix=""):
    """Write the files that a page shows, YAML with `prefix` before its name; the names of the YAML files."""
    found = []
    for block in blocks(page, "yaml", "python", "snakemake"):
        if name := re.match(r"# (\S+\.(yaml|py|smk))\n", block):
            found.append(f"{prefix}{name[1]}" if name[2] == "yaml" else name[1])
            (project / found[-1]).write_text(block)
        elif row := re.match(r"# into (\w+) of (\S+)\n", block):
            file = project / row[2]
            opening = f"\n{row[1]} = {{\n"
            assert file.read_text().count(opening) == 1
            file.write_text(file.read_text().replace(opening, opening + block[row.end() :]))
    return found


@pytest.fixture
def start(project):
    """Function that runs a program of the copy."""
    places = os.pathsep.join([str(project / "src"), str(project / "workflow"), os.environ.get("PYTHONPATH", "")])
    return lambda *words: run(*words, cwd=project, PYTHONPATH=places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, project, start):
    commands = blocks(page, "sh")
    assert write_files(page, project) and commands
    for command in commands:
        made = [project / word for word in command.split() if word.startswith("results/")]
        for path in made:
            if path.suffix == ".md":
                path.unlink(missing_ok=True)
        ended = start("bash", "-ec", command)
        assert ended.returncode == 0 and ": False\n" not in ended.stdout, ended.stdout + ended.stderr
        assert all(path.exists() for path in made)
        for path in made:
            if path.suffix == ".md":
                assert re.search(r"\d", path.read_text())
                for form in path.parent.glob(f"{path.stem}.*"):
                    form.unlink()


def test_every_page_can_be_planned(project, start):
    """All at once; the path of the results has a space, which no command splits."""
    (project / "results").unlink()
    model = project / "results/smoke/models/tiny-random/base"  # of the page on models
    model.mkdir(parents=True)
    dimensions = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
    (model / "config.json").write_text(json.dumps(dimensions | {"num_hidden_layers": 8}))
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    save_file({}, model / "model.safetensors")
    files = [name for page in PAGES for name in write_files(page, project, page.stem) if name.endswith(".yaml")]
    task = yaml.safe_load((project / "taskmine.yaml").read_text())
    places = {"results": "my results", "logs": "my results/logs", "benchmarks": "my results/benchmarks"}
    (project / "taskmine.yaml").write_text(yaml.safe_dump(task | {"pathvars": places}))
    files = ["profiles/smoke/override.yaml", *files]
    ended = start("snakemake", "--profile", "profiles/smoke", "--dry-run", "--printshellcmds", "--configfile", *files)
    assert ended.returncode == 0, ended.stdout + ended.stderr

    added = {name for page in PAGES for name in re.findall(r"^  (my_\w+):$", page.read_text(), re.MULTILINE)}
    assert len(added) == len(PAGES) - 1
    assert added <= set(re.findall(r"artifact=(\w+)", ended.stdout + ended.stderr))

    shells = re.findall(r"^Shell command: ?(.*?)(?=\n\n|\n\S)", ended.stdout, re.MULTILINE | re.DOTALL)
    assert len(shells) > len(added)
    split = [word for shell in shells for word in shlex.split(shell) if word == "my" or word.startswith("results/")]
    assert not split


def test_there_is_a_page_for_everything_that_can_be_added():
    assert {page.stem for page in PAGES} == {"artifact", "kind", "model", "stage", "task"}
