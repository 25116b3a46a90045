"""Every command of README, docs/ and the workflow file is one that works: Make and Snakemake plan it, or a test does it."""

import re
import shlex

import pytest
from tests.programs import ROOT, read_yaml, succeed

DONE = {  # what neither of them plans, and the tests that do it
    r"(VLLM_CPU_KVCACHE_SPACE=\d+ )?vllm serve|curl|-d '\{": "tests/serve/test_own_model.py",
    r"pip install --no-deps": "tests/unit/test_packaging.py",
    r"python -m swiftkv.attach": "tests/unit/test_models_sharing.py",
    r"git clone|export HF_|cp -rL profiles/slurm": "tests/slurm/conftest.py",
    r".*\b(CONFIG|OUTPUT)=mine\.yaml": "tests/serve/test_own_model.py",
    r"pip install build|python -m build": "tests/unit/test_packaging.py",
}
GITHUB = ROOT / ".github/workflows/tests.yml"
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:make|snakemake|git|vllm|pip|cp|export|python|timeout|curl) \S")


def commands():
    """Each command once, with its first place: steps of jobs, lines of blocks without a language, code of numbered lists.

    Blocks of `sh` are run by test_adding.py.
    """
    jobs = read_yaml(GITHUB)["jobs"].values()
    found = {step["run"]: GITHUB.name for job in jobs for step in job["steps"] if "run" in step}
    for page in PAGES:
        text = (ROOT / page).read_text()
        blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        listed = re.findall(r"^\d+\. .*(?:\n   .*)*", text, re.MULTILINE)
        lines = [line for language, block in blocks if not language for line in block.replace("\\\n", " ").splitlines()]
        for line in [*lines, *(code for item in listed for code in re.findall(r"`([^`]+)`", item))]:
            command = re.sub(r"\s+#.*|^\. \.venv/bin/activate; ", "", line.strip())
            if COMMAND.match(command):
                found.setdefault(command, page)
    return found


COMMANDS = commands()
MADE = {command for command in COMMANDS if re.match(r"(\w+=\S+ )*make ", command) and "CONFIG=" not in command}
PLANNED = {command for command in COMMANDS if re.match(r"(timeout \S+ \d+ )?snakemake ", command)}


def mine(command):
    """A user's copy of a profile is the profile."""
    return command.replace("profiles/mine", "profiles/slurm").replace("PROFILE=mine", "PROFILE=slurm")


def test_every_command_is_made_planned_or_done_by_a_test():
    rest = {command: page for command, page in COMMANDS.items() if command not in MADE | PLANNED}
    done = {command for command in rest for pattern in DONE if re.match(pattern, command)}
    assert not rest.keys() - done
    assert all((ROOT / test).is_file() for test in DONE.values())
    assert len(MADE) > 10 and len(PLANNED) > 5
    assert not [pattern for pattern in DONE if not any(re.match(pattern, command) for command in rest)]


def test_make_knows_its_targets():
    words = [re.sub(r"^(\w+=\S+ )*make ", "", mine(command)) for command in sorted(MADE)]
    for line in words:
        succeed("make", "--dry-run", *shlex.split(line))
        for profile in re.findall(r"PROFILE=(\S+)", line):
            assert (ROOT / "profiles" / profile).is_dir()


@pytest.mark.thorough
@pytest.mark.parametrize("command", sorted(PLANNED))
def test_snakemake_plans_its_targets(command):
    succeed("bash", "-c", mine(command).replace("snakemake ", "snakemake --dry-run --quiet all --nolock ", 1))


@pytest.mark.thorough
def test_table2_costs_what_the_page_says():
    pattern = r"Table 2 takes (\S+) GPU-hours, (\S+) hours and (\S+) GB"
    hours, wall, disk = re.search(pattern, (ROOT / "docs/cluster.md").read_text()).groups()
    words = ["PROFILE=slurm", "TARGETS=table2", "--assume-old=.venv/.ready"]
    plan = succeed("make", "--silent", "plan", *words)
    assert f"GPU-hours   {hours}," in plan and f"at least {wall} h," in plan and f"disk        {disk} GB," in plan
