"""The reference run of a scale: its records, which the project ships, and what is drawn from them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from pipeline.artifacts import contents
from pipeline.artifacts.make import make_artifact
from pipeline.artifacts.report import Artifact, read_artifacts, result, verdicts, write_gallery, write_tables
from pipeline.config import Config
from pipeline.run.compare import CLAIMS, inputs, records
from pipeline.stages import STAGES
from pipeline.text import some
from swiftkv.errors import UserError
from swiftkv.io import atomic_path

REDRAWN = Path("results/reference")
PAGE, GALLERY = Path("docs/reproduced.md"), Path("docs/gallery")
FIGURE, TABLE = "headline", "speed_and_quality"  # shown on the page
BEGIN, END = "<!-- `make reference` writes what follows -->\n", "<!-- until here -->\n"
TABLES = "tables.md"  # in the gallery: the paper's
WIDTH, COLORS = 1200, 128  # of pictures for a screen


def keep(config: Config, place: Path) -> str:
    """Replace a scale's reference run by the records of its results.

    Args:
        config: of the scale.
        place: `folder` of the scale.

    Returns:
        A sentence on what was kept.

    Raises:
        UserError: a record is missing, or names a folder of this machine.
    """
    results = Path(config.pathvars.results)
    needed = {name: inputs(config, [name]) for name in contents.names(config)}
    made = [
        name
        for name, files in needed.items()
        if name in contents.standard(config) or all((results / file).is_file() for file in files)
    ]
    wanted = [CLAIMS, *dict.fromkeys(file for name in made for file in needed[name])]
    if absent := [name for name in wanted if not (results / name).is_file()]:
        raise UserError(
            f"{results} is no finished run: {len(absent)} of {len(wanted)} files are missing, {some(absent)}; make it first"
        )
    for name in wanted:
        text = (results / name).read_text(encoding="utf-8")
        for private in {path for path in (Path.home(), Path.cwd()) if path != Path("/")}:
            if f"{private}/" in text:
                raise UserError(f"{results / name} names a folder of this machine, {private}; nothing was kept")
    with atomic_path(place) as scratch:
        for name in wanted:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / name, scratch / name)
    return f"{place}: {len(wanted)} files of {results}"


def redraw(config: Config, place: Path, targets: Sequence[str] = ()) -> Iterator[tuple[str, str | None]]:
    """Draw artifacts of a scale below `REDRAWN`, one after another, as the workflow's rules draw them from a run's records.

    Args:
        config: of the scale.
        place: folder of its reference run, or any folder of results.
        targets: artifacts, sets or files of them; none means all but those of a kind of measurement, or of a serving point,
            that the run is without, and but separate ones that it has not all records of.

    Yields:
        The CSV of each artifact, and why it could not be drawn; None if it was.

    Raises:
        UserError: there is no reference run, or a target is no artifact of the scale.
    """
    records(place)
    config = config.model_copy(update={"pathvars": config.pathvars.model_copy(update={"results": str(place)})})
    wanted = contents.named(config, targets) or [
        name
        for name in contents.names(config)
        if all(
            Path(place, *Path(file).parts[: 2 if name in contents.standard(config) else None]).exists()
            for file in inputs(config, [name])
        )
    ]
    # Claims are judged by other tables, which come first.
    tables = {
        name: [Path(file).stem for file in contents.input_files(config, name).get("tables", ())] for name in wanted
    }
    judged = [name for names in tables.values() for name in names]
    for name in dict.fromkeys([*judged, *sorted(wanted, key=lambda name: bool(tables[name]))]):
        patterns = STAGES[contents.kind_of(config, name).form].outputs
        outputs = [REDRAWN / place.name / pattern.format(artifact=name) for pattern in patterns]
        why = next((f"the run has no {file}" for file in inputs(config, [name]) if not (place / file).is_file()), None)
        if why is None:
            entry = json.loads(json.dumps(contents.resolve(config, name)))  # as it comes out of a rule's command line
            try:
                make_artifact(entry, _files(config, name, place), outputs)
            except UserError as error:
                why = str(error)
        yield str(outputs[0]), why


def _files(config: Config, name: str, place: Path) -> dict[str, list[str]]:
    """The files of an artifact: records of the run, artifacts drawn before, and what the project ships."""

    def find(path: Path) -> Path:
        if place not in path.parents:
            return contents.PROJECT / path
        inside = path.relative_to(place)
        return REDRAWN / place.name / inside if inside.parts[0] in ("tables", "figures") else path

    return {key: [str(find(Path(file))) for file in files] for key, files in contents.input_files(config, name).items()}


def show(results: Path, root: Path) -> str:
    """Write docs/gallery and the page's figure and table anew from artifacts that were made.

    Args:
        results: folder of the finished run.
        root: folder of the project.

    Returns:
        A sentence on what was written.

    Raises:
        UserError: the page's figure or table was not made.
    """
    made = read_artifacts(results)
    if lacking := {FIGURE, TABLE, "claims", "contents"} - made.keys():
        raise UserError(f"{results} has no {' and no '.join(sorted(lacking))}, which {PAGE} shows; make it first")
    figures = {name: artifact for name, artifact in made.items() if artifact["form"] == "figure"}
    with atomic_path(root / GALLERY) as scratch:
        scratch.mkdir()
        for name, figure in figures.items():
            with Image.open(figure["path"].with_suffix(".png")) as image:
                small = image.convert("RGB")
            small.thumbnail((WIDTH, small.height), Image.Resampling.LANCZOS)
            # An octree keeps the colors of small marks, which a median cut averages away.
            small.quantize(COLORS, Image.Quantize.FASTOCTREE).save(scratch / f"{name}.png", optimize=True)
        write_gallery(figures, scratch / "README.md")
        write_tables(made, scratch / TABLES)
    text = (root / PAGE).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    part = page_part(made[FIGURE], made[TABLE], f"{result(made)} {verdicts(made)}")
    (root / PAGE).write_text(f"{before}{BEGIN}{part}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return f"{root / GALLERY}: {len(figures)} figures; {root / PAGE}: {FIGURE} and {TABLE}"


def page_part(figure: Artifact, table: Artifact, sentence: str) -> str:
    """Return the page's part: the result, a figure, and the grid of a table with its title, without marks of notes."""
    text = re.sub(r" \[\d+\]", "", table["path"].with_suffix(".md").read_text(encoding="utf-8"))
    title, grid = re.search(r"## (.*)\n\n((?:\|.*\n)+)", text).groups()
    picture = f"[![{figure['title']}]({GALLERY.name}/{figure['name']}.png)]({GALLERY.name}/README.md)"
    return f"{sentence}\n\n{picture}\n\n{grid}\n{title}; [all figures]({GALLERY.name}/README.md).\n"
