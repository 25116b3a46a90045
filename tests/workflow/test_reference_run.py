"""`make compare` and `make redraw`, which measure nothing."""

import csv
import shutil
import sys

from tests.programs import ROOT, run
from tests.unit.test_reference import FIDELITY, SHIPPED, SIMILARITY

from pipeline.artifacts.report import read_artifacts, result
from pipeline.run.compare import folder
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import BEGIN, END, FIGURE, PAGE, REDRAWN, TABLE, page_part, redraw
from swiftkv.io import read_json, write_json


def scale(*words, cwd):
    return run(sys.executable, "-m", "pipeline", *words, "--profile", "local", cwd=cwd)


def test_a_reference_run_is_drawn_from_and_compared_with(tmp_path):
    place, results = tmp_path / "shipped/local", tmp_path / "results/local"
    for folder_of in (place, results):
        (folder_of / "similarity").mkdir(parents=True)
        shutil.copy(SHIPPED / SIMILARITY, folder_of / SIMILARITY)
    targets = ("results/local/figures/figure2_left.csv", "table2")
    drawn = scale("redraw", "--reference", place, *targets, cwd=tmp_path)
    file = "results/reference/local/figures/figure2_left.csv"
    lacking = "results/reference/local/tables/table2.csv is not drawn: the run has no scores/"
    assert drawn.stdout.startswith(f"{file}\n{lacking}") and drawn.stderr == "error: 1 artifacts could not be drawn\n"
    scores = read_json(SHIPPED / SIMILARITY)["result"]["simscore"]
    with (tmp_path / file).open(newline="") as lines:
        assert [float(row["value"]) for row in csv.DictReader(lines)] == scores

    assert scale("compare", "--reference", place, cwd=tmp_path).returncode == 0
    planted = read_json(SHIPPED / SIMILARITY)
    planted["result"]["simscore"][0] += 0.2
    write_json(results / SIMILARITY, planted)
    wrong = scale("compare", "--reference", place, cwd=tmp_path)
    assert wrong.returncode == 1 and "simscore[0] is " in wrong.stdout and "Traceback" not in wrong.stderr


def test_the_page_shows_what_the_shipped_records_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read_config(ROOT, read_profile("local", ROOT))
    assert [why for _, why in redraw(config, folder(ROOT, config), (FIGURE, TABLE))] == [None, None]
    made = {artifact.name: artifact for artifact in read_artifacts(REDRAWN / "local")}
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == page_part(made[FIGURE], made[TABLE])


def test_the_demo_ends_with_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read_config(ROOT, read_profile("local", ROOT))
    assert [why for _, why in redraw(config, folder(ROOT, config), ["demo"]) if why] == []
    closeness = read_json(SHIPPED / FIDELITY.replace("swiftkv-50", "swiftkv-33-tuned-quarter"))
    numbers = closeness["spec"]["num_key_value_layers"], closeness["result"]["kl"]["value"]
    said = result(read_artifacts(REDRAWN / "local"))
    assert f" {numbers[0]} of " in said and f" {numbers[1]:.3f} " in said
