"""What a newcomer reads while a run goes on: steps, artifacts, a failure with its log and what it takes with it, the end."""

import re

import yaml
from tests.programs import ROOT, SNAKEMAKE, run


def test_a_run_with_a_failed_step_in_few_lines(tmp_path):
    changes = {
        "pathvars": {name: str(tmp_path / name) for name in ("results", "logs", "benchmarks")},
        "heldout": {"chats": 1_000_000},  # more than there are
        "sets": {"artifacts": {"few": ["figure1", "figure2_left"]}},
    }
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(changes))
    files = ["--configfile", ROOT / "profiles/smoke/override.yaml", tmp_path / "more.yaml"]
    command = [SNAKEMAKE, "--profile", "profiles/smoke", "--nolock", "--logger", "swiftkv", *files]

    ended = run(*command, "--", "few")
    said = [line for line in ended.stderr.splitlines() if "still running: " not in line]  # on a busy machine
    assert ended.returncode == 1 and ended.stdout == ""
    assert not re.search(
        r"jobid|Select jobs|resources:|Traceback|CalledProcessError|^rule ", ended.stderr, re.MULTILINE
    )
    assert any(re.match(r"6 steps, about .* \(estimated\)", line) for line in said)
    (made,) = (line for line in said if "resolve model tiny-random" in line)
    assert re.match(r"\[\d/6\] +\d+ (s|min) left  resolve model tiny-random, ", made)
    assert [line.split("  ")[-1] for line in said if "ready: " in line] == [
        f"ready: {tmp_path}/results/figures/figure1.png"
    ]
    (failed,) = (
        number for number, line in enumerate(said) if "FAILED: heldout: the data has 100 chats, too few" in line
    )
    assert said[failed + 1].strip() == f"its log: {tmp_path}/logs/heldout.log"
    assert said[failed + 2].strip().startswith("left out with it: 3 steps, and so figure2_left")
    (end,) = (number for number, line in enumerate(said) if line.startswith("Not finished after "))
    assert "1 of 2 tables and figures made" in said[end] and "failed      heldout: the data has" in said[end + 1]
    assert "resolve_model" in ended.stderr.partition("  time ")[2] and len(said) < 20
    assert "too few to hold out" in (tmp_path / "logs/heldout.log").read_text()

    again = run(*command, "--", str(tmp_path / "results/figures/figure1.png"))
    assert again.returncode == 0 and "Nothing to be done" in again.stderr and len(again.stderr.splitlines()) < 4
