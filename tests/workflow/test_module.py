"""The workflow as a module of another one, under a prefix and with that one's configuration; Snakemake's own report."""

import zipfile

from tests.programs import ROOT, snakemake, succeed

from pipeline.config import FILES

CONFIGURATION = [*FILES, ROOT / "profiles/smoke/override.yaml"]
OUTER = """
module swiftkv:
    snakefile: "{root}/Snakefile"
    config: config

use rule * from swiftkv as swiftkv_*

rule mine:
    input: "elsewhere/figures/figure1.csv"
    output: "mine.txt"
    shell: "head -n 1 {{input}} > {{output}}"
"""


def test_a_figure_is_made_in_another_workflow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").write_text(OUTER.format(root=ROOT))
    (tmp_path / "mine.yaml").write_text("pathvars: {results: elsewhere}\nserving: {output_tokens: 3}\n")
    words = ["--cores", 1, "--configfile", *CONFIGURATION, "mine.yaml"]
    succeed("snakemake", *words, "--", "mine.txt")
    assert (tmp_path / "mine.txt").read_text().startswith("model,title,")
    reported = snakemake("--report", "report.zip", *words, "--", "mine.txt")
    assert reported.returncode == 0, reported.stderr[-2000:]
    with zipfile.ZipFile(tmp_path / "report.zip") as report:
        assert any(name.endswith("/figure1.png") for name in report.namelist())
        assert "1 How does it work?" in report.read("report/report.html").decode()
    planned = snakemake("--dry-run", *words, "--", "swiftkv_figure4")
    assert planned.returncode == 0 and "rule swiftkv_measure" in planned.stdout + planned.stderr
