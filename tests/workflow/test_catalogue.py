"""What Snakemake's workflow catalog looks for is where it looks: workflow/Snakefile, its settings, the page on configuration."""

import contextlib

import pytest
import yaml
from tests.programs import ROOT

from pipeline.run.jobs import dry_run


@pytest.fixture(scope="module")
def usage():
    return yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]


def test_the_catalog_runs_the_same_workflow(usage):
    words = [*usage["mandatory-flags"]["flags"].split(), "--forceall", "results/local/figures/figure2_left.png"]
    with contextlib.chdir(ROOT):
        both = [dry_run("--snakefile", file, *words) for file in ("Snakefile", "workflow/Snakefile")]
    plans = [{job.outputs: job for job in jobs} for jobs in both]  # Snakemake orders jobs as it likes
    assert plans[0] == plans[1] and {job.rule for job in both[0]} >= {"similarity", "figure"}
