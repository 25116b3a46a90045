"""Plan, check or run a scale, or report on what it made, as the Makefile's commands do."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from swiftkv.errors import UserError, command_line

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(os.path.relpath(ROOT))  # as it is told


@command_line
def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["plan", "check", "run", *MADE])
    parser.add_argument("--profile", required=True, help="folder of the profile, or its name under profiles/")
    parser.add_argument("--configfile", action="append", default=[], help="added to the profile's; may be repeated")
    parser.add_argument("--all", action="store_true", help="plan what is finished, too")
    parser.add_argument(
        "--results", type=Path, help="what to compare or to report on, if it is not in the scale's folder of results"
    )
    parser.add_argument(
        "--reference", type=Path, help="a reference run, or a folder of results, in place of the shipped one"
    )
    parser.add_argument("targets", nargs="*", help="files to make; all artifacts, if none is named")
    options = parser.parse_intermixed_args()
    where = (ROOT, options.profile, options.targets, options.configfile)
    if options.command == "plan":
        from pipeline.run.plan import make_plan, report

        print(report(make_plan(*where, everything=options.all)))
    elif options.command == "check":
        from pipeline.run.check import check

        check(*where)
    elif options.command in MADE:
        MADE[options.command](options)
    else:
        from pipeline.run.jobs import read_profile

        snakemake(read_profile(options.profile, ROOT, options.configfile).command(ROOT, options.targets))


def compare(options: argparse.Namespace) -> None:
    """Compare the scale's results with its reference run."""
    from pipeline.run.jobs import read_config, read_profile
    from pipeline.run.reference.compare import compare, report
    from pipeline.run.reference.folder import folder

    config = read_config(ROOT, read_profile(options.profile, ROOT, options.configfile))
    both = options.reference or folder(HERE, config), options.results or Path(config.pathvars.results)
    found = compare(*both)
    print(report(found, *both))
    if found.disagreements:
        count = len(found.disagreements)
        raise UserError(f"this run and the reference run disagree in {count} quantit{'y' if count == 1 else 'ies'}")


def report(options: argparse.Namespace) -> None:
    """Write the report and the gallery of what the scale has made."""
    from pipeline.artifacts.report import write_report
    from pipeline.run.jobs import read_config, read_profile

    places = read_config(ROOT, read_profile(options.profile, ROOT, options.configfile)).pathvars
    results = options.results or Path(places.results)
    benchmarks = results / "benchmarks" if options.results else Path(places.benchmarks)
    write_report(results, benchmarks, results / "report.html", results / "gallery.md")


def redraw(options: argparse.Namespace) -> None:
    """Draw tables and figures of the reference run."""
    from pipeline.run.jobs import read_config, read_profile
    from pipeline.run.reference.folder import folder
    from pipeline.run.reference.redraw import redraw

    config = read_config(ROOT, read_profile(options.profile, ROOT, options.configfile))
    failed = 0
    for file, why in redraw(config, options.reference or folder(HERE, config), options.targets):
        print(file if why is None else f"{file} is not drawn: {why}", flush=True)
        failed += why is not None
    if failed:
        raise UserError(f"{failed} artifacts could not be drawn")


def keep(options: argparse.Namespace) -> None:
    """Make the scale's results its reference run, which at local scale the README and the gallery show."""
    from pipeline.run.jobs import read_config, read_profile
    from pipeline.run.reference.folder import folder, keep
    from pipeline.run.reference.shown import show

    config = read_config(ROOT, read_profile(options.profile, ROOT, options.configfile))
    print(keep(config, folder(HERE, config)))
    if options.profile == "local":
        print(show(Path(config.pathvars.results), HERE))


MADE = {"report": report, "compare": compare, "redraw": redraw, "keep": keep}


def snakemake(words: list[str]) -> None:
    """Run Snakemake in place of this program."""
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])


if __name__ == "__main__":
    main()
