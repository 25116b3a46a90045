"""`make compare` and `make redraw`, which measure nothing."""

import csv
import sys

from tests.programs import ROOT, run
from tests.unit.test_reference import SMOL, similarity

from pipeline.artifacts.report import read_artifacts
from pipeline.run.compare import folder
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import BEGIN, END, FIGURE, README, REDRAWN, TABLE, readme_part, redraw
from swiftkv.io import write_json


def scale(*words, cwd):
    return run(sys.executable, "-m", "pipeline.run", *words, "--profile", "local", cwd=cwd)


def test_the_reference_run_is_drawn_from_and_compared_with(tmp_path):
    place = tmp_path / "shipped/local"
    write_json(place / f"similarity/{SMOL}.json", similarity())
    targets = ("results/local/figures/figure2_left.csv", "results/local/tables/table2.csv")
    drawn = scale("redraw", "--reference", place, *targets, cwd=tmp_path)
    file = "results/reference/local/figures/figure2_left.csv"
    lacking = f"results/reference/local/tables/table2.csv is not drawn: the run has no scores/{SMOL}/baseline/"
    assert drawn.stdout.startswith(f"{file}\n{lacking}") and drawn.stderr == "error: 1 artifacts could not be drawn\n"
    with (tmp_path / file).open(newline="") as lines:
        assert [float(row["simscore"]) for row in csv.DictReader(lines)] == similarity()["result"]["simscore"]
    assert {path.name for path in (tmp_path / "results").rglob("*")} >= {"figure2_left.png", "figure2_left.pdf"}

    write_json(tmp_path / f"results/local/similarity/{SMOL}.json", similarity())
    assert scale("compare", "--reference", place, cwd=tmp_path).returncode == 0
    planted = similarity()
    planted["result"]["simscore"][0] = 0.3
    write_json(tmp_path / f"results/local/similarity/{SMOL}.json", planted)
    wrong = scale("compare", "--reference", place, cwd=tmp_path)
    assert wrong.returncode == 1 and "simscore[0] is 0.3, in the reference 0.1" in wrong.stdout


def test_the_readme_shows_what_the_shipped_records_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read_config(ROOT, read_profile("local", ROOT))
    assert [why for _, why in redraw(config, folder(ROOT, config), (FIGURE, TABLE))] == [None, None]
    made = {artifact.name: artifact for artifact in read_artifacts(REDRAWN / "local")}
    text = (ROOT / README).read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == readme_part(made[FIGURE], made[TABLE])
