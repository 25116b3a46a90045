"""One page with everything that was made: the result in a sentence, the method, a headline table, claims, all artifacts."""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.artifacts.claims import VERDICTS
from pipeline.artifacts.entry import FORMS
from pipeline.artifacts.frame import passage_kept
from pipeline.artifacts.metrics import enumeration, show_interval
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.records import PROJECT, Record, provenance
from pipeline.artifacts.writers import STYLE, read_html
from pipeline.statistics import ratio_of_turns
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_text

# Shown first, where made
FIGURE, TABLE = ("blog_figure1", "demo_wiring", "figure1"), ("speed_and_quality", "demo_answer", "table1")
DEMO = ("demo_quality", "demo_answer")
WIDTH = 700  # pixels of the widest picture
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

    @property
    def forms(self) -> list[str]:
        """Its files, as paths from the folder of results."""
        return [f"{self.about['form']}s/{self.name}.{form}" for form in FORMS[self.about["form"]]]

    def file(self, form: str) -> Path:
        """Where one form of it lies."""
        return self.path.with_suffix(f".{form}")

    @property
    def lines(self) -> list[dict[str, str]]:
        """Its CSV."""
        return read_csv(self.file("csv"))

    @property
    def body(self) -> Markup:
        """A table's grids with their notes, or a figure's picture, as HTML."""
        if self.about["form"] == "table":
            grids = read_html(self.file("html").read_text(encoding="utf-8"))[1]
            if self.name == "claims":
                grids = _folded(grids, self.lines)
            return Markup(re.sub(r"(</?)h2>", r"\1h4>", grids))
        picture = base64.b64encode(self.file("png").read_bytes()).decode()
        return Markup('<img src="data:image/png;base64,{}" alt="{}" style="max-width: min(100%, {}px)">').format(
            picture, self.about["title"], WIDTH
        )


def _folded(grids: str, lines: Sequence[Mapping[str, str]]) -> str:
    """The grids of the claims and their notes folded, each grid with how many claims have each verdict."""

    def fold(section: re.Match[str]) -> str:
        counts = Counter(line["verdict"] for line in lines if line["about"] == html.unescape(section[1]))
        said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        return f"<details><summary>{section[1]}: {said}</summary>\n{section[2]}</details>"

    folded = re.sub(r'<h2>(.*?)</h2>\n(<div class="scroll">.*?</div>\n)', fold, grids, flags=re.DOTALL)
    return re.sub(
        r'<div class="notes">.*', r"<details><summary>Notes</summary>\n\g<0></details>", folded, flags=re.DOTALL
    )


def read_artifacts(results: Path) -> list[Artifact]:
    """Return the finished artifacts by section, and in each in the order of the contents page.

    Raises:
        UserError: nothing was.
    """
    found = [Artifact(path) for form in FORMS for path in sorted(results.glob(f"{form}s/*.json"))]
    if not found:
        raise UserError(f"nothing is made yet in {results}; run `make reproduce` first")
    order = {line["name"]: place for place, line in enumerate(_lines(found, "contents"))}
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
    sentence = result(artifacts)
    made, records = {one.name: one for one in artifacts}, _records(artifacts)
    listed = [line["name"] for line in _lines(artifacts, "contents") if line["made"] == "True"]
    _render(
        "report.html",
        page,
        result=sentence,
        origin=provenance(records),
        first=[
            next(made[name] for name in names if name in made) for names in (FIGURE, TABLE) if made.keys() & set(names)
        ],
        claims=made.get("claims"),
        artifacts=artifacts,
        missing=[name for name in listed if name not in made],
        style=Markup(STYLE),
    )
    write_gallery(artifacts, gallery, "figures/")
    print(
        f"{page}: {len(artifacts)} tables and figures, {len(records)} measurements, {page.stat().st_size / 1e6:.1f} MB"
    )
    if sentence:
        print(sentence)


def _render(template: str, page: Path, **values: Any) -> None:
    write_text(page, _TEMPLATES.get_template(template).render(values))


def result(artifacts: Iterable[Artifact]) -> str:
    """The result in a sentence: how many claims have each verdict, or else what the demo shows; empty without both."""
    if not (lines := _lines(artifacts, "claims")):
        return _demonstrated(_records([one for one in artifacts if one.name in DEMO]))
    counts = Counter(line["verdict"] for line in lines)
    good = [line for line in lines if line["verdict"] == VERDICTS[0]]
    stated, numbers = sum(line["as_stated"] == "True" for line in good), len({line["value"] for line in good})
    words = [f"{counts[verdict]} {said}" for verdict, said in zip(VERDICTS, _SAID, strict=True)]
    words[0] += f" ({numbers} distinct values; {stated} claims with the value as stated)"
    return f"Of {len(lines)} claims of the paper and the blog post, {enumeration(words)}."


_SAID = ("agree", "are contradicted", "are undecided by the measured 95 % intervals", "are not measured")


def _demonstrated(records: Iterable[Record]) -> str:
    """The layers that prompts ran, reading, closeness and speed of the demo's variant; empty where one is not measured."""
    found = {record.measure: record for record in records if record.ok and record.spec}
    if not found.keys() >= {"fidelity", "reading", "answer"}:
        return ""
    closeness, spec, turns = found["fidelity"], found["answer"].spec, found["answer"].turns("ms")
    kl, start = closeness.value("kl"), closeness.value("start")  # there is no start with an FP8 cache, say
    if not (kl and start and turns):
        return ""
    gain, kept = ratio_of_turns(*turns), passage_kept(found["reading"].result).scaled(100)
    return (
        f"Prompts ran {spec['num_key_value_layers']} of {spec['num_hidden_layers']} layers. Of what passages tell "
        f"{closeness.model['title']}, {show_interval(kept.value, kept.low, kept.high, '.0f|%')} is kept; KL to it is "
        f"{kl['value']:.3f} nats a token after training ({start['kl']['value']:.3f} before), and the speed-up to the first token "
        f"is {show_interval(gain.value, gain.low, gain.high, '.2f|×')}."
    )


def write_gallery(artifacts: Sequence[Artifact], page: Path, folder: str = "") -> None:
    """Write a page of Markdown with the figures among some artifacts.

    Args:
        artifacts: what was made.
        page: the file.
        folder: where the figures lie from there, with their other forms; empty for pictures alone, beside the page.
    """
    figures = [one for one in artifacts if one.about["form"] == "figure"]
    _render("gallery.md", page, figures=figures, folder=folder)


def _lines(artifacts: Iterable[Artifact], name: str) -> list[dict[str, str]]:
    return next((one.lines for one in artifacts if one.name == name), [])


def _records(artifacts: Iterable[Artifact]) -> list[Record]:
    """The measurements that artifacts are made of."""
    files = dict.fromkeys(path for one in artifacts for group in one.about["files"].values() for path in group)
    paths = [Path(path) if Path(path).exists() else PROJECT / path for path in files if path.endswith(".json")]
    contents = [read_json(path) for path in paths if path.parent.name not in ("tables", "figures")]
    return [Record.of(content) for content in contents if "measure" in content]
