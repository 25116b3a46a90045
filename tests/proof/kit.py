"""Keep and compare the pipeline's results across a redesign: redrawn CSVs, planned jobs and vLLM command lines.

    python tests/proof/kit.py write    keeps the present state beside this file
    python tests/proof/kit.py check    prints for each artifact, profile and point: equal, gone, new, or the difference

Temporary: it goes when the redesign is done, but for the CSVs, which tests/unit/test_artifacts_redraw.py compares. `check`
ends with status 1 if anything differs; what is gone is no difference.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("kit.json.xz")
REDRAWN, RECORDS = ROOT / "results/reference/local", ROOT / "resources/reference/local"
PROFILES = ("smoke", "local", "gpu", "one-gpu", "slurm")
# So that no job depends on the machine, and the largest models fit one machine.
LARGE = "llama-3.1-70b", "llama-3.1-70b-fp8", "llama-3.1-405b"
LIMITS = {"gpu": ["--cores", "2", "--resources", "gpu=32"], "slurm": []}
OF_MACHINE = ("tmpdir", "_cores", "_nodes")
EXAMPLES = 4


def redraw() -> dict[str, str]:
    """Redraw the shipped reference run; the text of each CSV by its path below the results."""
    for file in REDRAWN.rglob("*.csv"):
        file.unlink()
    words = [sys.executable, "-m", "pipeline", "redraw", "--profile", "local"]
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    files = sorted(REDRAWN.rglob("*.csv"))
    return {str(file.relative_to(REDRAWN)): file.read_bytes().decode() for file in files}


def jobs(profile: str) -> list[dict]:
    """All jobs of a profile, whether finished or not, sorted by their outputs."""
    words = [sys.executable, __file__, "plan", profile]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def plan(profile: str) -> list[dict]:
    """As `jobs`, in this process, from the events that Snakemake gives its loggers."""
    from snakemake import cli
    from snakemake.logging import logger

    found = []

    def read(record) -> bool:
        if getattr(record, "output", None) and hasattr(record, "rule_name"):
            resources = {
                name: value
                for name, value in record.resources.items()
                if name not in OF_MACHINE and "<TBD>" not in str(value)
            }
            job = {"rule": record.rule_name, "wildcards": dict(record.wildcards), "outputs": list(record.output)}
            found.append(job | {"threads": record.threads, "resources": resources})
        return False

    words = ["--dry-run", "--forceall", "--nolock", "--profile", f"profiles/{profile}"]
    if profile == "gpu":
        file = Path(tempfile.gettempdir(), "one-machine.yaml")
        file.write_text(json.dumps({"models": {model: {"nodes": {"distill": 1}} for model in LARGE}}))
        words += ["--configfile", str(file)]
    parser, arguments = cli.parse_args([*words, *LIMITS.get(profile, ["--cores", "2"])])
    logger.addFilter(read)
    if not cli.args_to_api(arguments, parser) or not found:
        sys.exit(f"profile {profile} cannot be planned")
    return sorted(json.loads(json.dumps(found, default=str)), key=lambda job: job["outputs"])


def commands() -> dict[str, dict]:
    """The vLLM command line of each shipped serving record, made anew from the configuration where that is possible.

    Where several points share one engine, a record's --max-model-len is that of the longest of them.
    """
    found = {}
    for file in sorted(RECORDS.glob("serving/**/*.json")):
        record = json.loads(file.read_text())
        kept, origin = record["settings"]["command"], "record"
        try:
            for longest in (0, int(kept[kept.index("--max-model-len") + 1])):
                made = regenerated(record, longest)
                if made == kept:
                    break
            kept, origin = made, "regenerated"
        except Exception as error:
            origin = f"record ({type(error).__name__}: {error})"
        found[str(file.relative_to(RECORDS))] = {"command": kept, "origin": origin}
    return found


def regenerated(record: dict, longest: int) -> list[str]:
    """The command line of a record by the present code."""
    from pipeline.measure.point import Subject, printable, vllm_command
    from pipeline.measure.run import read_point
    from pipeline.run.jobs import read_config, read_profile

    config = read_config(ROOT, read_profile("local", ROOT))
    model, variant = record["model"]["name"], record["variant"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        folder.mkdir()
        source = json.loads((RECORDS / f"models/{model}/source.json").read_text())
        (folder / "config.json").write_text(json.dumps(source["config"]))
        name = record["settings"]["point"]
        point = read_point(name, config.point(name), gpus=0, threads=record["settings"]["threads"])
        subject = Subject(
            identity=record["model"],
            variant=variant,
            kv_cache=record["kv_cache"],
            folder=folder,
            weights=record["weights"],
            spec=config.spec(model, variant),
            merge_all_layers=config.variants[variant].merge_all_layers,
            quantization=config.models[model].quantization,
        )
        length = max(longest, point.max_model_len(subject.config))
        return printable(vllm_command(subject, point, length, point.memory(subject)), folder)


def state() -> dict:
    """All that is kept."""
    return {"csv": redraw(), "jobs": {profile: jobs(profile) for profile in PROFILES}, "commands": commands()}


def write() -> None:
    """Keep the present state."""
    now = state()
    DATA.write_bytes(lzma.compress(json.dumps(now, sort_keys=True).encode(), preset=9 | lzma.PRESET_EXTREME))
    count = Counter(command["origin"] for command in now["commands"].values())
    planned = {profile: len(found) for profile, found in now["jobs"].items()}
    print(f"{len(now['csv'])} CSVs, jobs {planned}, commands {dict(count)}, {DATA.stat().st_size} bytes")


def check() -> int:
    """Compare the present state with the one that was kept; 1 if anything differs."""
    kept, now = json.loads(lzma.decompress(DATA.read_bytes())), state()
    lines = []
    for name in sorted(kept["csv"].keys() | now["csv"].keys()):
        lines.append((name, compared(kept["csv"].get(name), now["csv"].get(name), tables)))
    for profile in PROFILES:
        lines.append((f"jobs of {profile}", compared(kept["jobs"][profile], now["jobs"][profile], job_lists)))
    for name in sorted(kept["commands"].keys() | now["commands"].keys()):
        before, after = kept["commands"].get(name), now["commands"].get(name)
        made = f" [{after['origin']}]" if after and after["origin"] != "regenerated" else ""
        before, after = before and before["command"], after and after["command"]
        lines.append((name, compared(before, after, words) + made))
    for name, verdict in lines:
        print(f"{name}: {verdict}")
    count = Counter(verdict.split(" ", 1)[0] for _, verdict in lines)
    print(", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items())))
    return 1 if count["differs:"] else 0


def compared(before, after, difference) -> str:
    """One verdict: equal, gone, new, "only ..." for nothing but what is gone, or "differs: ..."."""
    if before == after:
        return "equal"
    if after is None:
        return "gone"
    return "new" if before is None else difference(before, after)


def tables(before: str, after: str) -> str:
    """Compare two CSVs: by columns, then by cell where both have as many rows, else by rows of what both have."""
    (old_names, old), (new_names, new) = rows(before), rows(after)
    gone = [name for name in old_names if name not in new_names]
    more = [name for name in new_names if name not in old_names]
    shared = [name for name in old_names if name in new_names]
    said = [f"columns gone {gone}"] * bool(gone) + [f"columns new {more}"] * bool(more)
    equal = True
    if len(old) == len(new):
        cells = [
            (number, name, was[name], now[name])
            for number, (was, now) in enumerate(zip(old, new, strict=True), 1)
            for name in shared
            if was[name] != now[name]
        ]
        if cells:
            equal = False
            shown = "; ".join(f"row {number} {name}: {was!r} -> {now!r}" for number, name, was, now in cells[:EXAMPLES])
            said.append(f"{len(cells)} cells changed: {shown}")
    else:
        was, now = (Counter(tuple(row[name] for name in shared) for row in side) for side in (old, new))
        equal = not (now - was)
        said.append(f"rows gone {(was - now).total()}, e.g. {list(was - now)[:1]}, new {(now - was).total()}")
    if equal and not said:
        said = ["written differently, equal cells"]
    return ("only " if equal else "differs: ") + ", ".join(said)


def rows(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and lines of a CSV."""
    reader = csv.DictReader(io.StringIO(text))
    lines = list(reader)
    return list(reader.fieldnames or ()), lines


