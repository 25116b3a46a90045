"""The report: one page with every table and figure of a folder of results, and a gallery of the figures.

Both are made of the artifacts' own files, so what an unfinished run has made can be shown too. The page needs nothing else, and
has every file that its numbers are from: see `origins`.
"""

from __future__ import annotations

import base64
import csv
import html
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.artifacts.columns import origin
from pipeline.artifacts.kind import FORMS
from pipeline.artifacts.report.origins import Origins
from pipeline.artifacts.report.runs import jobs, made_on
from pipeline.artifacts.table import STYLE, read_html
from pipeline.artifacts.verdicts import VERDICTS
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(["html"]),
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["megabytes"] = lambda number: f"{number:,.0f}" if isinstance(number, float) else ""
MIME = {"png": "image/png", "pdf": "application/pdf"}
SHARP = 2.2  # pixels of a picture for one of the page, for screens with as many; its letters are then as large as the page's
_NUMBER = re.compile(r"-?\d")


@dataclass(frozen=True)
class Artifact:
    """A table or figure that was made, by the file that says what it is."""

    path: Path

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What `make_artifact` says of it: name, form, section, label, caption, title and files."""
        return read_json(self.path)

    @property
    def name(self) -> str:
        """Its name in artifacts.yaml."""
        return self.about["name"]

    @property
    def files(self) -> list[str]:
        """What it is made of, other artifacts too."""
        return list(dict.fromkeys(path for group in self.about["files"].values() for path in group))

    @property
    def forms(self) -> tuple[str, ...]:
        """The files of it that can be downloaded."""
        return tuple(form for form in FORMS[self.about["form"]] if form not in ("html", "json"))

    def file(self, form: str) -> Path:
        """Where one form of it lies."""
        return self.path.with_suffix(f".{form}")

    def data(self, form: str) -> str:
        """One form of it as a URL that holds it."""
        return f"data:{MIME.get(form, 'text/plain')};base64,{base64.b64encode(self.file(form).read_bytes()).decode()}"

    @property
    def width(self) -> int:
        """Pixels of a page that its picture takes, each of several of its own."""
        (pixels,) = struct.unpack(">I", self.file("png").read_bytes()[16:20])
        return round(pixels / SHARP)

    @cached_property
    def lines(self) -> list[dict[str, str]]:
        """Its CSV."""
        with self.file("csv").open(newline="") as lines:
            return list(csv.DictReader(lines))

    @cached_property
    def printed(self) -> tuple[str, str]:
        """The title and the grids of a table, as HTML."""
        return read_html(self.file("html").read_text())

    @property
    def title(self) -> str | Markup:
        """With the models that ran, and of serving the machine."""
        return Markup(self.printed[0]) if self.about["form"] == "table" else self.about["title"]


def write_report(results: Path, benchmarks: Path, page: Path, gallery: Path) -> None:
    """Write the report and the gallery of what lies in a folder of results.

    Args:
        results: the folder with `tables` and `figures`.
        benchmarks: Snakemake's benchmark files; those that are there give the run times.
        page: HTML, self-contained.
        gallery: Markdown beside `figures`, with links to them.

    Raises:
        UserError: nothing is made there, or a file is damaged.
    """
    artifacts = read_artifacts(results)
    origins, about = _made_of(artifacts)
    text = TEMPLATES.get_template("page.html").render(
        **about,
        sections=_sections(artifacts),
        missing=_missing(artifacts),
        verdicts=_verdicts(artifacts),
        origins=origins,
        grids=lambda artifact: _linked(artifact, origins),
        numbers=lambda artifact: _numbers(artifact, origins),
        jobs=jobs(benchmarks),
        style=Markup(STYLE + _asset("page.css")),
        script=Markup(_asset("page.js")),
    )
    with atomic_path(page) as scratch:
        scratch.write_text(text)
    write_gallery(artifacts, gallery, "figures/")
    size = page.stat().st_size / 1e6
    print(f"{page}: {len(artifacts)} tables and figures, {about['records']} measurements, {size:.1f} MB")


def write_gallery(artifacts: Sequence[Artifact], page: Path, figures: str = "") -> None:
    """Write a page of Markdown with the figures among some artifacts.

    Args:
        artifacts: what was made.
        page: the file.
        figures: where the figures lie from there, with their other forms; empty for pictures alone, beside the page.
    """
    with atomic_path(page) as scratch:
        scratch.write_text(TEMPLATES.get_template("gallery.md").render(**_made_of(artifacts)[1], folder=figures))


def _made_of(artifacts: Sequence[Artifact]) -> tuple[Origins, dict[str, Any]]:
    """What artifacts are made of, and what pages say of that."""
    origins = Origins({artifact.name: artifact.files for artifact in artifacts})
    records = [record for record in origins.records.values() if "measure" in record]
    models = list(dict.fromkeys(record["model"]["title"] for record in records))
    about = {"models": models, "artifacts": artifacts, "made_on": made_on(records), "records": len(records)}
    return origins, about


def read_artifacts(results: Path) -> list[Artifact]:
    """What was made, by section, and in each in the order of the contents page.

    Raises:
        UserError: nothing was.
    """
    found = [Artifact(path) for form in FORMS for path in sorted(results.glob(f"{form}s/*.json"))]
    if not found:
        raise UserError(f"nothing is made yet in {results}; run `make reproduce` first")
    order = [line["name"] for line in _contents(found)]
    return sorted(found, key=lambda one: (one.about["section"], one.name not in order, _place(one.name, order)))


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else 0


def _lines_of(artifacts: Iterable[Artifact], name: str) -> list[dict[str, str]]:
    return next((one.lines for one in artifacts if one.name == name), [])


def _contents(artifacts: Iterable[Artifact]) -> list[dict[str, str]]:
    """The lines of the contents page; none where it was not made."""
    return _lines_of(artifacts, "contents")


def _missing(artifacts: Sequence[Artifact]) -> list[str]:
    """What the contents page has for this scale and was not made yet."""
    made = {one.name for one in artifacts}
    return [line["name"] for line in _contents(artifacts) if line["made"] == "True" and line["name"] not in made]


def _sections(artifacts: Iterable[Artifact]) -> dict[str, list[Artifact]]:
    sections: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        sections.setdefault(artifact.about["section"].partition(" ")[2], []).append(artifact)
    return sections


def _verdicts(artifacts: Iterable[Artifact]) -> dict[str, int]:
    """How many claims have each verdict."""
    counts = Counter(line["verdict"] for line in _lines_of(artifacts, "claims"))
    return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}


def _linked(artifact: Artifact, origins: Origins) -> Markup:
    """The grids of a table, each measured number with the files that it is from."""

    def link(found: re.Match[str]) -> str:
        return _attribute(origins.find(html.unescape(found[1]), artifact.name))

    grids = re.sub(r"(</?)h2>", r"\1h4>", artifact.printed[1])
    return Markup(re.sub(r' data-of="([^"]*)"', link, grids))


def _numbers(artifact: Artifact, origins: Origins) -> Iterator[list[tuple[str, Markup]]]:
    """The cells of a figure's CSV, each number with the files that it is from."""
    for line in artifact.lines:
        yield [
            (text, Markup(_attribute(origins.find(origin(line, key), artifact.name)) if _NUMBER.match(text) else ""))
            for key, text in line.items()
        ]


def _attribute(files: Sequence[int]) -> str:
    return f' data-files="{" ".join(map(str, files))}"' if files else ""


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
