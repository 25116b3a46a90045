"""The report: every number leads to its measurement, and the page works in a browser, without network, wide and narrow."""

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
from pipeline.artifacts.report.origins import Origins
from pipeline.run import reference_run
from swiftkv.errors import UserError
from swiftkv.io import write_json

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
        for place, seconds in {"score/m/a": 1234.5, "score/m/b": 10, "heldout": 3}.items():
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


def test_a_score_leads_to_its_record(page, config):
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


def test_every_measured_number_leads_somewhere(page):
    text = page.read_text()
    speeds = [files for head, _, files in Cells(text, "figure3").cells if head == "tokens_per_second"]
    assert speeds and all("/serving/" in packed(text)[file] for files in speeds for file in files) and all(speeds)
    for artifact in ("table2", "panel"):
        unlinked = [(head, said) for head, said, files in Cells(text, artifact).cells if "±" in said and not files]
        assert not unlinked, artifact
    assert not any(files for _, _, files in Cells(text, "figure1").cells)  # drawn from the spec alone


def test_a_claim_leads_to_what_judged_it(page):
    text = page.read_text()
    paths = packed(text)
    measured = [files for head, said, files in Cells(text, "claims").cells if head == "Measured" and files]
    assert measured and all(re.search(r"/(scores|fidelity|training|serving)/", paths[files[0]]) for files in measured)


def test_an_origin_is_the_most_exact_that_there_is(tmp_path):
    def write(name, variant, result, **settings):
        record = {"measure": "x", "model": {"name": "m"}, "variant": variant, "kv_cache": "auto"}
        write_json(tmp_path / name, record | {"settings": settings, "result": result})
        return str(tmp_path / name)

    files = [
        write("arc.json", "a", {"value": 1}, task="arc"),
        write("gsm.json", "a", {"value": 1}, task="gsm"),
        write("close.json", "a", {"kl": {}}),
        write("other.json", "b", {"kl": {}}),
        "resources/paper/table2.csv",
    ]
    origins = Origins({"one": files, "two": [*files[:1], "results/tables/one.csv"], "three": files[4:]})
    assert origins.of == {"one": [0, 1, 2, 3, 4], "two": [0], "three": [4]}
    for origin, found in {
        "m/a/auto/arc": [0],
        "m/a/auto/kl": [2],
        "m/a/auto/start_kl": [2],
        "m/a/auto/average": [0, 1, 2],
        "m/b/auto/kl;m/a/auto/kl": [3, 2],
        "m///kl": [2, 3],
        "m/unknown/auto/kl": [],
        "three#m/a/auto/flops": [4],
        "published": [4],
        "two#m/a/auto/gsm": [0],
    }.items():
        assert origins.find(origin, "one") == found, origin


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
    assert runs[:5] == ["score", "2", "1,244", "1,234", "900"] and runs[5:10] == ["heldout", "1", "3", "3", ""]


def test_equal_files_give_equal_pages(page):
    before = page.read_bytes()
    assert written(page.parents[1]).read_bytes() == before


def test_the_gallery_shows_every_figure(page):
    text = page.with_name("gallery.md").read_text()
    shown = re.findall(r"\]\((.*?)\)", text)
    assert shown == [f"figures/{name}.{form}" for name in ("figure1", "figure3") for form in ("png", "pdf", "csv")]
    assert all((page.parent / path).exists() for path in shown)
    captions = scale("smoke")["artifacts"]
    assert all(captions[name]["caption"] in text for name in ("figure1", "figure3"))


def test_the_readme_and_the_gallery_show_a_run(page, tmp_path):
    readme = tmp_path / reference_run.README
    readme.write_text(f"before\n{reference_run.BEGIN}old\n{reference_run.END}after\n")
    said = reference_run.show(page.parent, tmp_path)
    text = readme.read_text()
    assert said.endswith("2 figures; " + str(readme) + ": figure3 and speed_and_quality")
    before, _, after = text.partition(reference_run.BEGIN)
    part, _, after = after.partition(reference_run.END)
    assert (before, after) == ("before\n", "after\n") and "old" not in part
    grid = [line for line in (page.parent / "tables/speed_and_quality.md").read_text().splitlines() if "|" in line]
    assert [line for line in part.splitlines() if line.startswith("|")] == grid
    links = re.findall(r"\]\((.*?)\)", part)
    assert {*links} == {"docs/gallery/figure3.png", "docs/gallery/README.md"}
    gallery = tmp_path / reference_run.GALLERY / "README.md"
    pictures = re.findall(r"\]\((.*?)\)", gallery.read_text())
    assert pictures == ["figure1.png", "figure3.png"]
    sizes = [
        ((gallery.parent / name).stat().st_size, (page.parent / "figures" / name).stat().st_size) for name in pictures
    ]
    assert all(small < large / 2 for small, large in sizes)
    assert reference_run.show(page.parent, tmp_path) == said and readme.read_text() == text
    readme.write_text("no place")
    with pytest.raises(UserError, match="README.md has no lines"):
        reference_run.show(page.parent, tmp_path)


def test_what_an_unfinished_run_has_made_is_shown(page, tmp_path):
    (tmp_path / "results/tables").mkdir(parents=True)
    for file in page.parent.glob("tables/table2.*"):
        shutil.copy(file, tmp_path / "results/tables")
    text = written(tmp_path).read_text()
    assert re.findall(r'<article id="(\w+)">', text) == ["table2", "runs", "files"]
    with pytest.raises(UserError, match=r"nothing is made yet in \S+; run `make reproduce` first"):
        written(tmp_path, tmp_path / "nowhere")


