"""Write one page with every artifact: the result in a sentence, its picture, contents, claims, tables and figures by question."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from pipeline.artifacts import Content
from pipeline.artifacts.claims import VERDICTS
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.records import PROJECT, Record, describe_records
from pipeline.artifacts.writers import TEMPLATES, read_html
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_text

Artifact = Content


def read_artifacts(results: Path) -> dict[str, Artifact]:
    """Return the finished artifacts by name: by section, and in each in the order of the contents page.

    Each has the keys of its JSON file, as `make_artifact` writes it, and
    * path: of that file; its other forms lie beside it;
    * lines: of its CSV;
    * body: a table's grids with their notes as HTML, or a figure's SVG in base64.

    Raises:
        UserError: there are none.
    """
    made = [
        _artifact(path)
        for form, endings in FORMS.items()
        for path in sorted(results.glob(f"{form}s/*.json"))
        if all(path.with_suffix(f".{ending}").is_file() for ending in endings)  # not of a version with fewer forms
    ]
    if not made:
        raise UserError(f"nothing is made yet in {results}; run `make reproduce` first")
    contents = next((one["lines"] for one in made if one["name"] == "contents"), [])
    order = {line["name"]: place for place, line in enumerate(contents)}
    made.sort(key=lambda one: (one["section"], order.get(one["name"], len(order))))
    return {one["name"]: one for one in made}


def _artifact(path: Path) -> Artifact:
    about = read_json(path)
    if about["form"] == "table":
        grids = read_html(path.with_suffix(".html").read_text(encoding="utf-8"))
        body = Markup(re.sub(r"(</?)h2>", r"\1h4>", grids))
    else:
        body = base64.b64encode(path.with_suffix(".svg").read_bytes()).decode()
    return about | {"path": path, "lines": read_csv(path.with_suffix(".csv")), "body": body}


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
    records, headline = _records(artifacts), result(artifacts)
    origin = describe_records(records)
    values = {"result": headline, "counts": verdicts(artifacts), "origin": origin, "artifacts": artifacts}
    write_text(page, _render("report.html", **values, verdicts=VERDICTS, forms=FORMS))
    write_gallery(artifacts, gallery, "figures/")
    print(f"{page}: {len(artifacts)} tables and figures, {len(records)} measurements")
    if headline:
        print(f"{headline} Open {page}.")


def _render(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(template).render(values)


def result(artifacts: Mapping[str, Artifact]) -> str:
    """Return the speed and quality of a run, or else of the demo, in a sentence or two; empty if neither is among `artifacts`."""
    return " ".join(_render("result.txt", artifacts=artifacts).split())


def verdicts(artifacts: Mapping[str, Artifact]) -> str:
    """Return how many claims have each verdict, in sentences; empty if claims are not among `artifacts`."""
    return " ".join(_render("verdicts.txt", artifacts=artifacts).split())


def write_gallery(artifacts: Mapping[str, Artifact], page: Path, folder: str = "") -> None:
    """Write a page of Markdown with the figures among some artifacts.

    Args:
        artifacts: tables and figures by name.
        page: the file.
        folder: path of the figures from there, which links their other forms; empty for pictures alone, beside the page.
    """
    write_text(page, _render("gallery.md", artifacts=artifacts, folder=folder))


def write_tables(artifacts: Mapping[str, Artifact], page: Path) -> None:
    """Write a page of Markdown with the paper's tables, each above its published numbers.

    Args:
        artifacts: tables and figures by name, the contents page among them.
        page: the file.
    """
    contents = artifacts["contents"]["lines"]
    tables = [_beside_published(line, artifacts) for line in contents if line["item"].startswith("paper's Table")]
    write_text(page, _render("tables.md", tables=tables))


def _beside_published(line: Mapping[str, str], artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    """Add to a line of the contents page the Markdown of its table and of its published numbers; empty if there are none."""
    table = {**line, "item": line["item"].removeprefix("paper's "), "ours": "", "published": ""}
    if made := artifacts.get(line["name"]):
        text = made["path"].with_suffix(".md").read_text(encoding="utf-8")
        table["ours"] = text.partition("\n\n")[2]  # without its title
    published = PROJECT / f"resources/paper/{line['name']}.csv"
    if published.exists():
        numbers = pd.DataFrame(read_csv(published))
        grid = numbers.drop(columns=["source", "note"], errors="ignore")
        table["published"] = grid.to_markdown(index=False, disable_numparse=True)
        table["source"] = numbers["source"][0]
    return table


def _records(artifacts: Mapping[str, Artifact]) -> list[Record]:
    """Read the measurements that artifacts are drawn from."""
    files = dict.fromkeys(path for one in artifacts.values() for group in one["files"].values() for path in group)
    paths = [Path(path) if Path(path).exists() else PROJECT / path for path in files if path.endswith(".json")]
    return [Record.of(content) for content in map(read_json, paths) if "measure" in content]
