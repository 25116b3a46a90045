"""Write one page with every artifact: the result in a sentence, the method, a headline table, claims, tables and figures."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.artifacts.claims import VERDICTS
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.records import PROJECT, Record, provenance
from pipeline.artifacts.writers import TEMPLATES, read_html
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_text


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
        """Return the path of one of its forms."""
        return self.path.with_suffix(f".{form}")

    @property
    def lines(self) -> list[dict[str, str]]:
        """Its CSV."""
        return read_csv(self.file("csv"))

    @property
    def body(self) -> str:
        """A table's grids with their notes as HTML, or a figure's picture in base64."""
        if self.about["form"] == "table":
            grids = read_html(self.file("html").read_text(encoding="utf-8"))
            return Markup(re.sub(r"(</?)h2>", r"\1h4>", grids))
        return base64.b64encode(self.file("png").read_bytes()).decode()


def read_artifacts(results: Path) -> list[Artifact]:
    """Return the finished artifacts by section, and in each in the order of the contents page.

    Raises:
        UserError: there are none.
    """
    artifacts = [Artifact(path) for form in FORMS for path in sorted(results.glob(f"{form}s/*.json"))]
    if not artifacts:
        raise UserError(f"nothing is made yet in {results}; run `make reproduce` first")
    contents = next((one.lines for one in artifacts if one.name == "contents"), [])
    order = {line["name"]: place for place, line in enumerate(contents)}
    return sorted(artifacts, key=lambda one: (one.about["section"], order.get(one.name, len(order))))


def write_report(results: Path, page: Path, gallery: Path) -> None:
    """Write the report and the gallery of a folder of results.

    Args:
        results: the folder with `tables` and `figures`.
        page: HTML; pictures are inside, other files are linked.
        gallery: Markdown beside `figures`, with links to them.

    Raises:
        UserError: there are no artifacts, or a file is damaged.
    """
    artifacts = read_artifacts(results)
    by_name, records = {one.name: one for one in artifacts}, _records(artifacts)
    headline = result(by_name)
    known = {"result": headline, "origin": provenance(records), "artifacts": by_name}
    write_text(page, _render("report.html", verdicts=VERDICTS, forms=FORMS, **known))
    write_gallery(artifacts, gallery, "figures/")
    print(f"{page}: {len(artifacts)} tables and figures, {len(records)} measurements")
    if headline:
        print(headline)


def _render(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(template).render(values)


def result(artifacts: Mapping[str, Artifact]) -> str:
    """Return the result of the claims, or else of the demo, in a sentence or two; empty if neither is among `artifacts`."""
    return " ".join(_render("result.txt", artifacts=artifacts).split())


def write_gallery(artifacts: Sequence[Artifact], page: Path, folder: str = "") -> None:
    """Write a page of Markdown with the figures among some artifacts.

    Args:
        artifacts: tables and figures.
        page: the file.
        folder: path of the figures from there, which links their other forms; empty for pictures alone, beside the page.
    """
    write_text(page, _render("gallery.md", artifacts=artifacts, folder=folder))


def _records(artifacts: Sequence[Artifact]) -> list[Record]:
    """Read the measurements that artifacts are drawn from."""
    files = dict.fromkeys(path for one in artifacts for group in one.about["files"].values() for path in group)
    paths = [Path(path) if Path(path).exists() else PROJECT / path for path in files if path.endswith(".json")]
    return [Record.of(content) for content in map(read_json, paths) if "measure" in content]
