"""`make claims`: for each claim what makes the numbers that judge it, what that takes, and what is to come out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swiftkv.artifacts import contents
from swiftkv.artifacts.claims_file import Claim, cells, read_claims
from swiftkv.artifacts.inputs import CLAIMS
from swiftkv.artifacts.kinds.claims import needed
from swiftkv.artifacts.text import show
from swiftkv.config import Config
from swiftkv.planning.jobs import ancestors, parents
from swiftkv.planning.plan import Cost, Plan, duration, estimate_plan, make_plan
from swiftkv.planning.report import gigabytes
from swiftkv.reference import folder
from swiftkv.stages import STAGES


def claims_page(root: Path, profile: str, configfiles: Sequence[str] = ()) -> str:
    """The claims of a scale in words, those that one command answers together.

    Args:
        root: folder of the project.
        profile: its folder, or its name under profiles/.
        configfiles: added to the profile's own.

    Raises:
        UserError: the profile, the configuration or the file of claims is not what it has to be.
    """
    plan = make_plan(root, profile, (), configfiles, everything=True)
    config, reference = plan.config, folder.verdicts(folder.folder(root, plan.config))
    groups: dict[tuple[str, ...], list[Claim]] = {}
    impossible: dict[str, int] = {}
    for claim in (claim for group in read_claims(root / CLAIMS)["claims"].values() for claim in group):
        if (reason := _impossible(config, claim)) is not None:
            impossible[reason] = impossible.get(reason, 0) + 1
        else:
            named = {cell["artifact"] for cell in cells(claim)}
            groups.setdefault(tuple(name for name in config["artifacts"] if name in named), []).append(claim)
    command = " ".join(
        ["make reproduce", *([f"PROFILE={profile}"] if profile != "local" else []), *_quoted("CONFIG", configfiles)]
    )
    blocks = [
        "Each command makes what is missing and judges nothing; tables/claims.md has a verdict on every claim:\n"
        + _needs(root, command, plan, ("claims",))
    ]
    for artifacts, claims in groups.items():
        lines = [line for claim in claims for line in _lines(claim, reference)]
        blocks.append("\n".join([_needs(root, command, plan, artifacts), *lines]))
    made = sum(map(len, groups.values()))
    last = [
        f"{made} claims at this scale; minutes and disk are those of `make plan`, each command as if alone. A claim on another "
        "model, hardware or length is judged by its weaker form alone."
    ]
    if not reference:
        last.append("There is no reference run of this scale, so no value of it stands beside what is stated.")
    last += [f"Not at this scale: {count} more, as {reason}." for reason, count in impossible.items()]
    return "\n\n".join([*blocks, "\n".join(last)])


def _impossible(config: Config, claim: Claim) -> str | None:
    """Why a scale cannot judge a claim; None where it can."""
    for cell in cells(claim):
        if (reason := contents.left_out(config, cell["artifact"])) is not None:
            return reason
        for role in filter(None, (cell["where"]["role"], claim.get("against"))):
            if role in config["roles"] and config["roles"][role] is None:
                return f"no model of this scale plays the role {role}"
    return None


def _needs(root: Path, command: str, plan: Plan, artifacts: Sequence[str]) -> str:
    """The command that makes artifacts, and what it takes."""
    config = plan.config
    files = [STAGES[contents.kind_of(config, name).form].file(config, artifact=name) for name in artifacts]
    cost = _cost(root, plan, artifacts)
    least = "at least " if cost.uncounted else ""
    gpus = f"{least}{cost.gpu_hours:,.1f} GPU-hours, up to {cost.gpus} GPU{'s' if cost.gpus > 1 else ''} a job"
    takes = f"{least}{duration(cost.wall_seconds)}, {least}{gigabytes(cost.disk)} GB, {gpus if cost.gpus else 'no GPU'}"
    return f"{' '.join([command, *_quoted('TARGETS', files)])}\n  {takes}"


def _cost(root: Path, plan: Plan, artifacts: Sequence[str]) -> Cost:
    """What artifacts take together."""
    if len(artifacts) == 1:
        return plan.artifacts[artifacts[0]]
    graph = parents(plan.jobs)
    ends = [number for number, job in enumerate(plan.jobs) if job.wildcards.get("artifact") in artifacts]
    numbers = sorted(set().union(*(ancestors(end, graph) for end in ends)))
    jobs = [plan.jobs[number] for number in numbers]
    return estimate_plan(root, plan.profile, plan.config, jobs).total


def _lines(claim: Claim, reference: dict[str, dict[str, str]]) -> list[str]:
    stated, _, direction = needed(claim).partition("\n")
    expected = f"stated {stated}" + (f", weaker form {direction.strip('()')}" if direction else "")
    if (found := reference.get(claim["id"])) is not None:
        expected += f"; reference run {_measured(found)}{found['verdict']}"
    return [f"  - {claim['text']} ({claim['place']})", f"      {expected}"]


def _measured(found: dict[str, str]) -> str:
    """A measured value of the reference run with its error; empty where there is none."""
    if not found["value"]:
        return ""
    try:
        value = show(float(found["value"]), 3) + (f" ± {show(float(found['stderr']), 2)}" if found["stderr"] else "")
    except ValueError:
        value = found["value"]
    return f"{' '.join(filter(None, [value, found['unit']]))}, "


def _quoted(name: str, values: Sequence[str]) -> list[str]:
    """An argument of make, if there is anything to say."""
    joined = " ".join(values)
    return [f'{name}="{joined}"' if " " in joined else f"{name}={joined}"] if values else []
