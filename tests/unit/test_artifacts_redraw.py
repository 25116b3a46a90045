"""Tables and figures of the shipped reference run have the numbers that they had, but for those that are listed."""

import csv
import io
import json
import lzma
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tests.proof import kit

from pipeline.run.compare import folder
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import REDRAWN, redraw

KEPT = json.loads(lzma.decompress(kit.DATA.read_bytes()))["csv"]
CHANGED = {"tables/demo.csv", "tables/demo_quality.csv"}  # the demo's records were measured anew
# Ratios over turns are geometric means now, and intervals are of 95 %: two standard errors before.
MEASURED_OTHERWISE = ("speedup", "tpot_ratio", "first_token_speedup")
AXES = ("request_rate", "batch_tokens", "batch_size", "layer", "confidence_from", "sequence_length")
# Column -> metric, and the factor of its unit.
RENAMED = {
    "hours": ("training_hours", 1), "tokens": ("training_tokens", 1), "steps": ("training_steps", 1),
    "kv_cache_bytes": ("kv_cache_gib", 2**-30), "kv_bytes_per_token": ("kv_kib_per_token", 2**-10),
    "kv_bytes_per_token_bfloat16": ("kv_cache_kib_per_token", 2**-10), "tpot_ms": ("decode_ms", 1),
    "density_percent": ("bin_percent", 1), "highest_sustained_rate_limit": ("sustained_rate_limit", 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory):
    """The rows of each CSV by its path below the results; figures are drawn, but not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("redrawn"))
        patch.setattr(Figure, "savefig", lambda figure, place, **_: Path(place).write_text("drawn"))
        config = read_config(kit.ROOT, read_profile("local", kit.ROOT))
        why = {file: said for file, said in redraw(config, folder(kit.ROOT, config)) if said}
        assert {Path(file).stem for file in why} <= {"reading"}  # the run was made before it
        place = (REDRAWN / "local").absolute()
        return {str(file.relative_to(place)): rows(file.read_text()) for file in place.rglob("*.csv")}


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def numbers(table):
    """The measured numbers of a frame by variant, KV cache, point, axis, metric and what they are against."""
    keys = ("variant", "kv_cache", "point", "metric", "against", "against_kv_cache")
    ours = [row for row in table if row.get("source") != "published"]
    return {(*(row.get(key) for key in keys), number(row.get("at"))): row for row in ours}


def before(name, text):
    """Every number of a CSV of before, in the keys of the frame: value, and its standard error."""
    for row in rows(text):
        against = row.get("against") or row.get("against_variant") or ""
        if name.endswith("panel.csv") and not against:
            against = "baseline"
        at = next((number(row[axis]) for axis in AXES if row.get(axis)), None)
        for column, cell in row.items():
            field = "stderr" if column.endswith("_stderr") else "value"
            column = column.removesuffix("_stderr")
            if column.startswith(MEASURED_OTHERWISE) or number(cell) is None:
                continue
            compared = column.endswith("_difference")
            column = column.removesuffix("_difference")
            if name.endswith("figureD1.csv") and column == "alignment_percent":
                column = "bin_alignment_percent"
            metric, factor = RENAMED.get(column, (column, 1))
            case = (row.get("variant") or "baseline", row.get("kv_cache") or "auto")
            other = (against, row.get("against_kv_cache") or "auto") if compared else ("", "")
            for point, place in ((row.get("point") or "", at), (row.get("point") or "", None)):
                key = (*case, point, metric, *other, place)
                yield key, (*other, point, metric, *case, place), field, float(cell) * factor


def test_numbers_are_those_of_before(redrawn):
    names, equal = (KEPT.keys() & redrawn.keys()) - CHANGED, 0
    assert len(names) >= 25
    for name in sorted(names):
        now = numbers(redrawn[name])
        for key, turned, field, value in before(name, KEPT[name]):
            row, sign = (now[key], 1) if key in now else (now.get(turned, {}), -1 if field == "value" else 1)
            if (found := number(row.get(field))) is not None:
                assert math.isclose(sign * found, value, rel_tol=1e-9, abs_tol=1e-12), (name, key, field)
                equal += 1
    assert equal > 2500


def test_every_number_says_where_it_is_from(redrawn):
    for name, table in redrawn.items():
        for row in table if "metric" in table[0] else ():
            measured = row["source"] == "measured" and row["status"] == "ok"
            assert not measured or row["file"], (name, row["metric"])
            ends = [number(row[end]) for end in ("low", "value", "high")]
            assert None in ends or ends == sorted(ends), (name, row["metric"], ends)
