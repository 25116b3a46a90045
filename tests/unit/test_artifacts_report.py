"""The report: the result first, then the method, claims folded by section, and every artifact with its files."""

import json
import re
import shutil
import subprocess

import pytest
from tests.unit.artifact_helpers import ROOT, SMOL, saved, scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.report import write_report
from swiftkv.errors import UserError
from swiftkv.io import read_json

SHIPPED = ROOT / "resources/reference/local"
MADE = ("table1", "blog_figure1", "contents", "claims")  # of no measurement


def make(config, artifact, results, **files):
    """Make an artifact below a folder of results; some of its files are others."""
    entry = json.loads(json.dumps(contents.resolve(config, artifact)))
    outputs = [results / f"{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]]
    make_artifact(entry, contents.needs(config, artifact) | files, outputs)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    config = typed(scale())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for artifact in MADE:
            make(config, artifact, folder / "results", **({"tables": []} if artifact == "claims" else {}))
        results = folder / "results"
        write_report(results, results / "report.html", results / "gallery.md")
    return results / "report.html"


def test_the_result_comes_first_and_everything_is_there(page):
    text = page.read_text()
    found = re.search(
        r"Of (\d+) claims of the paper and the blog post, (\d+) agree \((\d+) distinct values; (\d+) claims with",
        text,
    )
    assert found and found[2] == found[4] and 1 < int(found[3]) <= int(found[2])
    places = [text.index(f'id="{name}"') for name in ("blog_figure1", "table1", "claims", "contents")]
    assert text.index(found[0]) < places[0] and places == sorted(places)
    assert text.count("<details>") >= 8 and "<script" not in text
    links = re.findall(r'href="((?:tables|figures)/[^"]+)"', text)
    assert len(links) == sum(len(FORMS[form]) for form in ("table", "figure", "table", "table"))
    assert all((page.parent / link).is_file() for link in links)
    assert "](figures/blog_figure1.png)" in (page.parent / "gallery.md").read_text()


MEASURE = """<script>
document.querySelectorAll("details").forEach((one) => (one.open = true));
const cell = document.querySelector("#claims tbody td:nth-child(2)").getBoundingClientRect();
document.title = `${cell.left} ${cell.right} ${document.documentElement.scrollWidth} ${window.innerWidth}`;
</script>"""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1280, 500, 390])
def test_the_verdict_is_visible_in_a_wide_and_a_narrow_window(page, tmp_path, width):
    framed, inner = tmp_path / "framed.html", tmp_path / "page.html"
    inner.write_text(page.read_text().replace("</body>", MEASURE + "</body>"))
    # A window of Chromium is 500 pixels wide at least, a frame is not.
    framed.write_text(
        f'<iframe id="f" src="page.html" width="{width}" height="900"></iframe>'
        '<script>window.onload = () => { document.title = document.getElementById("f").contentDocument.title; };</script>'
    )
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    run = subprocess.run(
        [*words, f"--user-data-dir={tmp_path / 'profile'}", f"file://{framed}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    left, right, whole, window = map(float, re.search(r"<title>(.*?)</title>", run.stdout)[1].split())
    assert 0 < left < right <= window and whole <= window


@pytest.mark.parametrize(
    ("turns", "start", "said"),
    [
        (4, True, "first token is 1.34× [1.09, 1.65]."),
        (1, True, "first token is 1.50×."),
        (0, True, None),
        (4, False, None),
    ],
)
def test_the_demo_needs_no_turns_and_no_start_for_its_report(tmp_path, capsys, turns, start, said):
    with pytest.raises(UserError, match="nothing is made yet"):
        write_report(tmp_path, tmp_path / "a", tmp_path / "b")
    config = scale("local")
    config["serving"]["in_turns"] = turns > 1
    places = {"fidelity": "fidelity", "serving": "serving/answer"}
    records = {
        key: read_json(SHIPPED / place / SMOL / "swiftkv-33-tuned-quarter/auto.json") for key, place in places.items()
    }
    records["reading"] = read_json(SHIPPED / "reading" / SMOL / "swiftkv-33-tuned-quarter.json")
    records["serving"]["settings"]["in_turns"] = turns > 1
    records["fidelity"]["result"]["start"] = records["fidelity"]["result"]["start"] if start else None
    times = {"samples_ms": [500, 500, 500, 500][: turns or 1], "baseline_samples_ms": [750, 600, 750, 600][:turns]}
    records["serving"]["result"] |= times
    files = {key: saved(tmp_path / "records", [record]) for key, record in records.items()}
    for artifact, keys in (("demo_quality", ("fidelity", "reading")), ("demo_answer", ("serving",))):
        make(typed(config), artifact, tmp_path / "results", **{key: files[key] for key in keys})
    write_report(tmp_path / "results", tmp_path / "report.html", tmp_path / "gallery.md")
    _, *sentences = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert len(sentences) == (said is not None) and all(sentence.endswith(said) for sentence in sentences)
