"""Pages with steps to follow do what they say: their files are written and their commands are run, at smoke scale."""

import os
import re
import shutil

import pytest
from tests.programs import ROOT, run

pytestmark = pytest.mark.thorough

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "```sh\n" in page.read_text())
assert len(PAGES) > 4
PROJECT = ("Snakefile", "config.yaml", "config", "artifacts.yaml", "profiles", "resources", "src", "workflow")


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


def write_files(page, project):
    """Write the files that a page shows; their names."""
    found = []
    for block in blocks(page, "yaml", "python", "snakemake"):
        if name := re.match(r"# (\S+\.(?:yaml|py|smk))\n", block):
            found.append(name[1])
            (project / found[-1]).write_text(block)
        elif row := re.match(r"# into (\w+) of (\S+)\n", block):
            file = project / row[2]
            opening = f"\n{row[1]} = {{\n"
            assert file.read_text().count(opening) == 1
            file.write_text(file.read_text().replace(opening, opening + block[row.end() :]))
    return found


@pytest.fixture
def start(project):
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
