"""The report: the result first, then the method, claims folded by section, and every artifact with its files."""

import json
import re
import shutil
import subprocess

import pytest
from tests.conftest import refused
from tests.unit.artifact_helpers import ROOT, scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.report import read_artifacts, result, write_report

MADE = ("table1", "concept", "blog_figure1", "contents", "claims")  # of no measurement


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    config = typed(scale())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        results = folder / "results"
        for artifact in MADE:
            entry = json.loads(json.dumps(contents.resolve(config, artifact)))
            outputs = [results / f"{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]]
            make_artifact(entry, contents.input_files(config, artifact) | {"tables": []}, outputs)
        write_report(results, results / "report.html", results / "gallery.md")
    return results / "report.html"


def test_the_result_comes_first_and_everything_is_there(page):
    text = page.read_text()
    found = re.search(
        r"dimensions (\d+) quantities \((\d+) claims\) are confirmed. Of all (\d+) .* 0 are unclear and (\d+) not tested",
        text,
    )
    assert found and 1 < int(found[1]) <= int(found[2]) == int(found[3]) - int(found[4])
    order = ("concept", "claims", "blog_figure1", "table1", "contents")  # the picture, then by question
    articles = re.findall(r'<article id="(\w+)">', text)
    assert articles == list(order)
    before, _, after = text.partition("</nav>")
    linked = re.findall(r'href="#(\w+)"', before)
    assert {*order[1:]} <= {*linked} and all(f'id="{name}"' in after for name in linked)
    asked = [after.index(question) for question in ("How does it work?</h2>", "Other</h2>")]
    assert asked == sorted(asked) and before.count("data:image/svg+xml;base64,") == 1
    assert text.count("<details>") >= 8 and "<script" not in text
    links = re.findall(r'href="((?:tables|figures)/[^"]+)"', text)
    assert len(links) == sum(len(FORMS[form]) for form in ("table", "figure", "figure", "table", "table"))
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


DEMO = {"prefill_reduction_percent": 50, "niah-1k": 80, "ttft_reduction_percent": 30, "passage_kept_percent": 88}


@pytest.mark.parametrize("missing", [None, *DEMO])
def test_the_result_of_the_demo_has_no_holes(missing):
    lines = [
        {"metric": name, "variant": variant, "against": "", "value": "" if name == missing else str(value), "n": "25.0"}
        for variant, numbers in (("baseline", dict.fromkeys(DEMO, 100)), ("trained", DEMO), ("shipped", DEMO))
        for name, value in numbers.items()
    ]
    sentence = result({"demo_result": {"title": "A model: the demo", "lines": lines}})
    if missing:
        assert sentence == ""
    else:
        numbers = re.findall(r"\d+", sentence)
        assert sentence.startswith("A model ") and not re.search(r"\.[A-Z]", sentence)
        assert numbers == ["25", "25", *["50", "20", "30", "88"] * 2]


def test_without_artifacts_there_is_no_result(tmp_path):
    assert result({}) == ""
    with refused("nothing is made yet"):
        write_report(tmp_path, tmp_path / "a", tmp_path / "b")


def test_artifacts_of_a_version_with_fewer_forms_are_not_made(page):
    older = page.parent / "figures/blog_figure1.svg"
    content = older.read_bytes()
    older.unlink()
    try:
        assert "blog_figure1" not in read_artifacts(page.parent)
    finally:
        older.write_bytes(content)
