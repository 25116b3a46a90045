"""The pages of docs/adding do what they say: their files are written and their commands are run, at smoke scale."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, project):
    written = 0
    for block in blocks(page, "yaml", "python"):
        if name := re.match(r"# (\S+\.(?:yaml|py))\n", block):
            (project / name[1]).write_text(block)
            written += 1
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project / "src"),
        "HF_HUB_OFFLINE": "1",
    }
    commands = blocks(page, "sh")
    assert written and commands
    for command in commands:
        made = [project / word for word in command.split() if word.startswith("results/")]
        for path in made:
            if path.suffix == ".md":
                path.unlink(missing_ok=True)
        run = subprocess.run(["bash", "-ec", command], cwd=project, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        assert all(path.exists() for path in made)
        for path in made:
            if path.suffix == ".md":
                assert re.search(r"\d", path.read_text())
                for form in path.parent.glob(f"{path.stem}.*"):
                    form.unlink()


def test_there_is_a_page_for_everything_that_can_be_added():
    assert {page.stem for page in PAGES} == {"artifact", "kind", "model", "task"}
