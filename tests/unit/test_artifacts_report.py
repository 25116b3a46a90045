"""The report: every number leads to its measurement, and the page works in a narrow browser, without network."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from artifact_helpers import ROOT, scale, typed
from tests.unit.test_contents_walk import FORMS, provide

from pipeline.artifacts import contents
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.report import write_report
from pipeline.run import reference_run
from swiftkv.errors import UserError

MADE = ("table2", "panel", "training_cost", "speed_and_quality", "figure3", "figure1", "contents", "claims")
BENCHMARK = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


@pytest.fixture(scope="module")
def config():
    return scale("smoke")


@pytest.fixture(scope="module")
def page(config, tmp_path_factory):
    """The report on a few artifacts of the smoke scale, of made-up measurements."""
    folder = tmp_path_factory.mktemp("report")
    config["pathvars"] = {key: str(folder / key) for key in config["pathvars"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for artifact in MADE:
            entry = json.loads(json.dumps(contents.resolve(typed(config), artifact)))
            files = contents.needs(typed(config), artifact)
            if artifact == "claims":
                files["tables"] = [path for path in files["tables"] if Path(path).exists()]
            for path in (path for group in files.values() for path in group):
                if not path.startswith("resources/") and not Path(path).exists():
                    provide(config, path)
            outputs = [folder / f"results/{entry['form']}s/{artifact}.{form}" for form in FORMS[entry["form"]]]
            make_artifact(entry, files, outputs)
        for place, seconds in {"score/m/a": 1234.5, "heldout": 3}.items():
            path = folder / f"benchmarks/{place}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"{BENCHMARK}{seconds}\t0:00:01\t{'NA' if place == 'heldout' else 900}\t1\t1\t1\t0\t0\t9\t1\n"
            )
        return written(folder)


def written(folder, results=None):
    results = results or folder / "results"
    write_report(results, folder / "benchmarks", results / "report.html", results / "gallery.md")
    return results / "report.html"


class Cells(HTMLParser):
    """The cells of one article: (header of the column, text, the files behind it)."""

    def __init__(self, text, article):
        super().__init__()
        self.cells, self.heads, self.where = [], [], None
        self.feed(re.search(rf'<article id="{article}">(.*?)</article>', text, re.DOTALL)[1])

    def handle_starttag(self, tag, attributes):
        if tag == "thead":
            self.heads = []
        elif tag == "tr":
            self.column = -1
        elif tag in ("td", "th"):
            self.column += 1
            self.where, self.text = tag, ""
            self.files = [int(file) for file in dict(attributes).get("data-files", "").split()]

    def handle_data(self, data):
        if self.where:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "th" and self.where:
            self.heads.append(self.text)
        elif tag == "td":
            self.cells.append((self.heads[self.column], self.text, self.files))
        if tag in ("td", "th"):
            self.where = None


def packed(text):
    """The paths of the files in a page, in their order."""
    return [path for path, _ in json.loads(re.search(r'id="packed">(.*?)</script>', text, re.DOTALL)[1])]


def test_measured_numbers_lead_to_their_records(page, config):
    text = page.read_text()
    paths = packed(text)
    tasks = {
        task["title"]: name for name, task in config["tasks"].items() if name in config["sets"]["tasks"]["benchmarks"]
    }
    checked = set()
    for head, number, files in Cells(text, "table2").cells:
        title = max((title for title in tasks if head.startswith(title)), key=len, default=None)
        if (task := tasks.get(title)) and re.match(r"[≈\s]*\d", number):
            found = [paths[file] for file in files]
            assert found and all("/scores/" in path and path.endswith(f"/{task}.json") for path in found), (head, found)
            checked.add(task)
    assert checked == set(tasks.values())
    speeds = [files for head, _, files in Cells(text, "figure3").cells if head == "tokens_per_second"]
    assert speeds and all(speeds) and all("/serving/" in paths[file] for files in speeds for file in files)
    assert not [head for head, said, files in Cells(text, "panel").cells if "±" in said and not files]
    judged = [files for head, _, files in Cells(text, "claims").cells if head == "Measured" and files]
    assert judged and all(re.search(r"/(scores|fidelity|training|serving)/", paths[files[0]]) for files in judged)
    assert not any(files for _, _, files in Cells(text, "figure1").cells)  # drawn from the spec alone


def test_the_page_holds_all_and_asks_for_nothing(page):
    text = page.read_text()
    order = re.findall(r'<article id="(\w+)">', text)
    assert "&lt;" not in text.partition('id="table2"')[2].partition("</article>")[0]
    assert order[:2] == ["claims", "panel"] and set(order) == {*MADE, "runs", "files"}
    links = re.findall(r' (?:href|src)="([^"]*)"', text)
    assert {link.split(":")[0] for link in links if not link.startswith("#")} == {"data"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(order)
    missing = re.search(r'class="missing">Not made yet: (.*?)\. <', text)[1].split(", ")
    assert "figure4" in missing and not {*missing} & {*MADE}
    runs = [said for _, said, _ in Cells(text, "runs").cells]
    assert runs[:5] == ["score", "1", "1,234", "1,234", "900"] and runs[5:10] == ["heldout", "1", "3", "3", ""]


def test_the_readme_and_the_gallery_show_a_run(page, tmp_path):
    readme = tmp_path / reference_run.README
    readme.write_text(f"before\n{reference_run.BEGIN}old\n{reference_run.END}after\n")
    said = reference_run.show(page.parent, tmp_path)
    text = readme.read_text()
    part = text.partition(reference_run.BEGIN)[2].partition(reference_run.END)[0]
    assert text == f"before\n{reference_run.BEGIN}{part}{reference_run.END}after\n" and "old" not in part
    grid = [line for line in (page.parent / "tables/speed_and_quality.md").read_text().splitlines() if "|" in line]
    assert [line for line in part.splitlines() if line.startswith("|")] == grid
    gallery = (tmp_path / reference_run.GALLERY / "README.md").read_text()
    assert re.findall(r"\]\((.*?)\)", gallery) == ["figure1.png", "figure3.png"]
    assert reference_run.show(page.parent, tmp_path) == said and readme.read_text() == text
    readme.write_text("no place")
    with pytest.raises(UserError, match="README.md"):
        reference_run.show(page.parent, tmp_path)


def test_what_an_unfinished_run_has_made_is_shown(page, tmp_path):
    (tmp_path / "results/tables").mkdir(parents=True)
    for file in page.parent.glob("tables/table2.*"):
        shutil.copy(file, tmp_path / "results/tables")
    text = written(tmp_path).read_text()
    assert re.findall(r'<article id="(\w+)">', text) == ["table2", "runs", "files"]
    with pytest.raises(UserError, match="nowhere"):
        written(tmp_path, tmp_path / "nowhere")


CHROMIUM = shutil.which("chromium")
# What a script that runs in the page finds, and errors, replace the page; Chromium's windows are at least 500 pixels wide.
LISTEN = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message || `cannot load ${event.target.src?.slice(0, 99)}`), true);
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
</script>"""
REPORT = """<script>
addEventListener("load", async () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const shown = () => all("article").filter((one) => one.offsetParent && one.offsetHeight >= 40).map((one) => one.id);
  const found = { width: document.documentElement.scrollWidth, every: shown(), count: all("article").length };
  found.asked = performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !name.startsWith("data:"));
  const search = document.getElementById("search");
  search.value = "wiring";
  search.dispatchEvent(new Event("input"));
  found.wiring = shown();
  search.value = "";
  search.dispatchEvent(new Event("input"));
  const dialog = document.getElementById("record");
  all("#table2 td[data-files]").find((one) => one.dataset.files.split(" ").length === 1).click();
  for (let i = 0; i < 200 && !dialog.open; i++) await new Promise((done) => setTimeout(done, 20));
  found.path = dialog.querySelector("summary").textContent;
  found.record = JSON.parse(dialog.querySelector("pre").textContent);
  const said = document.createElement("pre");
  said.textContent = JSON.stringify({ errors, ...found });
  document.documentElement.replaceChildren(said);
});
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="there is no chromium; `apt-get install chromium`")
def test_the_page_answers_in_a_narrow_window(page):
    text = page.read_text().replace("<head>", f"<head>{LISTEN}", 1)
    probe = page.with_name("probe.html")
    probe.write_text(text.replace("</body>", REPORT + "</body>", 1))
    opened = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=500,900",
         "--virtual-time-budget=20000", f"--user-data-dir={page.parents[1] / 'browser'}", "--dump-dom", probe.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in opened.stderr, opened.stderr
    found = json.loads(html.unescape(re.search(r"<pre>(.*)</pre>", opened.stdout, re.DOTALL)[1]))
    assert not found["errors"] and not found["asked"] and found["width"] <= 500
    assert len(found["every"]) == found["count"]
    assert "figure1" in found["wiring"] and "table2" not in found["wiring"]
    assert found["record"] == json.loads(Path(found["path"]).read_text())
