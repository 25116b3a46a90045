"""Drawing tables and figures from the records of a reference run, as the rules of the workflow draw them from a run's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.artifacts import contents
from pipeline.artifacts.make import make_artifact
from pipeline.config import Config
from pipeline.run.reference.folder import measured, records
from pipeline.stages import STAGES
from swiftkv.errors import UserError

REDRAWN = Path("results/reference")
ARTIFACTS = ("tables", "figures")


def redraw(config: Config, place: Path, targets: Sequence[str] = ()) -> Iterator[tuple[str, str | None]]:
    """Draw artifacts of a scale below `REDRAWN`, one after another.

    Args:
        config: of the scale.
        place: folder of its reference run, or any folder of results.
        targets: files, in whatever folder, whose names say which artifacts are meant; none means all.

    Yields:
        The file of each artifact, with its main form's ending, and why it could not be drawn; None if it was.

    Raises:
        UserError: there is no reference run, or a target is no artifact of the scale.
    """
    records(place)
    # Entries name files, too, so both are those of the run.
    config = config.model_copy(update={"pathvars": config.pathvars.model_copy(update={"results": str(place)})})
    wanted = [Path(target).stem for target in targets] or contents.names(config)
    for name in wanted:
        contents.check_made(config, name)
    # Claims are judged by other tables, which come first.
    judged = [Path(file).stem for name in wanted for file in contents.needs(config, name).get("tables", ())]
    for name in dict.fromkeys(
        [*judged, *(name for name in wanted if "tables" not in contents.needs(config, name)), *wanted]
    ):
        outputs = [REDRAWN / place.name / output.format(artifact=name) for output in _outputs(config, name)]
        why = None
        if lacking := [file for file in measured(config, name) if not (place / file).is_file()]:
            why = f"the run has no {lacking[0]}"
        else:
            try:
                # An entry as it comes out of the command line of a rule.
                make_artifact(
                    json.loads(json.dumps(contents.resolve(config, name))), _files(config, name, place), outputs
                )
            except UserError as error:
                why = str(error)
        yield str(outputs[0]), why


def _outputs(config: Config, name: str) -> tuple[str, ...]:
    return STAGES[contents.kind_of(config, name).form].outputs


def _files(config: Config, name: str, place: Path) -> dict[str, list[str]]:
    """The files an artifact is made of: records of the run, artifacts drawn before, and what the project ships."""

    def found(path: Path) -> Path:
        if place not in path.parents:
            return contents.PROJECT / path
        inside = path.relative_to(place)
        return REDRAWN / place.name / inside if inside.parts[0] in ARTIFACTS else path

    return {key: [str(found(Path(file))) for file in files] for key, files in contents.needs(config, name).items()}
