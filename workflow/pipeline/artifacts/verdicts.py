"""Judging claims: a verdict on the quantity a claim makes of artifacts' cells, within its error bars."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.artifacts.claims_file import Bounds, Claim, bounds, cells
from pipeline.artifacts.quantities import REQUESTS, Measured, Scene, Unmeasured, measure
from pipeline.statistics import ERRORS, Difference

AGREES, SAME, UNDECIDED, CONTRADICTS = "agrees", "same direction", "undecided", "contradicts"
ARITHMETIC, CHOSEN, UNMEASURED = "by arithmetic", "limit chosen for it", "not measured at this scale"
VERDICTS = (AGREES, SAME, UNDECIDED, CONTRADICTS, ARITHMETIC, CHOSEN, UNMEASURED)


@dataclass(frozen=True)
class Verdict:
    """One of `VERDICTS`, the measured quantity if there is one, and the reason."""

    verdict: str
    measured: Measured | None
    reason: str


def judge(claim: Claim, scene: Scene) -> Verdict:
    """The verdict on a claim, never more certain than its error bars of two standard errors.

    * `AGREES`: on the claim's own case the stated value lies within the error bar, and the whole bar within the weaker form.
      A loss is let off the latter where its value is within, and the error within the scene's resolution.
    * `SAME`: the whole bar lies within the weaker form; the stated value was missed, or it is another case.
    * `UNDECIDED`: the bar reaches over the weaker form's bound, or no error is known.
    * `CONTRADICTS`: the whole bar lies outside the weaker form, or what should rise falls.
    * `ARITHMETIC`: it follows from the model's dimensions; nothing was measured.
    * `CHOSEN`: it is as stated under a limit that was chosen for that.
    * `UNMEASURED`: there is no quantity, or none that the claim can be judged by.

    Raises:
        UserError: a cell's selector matches several rows where the claim needs one, or names a column that is not there.
    """
    try:
        measured = measure(claim, scene)
    except Unmeasured as reason:
        found = Verdict(UNMEASURED, None, str(reason))
    else:
        found = _judged(claim, measured, scene)
    if claim.get("closeness") and found.verdict in (UNDECIDED, UNMEASURED):
        return _by_closeness(claim, scene, found)
    return found


def _judged(claim: Claim, measured: Measured, scene: Scene) -> Verdict:
    verdict = _verdict(claim, measured, scene.resolution)
    reasons = [*measured.differs, *measured.quantity.remarks]
    if verdict == UNMEASURED:
        reasons.insert(0, f"needs {_needs(claim, scene)}")
    elif verdict == UNDECIDED and measured.quantity.stderr is None:
        reasons.append("no error known")
    return Verdict(verdict, measured, "; ".join(reasons))


def _by_closeness(claim: Claim, scene: Scene, scored: Verdict) -> Verdict:
    """The direction by KL to the teacher where scores do not decide it; `scored`, where that does not either."""
    nearer = [{**cell, "column": "kl"} for cell in reversed(cells(claim))]  # less is better
    bound = [0, None]
    ours = {"id": claim["id"], "difference": nearer, "stated": bound, "direction": bound, "unit": "nats a token"}
    try:
        found = _judged(ours, measure(ours, scene), scene)
    except Unmeasured:
        return scored
    if found.verdict == UNDECIDED or not found.measured.quantity.value:
        return scored
    said = "by KL to the teacher, which is ours: the scores "
    if scored.measured is None:
        said += f"are not there ({scored.reason})"
    else:
        said += "leave it undecided"
        if (error := scored.measured.quantity.stderr) is not None:
            said += f" ({scored.measured.quantity.value:.3g} ± {error:.2g})"
    verdict = SAME if found.verdict == AGREES else found.verdict
    return Verdict(verdict, found.measured, "; ".join(filter(None, [said, found.reason])))


def _verdict(claim: Claim, measured: Measured, resolution: float) -> str:
    (stated, direction), (value, stderr, _, rise) = bounds(claim), measured.quantity
    own, by = measured.other is None, claim.get("by")
    if isinstance(stated, str):
        if value != stated:
            return CONTRADICTS
        chosen = any(sentence.startswith(f"{claim.get('chosen')} ") for sentence in measured.differs)
        return CHOSEN if chosen else AGREES if own else SAME
    if not own and (direction is None or (claim.get("own") and measured.other != REQUESTS)):
        return UNMEASURED
    needed = stated if direction is None else direction
    if by == "arithmetic":
        return ARITHMETIC if _inside(value, 0, stated if own else needed) else CONTRADICTS
    stderr = 0.0 if by == "count" else stderr
    if stderr is None:
        return UNDECIDED
    clear = _inside(value, stderr, needed)
    if clear is None and "loss" in claim:  # of twice next to nothing no benchmark could be clear
        clear = (value <= needed[1] and ERRORS * stderr <= resolution) or None
    if clear is not False and rise is not None and not rise.clear:
        clear = False if rise.stderr is not None and Difference(-rise.value, rise.stderr).clear else None
    if clear is None:
        return UNDECIDED
    if not clear:
        return CONTRADICTS
    return AGREES if own and _inside(value, stderr, stated) is not False else SAME


def _inside(value: float, stderr: float, wanted: Bounds) -> bool | None:
    """Whether a quantity lies within bounds (None is open); None where its error bar reaches over one of them."""
    low, high = (-math.inf if wanted[0] is None else wanted[0], math.inf if wanted[1] is None else wanted[1])
    reach = ERRORS * stderr
    if low <= value - reach and value + reach <= high:
        return True
    if value + reach < low or high < value - reach:
        return False
    return None


def _needs(claim: Claim, scene: Scene) -> str:
    models = dict.fromkeys(scene.models[cell["where"]["role"]] for cell in cells(claim))
    return " and ".join([*models, *([claim["hardware"]] if "hardware" in claim else [])])
