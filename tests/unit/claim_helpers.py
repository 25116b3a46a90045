"""Made-up claims, rows of the tables that judge them, and what they are judged on."""

from pipeline.artifacts.quantities import Scene

MODEL = {"name": "mine", "title": "My model", "published": "theirs"}
OTHER = {"name": "small", "title": "Small model", "published": "small"}


def made_row(variant="swiftkv-50", **values):
    return {"model": "mine", "variant": variant, **values}


def made_claim(how="cell", where=None, **keys):
    cell = {"artifact": "t", "column": "x", "where": {"role": "small", **(where or {})}}
    return {"id": "c", "text": "x", "place": "paper", how: cell, **keys}


def made_scene(rows, **changes):
    """One table `t`, whose rows are of the claim's own model."""
    named = {
        "tables": {"t": rows},
        "roles": {"small": MODEL, "large": None},
        "models": {"small": "theirs", "large": "big"},
    }
    return Scene(**{**named, "benchmarks": 7, "resolution": 1.5, **changes})