def job_lists(before: list[dict], after: list[dict]) -> str:
    """Compare two job lists by their outputs."""
    old, new = ({" ".join(job["outputs"]): job for job in side} for side in (before, after))
    gone, more = Counter(old[key]["rule"] for key in old.keys() - new), sorted(new.keys() - old)
    changed = [key for key in old.keys() & new.keys() if old[key] != new[key]]
    said = [f"jobs gone {dict(gone)}"] if gone else []
    said += [f"{len(more)} jobs new: {more[:EXAMPLES]}"] if more else []
    said += [
        f"{len(changed)} jobs changed: " + "; ".join(fields(old[key], new[key]) for key in sorted(changed)[:EXAMPLES])
    ] * bool(changed)
    return ("differs: " if more or changed else "only ") + ", ".join(said)


def fields(before: dict, after: dict) -> str:
    """The fields in which a job differs."""
    changed = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    return f"{before['outputs'][0]} ({', '.join(changed)})"


def words(before: list[str] | None, after: list[str] | None) -> str:
    """The words in which two command lines differ."""
    was, now = Counter(before or ()), Counter(after or ())
    return f"differs: without {list((was - now).elements())}, with {list((now - was).elements())}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:
        print(json.dumps(plan(sys.argv[2])))
    elif sys.argv[1:] in (["write"], ["check"]):
        sys.exit(globals()[sys.argv[1]]())
    else:
        sys.exit(__doc__)
