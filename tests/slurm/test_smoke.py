"""Every rule of the smoke scale, each job through a real SLURM; and nothing is left of it afterwards."""

import re
from collections import Counter

import pytest

from pipeline.stages import rule_of, stage_of

pytestmark = pytest.mark.slurm


SMOKE = "results/smoke"
TARGETS = [  # the fewest that need every rule; `make smoke` makes the other artifacts
    *(f"{SMOKE}/scores/tiny-random/baseline/auto/{task}.json" for task in ("hellaswag", "ifeval", "mmlu")),
    *(f"{SMOKE}/figures/{figure}.png" for figure in ("figure2_left", "figure4")),
    f"{SMOKE}/moments/tiny-random/tuned.safetensors",
    f"{SMOKE}/reading/tiny-random/fitted.json",
    *(f"{SMOKE}/tables/{table}.tex" for table in ("tableB5", "early_exit")),
]


def test_every_rule_of_the_smoke_scale(cluster, workflow):
    done = workflow.run(*TARGETS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    counts, all_counts = (planned_jobs(workflow, *targets) for targets in (TARGETS, []))
    assert {*map(rule_of, counts)} == {*map(rule_of, all_counts)} - {"all", "report_page"}
    assert "Nothing to be done" in workflow.run("--dry-run", *TARGETS).stdout

    (report,) = (workflow.folder / "results/logs/slurm").glob("efficiency_report_*.csv")
    assert "Memory Usage (%)" in report.read_text()

    # Every other job went through SLURM, once, with the GPUs that its rule and model state.
    jobs = cluster.jobs()
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    rules = Counter(re.match(r"rule_([\w-]+?)_wildcards|rule_([\w-]+)", job["comment"])[0] for job in jobs)
    names = Counter({rule.removeprefix("rule_").removesuffix("_wildcards"): n for rule, n in rules.items()})
    assert names == {rule: number for rule, number in counts.items() if rule != "all" and not stage_of(rule).local}
    for job in jobs:
        rule = re.match(r"rule_([\w-]+?)(_wildcards|$)", job["comment"])[1]
        two = rule == "distill" and "tiny-random-moe" in job["comment"]
        gpus = 1 + two if stage_of(rule).gpus else 0
        assert job["gpus"] == (f"gres:gpu:h100:{gpus}" if gpus else "N/A"), job
        assert job["partition"] == ("h100" if gpus else "cpu"), job
        known = cluster.job(job["id"])
        assert known["NumNodes"] == ("2" if two else "1") and known["Account"] == "swiftkv", job


def planned_jobs(workflow, *targets):
    """How many jobs of each rule all that is needed for the targets takes."""
    planned = workflow.run("--quiet", "rules", "--forceall", "--dry-run", *targets)
    found = re.findall(r"^([\w-]+) +(\d+)$", planned.stdout + planned.stderr, flags=re.MULTILINE)
    return {rule: int(number) for rule, number in found if rule != "total"}
