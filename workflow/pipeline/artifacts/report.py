"""One page with everything that was made: the result in a sentence, the method, a headline table, claims, all artifacts."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.artifacts.claims import VERDICTS
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.records import PROJECT, Record, provenance
from pipeline.artifacts.writers import STYLE, read_html
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_text

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(["html"]),
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Artifact:
    """A finished table or figure, by its JSON file."""

    path: Path

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Name, form, section, label, caption, title and files, as `make_artifact` writes them."""
        return read_json(self.path)

    @property
    def name(self) -> str:
        """Its name in artifacts.yaml."""
        return self.about["name"]

    def file(self, form: str) -> Path:
        """Where one form of it lies."""
        return self.path.with_suffix(f".{form}")

    @property
    def lines(self) -> list[dict[str, str]]:
        """Its CSV."""
        return read_csv(self.file("csv"))

    @property
    def body(self) -> str:
        """A table's grids with their notes as HTML, or a figure's picture in base64."""
        if self.about["form"] == "table":
            grids = read_html(self.file("html").read_text(encoding="utf-8"))[1]
            return Markup(re.sub(r"(</?)h2>", r"\1h4>", grids))
        return base64.b64encode(self.file("png").read_bytes()).decode()


def read_artifacts(results: Path) -> list[Artifact]:
    """Return the finished artifacts by section, and in each in the order of the contents page.

    Raises:
        UserError: nothing was.
    """
    found = [Artifact(path) for form in FORMS for path in sorted(results.glob(f"{form}s/*.json"))]
    if not found:
        raise UserError(f"nothing is made yet in {results}; run `make reproduce` first")
    contents = next((one.lines for one in found if one.name == "contents"), [])
    order = {line["name"]: place for place, line in enumerate(contents)}
    return sorted(found, key=lambda one: (one.about["section"], order.get(one.name, len(order))))


def write_report(results: Path, page: Path, gallery: Path) -> None:
    """Write the report and the gallery of a folder of results.

    Args:
        results: the folder with `tables` and `figures`.
        page: HTML; pictures are inside, other files are linked.
        gallery: Markdown beside `figures`, with links to them.

    Raises:
        UserError: nothing is made there, or a file is damaged.
    """
    artifacts = read_artifacts(results)
    made, records = {one.name: one for one in artifacts}, _records(artifacts)
    sentence = result(made)
    known = {"result": sentence, "origin": provenance(records), "made": made, "style": STYLE}
    _render("report.html", page, verdicts=VERDICTS, forms=FORMS, **known)
    write_gallery(artifacts, gallery, "figures/")
    print(f"{page}: {len(artifacts)} tables and figures, {len(records)} measurements")
    if sentence:
        print(sentence)


def _render(template: str, page: Path, **values: Any) -> None:
    write_text(page, _TEMPLATES.get_template(template).render(values))


def result(made: Mapping[str, Artifact]) -> str:
    """The result in a sentence or two, of artifacts by name: of the claims, or else of the demo; empty without both."""
    return " ".join(_TEMPLATES.get_template("result.txt").render(made=made).split())


def write_gallery(artifacts: Sequence[Artifact], page: Path, folder: str = "") -> None:
    """Write a page of Markdown with the figures among some artifacts.

    Args:
        artifacts: what was made.
        page: the file.
        folder: where the figures lie from there, with their other forms; empty for pictures alone, beside the page.
    """
    _render("gallery.md", page, artifacts=artifacts, folder=folder)


def _records(artifacts: Iterable[Artifact]) -> list[Record]:
    """The measurements that artifacts are made of."""
    files = dict.fromkeys(path for one in artifacts for group in one.about["files"].values() for path in group)
    paths = [Path(path) if Path(path).exists() else PROJECT / path for path in files if path.endswith(".json")]
    return [Record.of(content) for content in map(read_json, paths) if "measure" in content]