# In a browser

CHROMIUM = shutil.which("chromium")
LISTEN = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message || `cannot load ${event.target.src?.slice(0, 99)}`), true);
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
</script>"""
REPORT = """<script>
addEventListener("load", async () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const until = async (there) => { for (let i = 0; i < 200 && !there(); i++) await new Promise((done) => setTimeout(done, 20)); };
  const found = await (async () => { %s })().catch((error) => ({ failed: String(error) }));
  parent.postMessage({ errors, ...found }, "*");
});
</script>"""
FRAME = """<!DOCTYPE html><iframe src="%s" width="%d" height="900" style="border: 0"></iframe><script>
addEventListener("message", ({ data }) => {
  const said = document.createElement("pre");
  said.textContent = JSON.stringify(data);
  document.documentElement.replaceChildren(said);
});
</script>"""


def browse(page, script, width=1280):
    """What a script returns that runs in a page, opened from disk by headless Chromium in a frame of so many pixels.

    Chromium's own windows are at least 500 pixels wide.
    """
    probe = page.with_name("probe.html")
    text = page.read_text().replace("<head>", f"<head>{LISTEN}", 1)
    probe.write_text(text.replace("</body>", REPORT % script + "</body>", 1))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME % (probe.name, width))
    opened = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1400,1000",
         "--virtual-time-budget=20000", f"--user-data-dir={page.parents[1] / 'browser'}", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in opened.stderr, opened.stderr
    found = json.loads(html.unescape(re.search(r"<pre>(.*)</pre>", opened.stdout, re.DOTALL)[1]))
    assert not found.pop("errors") and "failed" not in found, found
    return found


browser = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium; `apt-get install chromium`")


@browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_readable(page, width):
    found = browse(
        page,
        """
        const size = (node) => parseFloat(getComputedStyle(node).fontSize);
        all("details").forEach((one) => (one.open = true));
        return {
          width: innerWidth,
          page: document.documentElement.scrollWidth,
          letters: Math.min(...all("td, p, li, th").filter((one) => one.offsetParent).map(size)),
          sharp: all("img").map((one) => one.naturalWidth / one.clientWidth),
          asked: performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !name.startsWith("data:")),
          hidden: all("article").filter((one) => !one.offsetParent || one.offsetHeight < 40).map((one) => one.id),
        };
        """,
        width,
    )
    assert found["width"] == width and found["page"] <= width
    assert found["letters"] >= 12 and len(found["sharp"]) == 2 and min(found["sharp"]) >= 2
    assert not found["asked"] and not found["hidden"]


@browser
def test_the_page_answers(page):
    found = browse(
        page,
        """
        const search = document.getElementById("search");
        const type = (words) => { search.value = words; search.dispatchEvent(new Event("input")); };
        const shown = () => all("article").filter((one) => one.offsetParent).map((one) => one.id);
        type("wiring");
        const wiring = shown();
        type("no such word");
        const none = shown();
        type("");
        const every = shown().length;
        all("[data-search]")[0].click();
        const verdicts = all("#claims tbody td:last-child").filter((one) => one.offsetParent).map((one) => one.textContent);
        const verdict = search.value;
        type("");

        const head = all("#runs details th")[1];
        document.querySelector("#runs details").open = true;
        const seconds = () => all("#runs details td:nth-child(2)").map((one) => one.textContent);
        head.click();
        const up = seconds();
        head.click();
        const down = seconds();
        const below = document.querySelector("#panel tr.below");
        const above = below.previousElementSibling;
        all("th", below.closest("table")).at(-1).click();
        const together = below.previousElementSibling === above;

        const cell = all("#table2 td[data-files]").find((one) => one.dataset.files.split(" ").length === 1);
        const dialog = document.getElementById("record");
        cell.click();
        await until(() => dialog.open);
        const path = dialog.querySelector("summary").textContent;
        const record = JSON.parse(dialog.querySelector("pre").textContent);
        const whole = decodeURIComponent(dialog.querySelector("a").href.split(",").slice(1).join(","));
        dialog.querySelector("button").click();

        const marked = all("td.marked")[0];
        const [mark] = marked.textContent.match(/\\[\\d+\\]/);
        marked.click();
        const note = dialog.open && dialog.lastElementChild.textContent;
        dialog.querySelector("button").click();

        const downloads = all("a[download]").filter((one) => !one.href.startsWith("data:")).map((one) => one.download);
        return { wiring, none, every, verdicts, verdict, up, down, together, path, record, whole, mark, note, downloads,
                 closed: !dialog.open, count: all("article").length };
        """,
    )
    assert found["wiring"][0] == "figure1" or "figure1" in found["wiring"]
    assert "table2" not in found["wiring"] and found["none"] == [] and found["every"] == found["count"]
    assert found["verdicts"] and all(said.startswith(found["verdict"]) for said in found["verdicts"])
    assert found["up"] == ["3.0", "10.0", "1,234.5"] and found["down"] == found["up"][::-1] and found["together"]
    assert found["record"] == json.loads(found["whole"]) == json.loads(Path(found["path"]).read_text())
    assert found["note"].startswith(f"{found['mark']} ")
    assert found["downloads"] == [] and found["closed"]
