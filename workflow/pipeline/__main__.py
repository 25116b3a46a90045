"""Advise on a model, plan, check or run a scale, or report on what it made, as the Makefile's commands do."""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import PROJECT, Config
from swiftkv.errors import UserError, command_line

if TYPE_CHECKING:
    from pipeline.run.jobs import Profile

HERE = Path(os.path.relpath(PROJECT))  # for paths in messages


@command_line
def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description=__doc__,
        epilog="\n".join(["commands:", *(f"  {name:10} {inspect.getdoc(one)}" for name, one in COMMANDS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below")
    parser.add_argument("--profile", required=True, help="folder of the profile, or its name under profiles/")
    parser.add_argument("--configfile", action="append", default=[], help="added to the profile's; may be repeated")
    parser.add_argument("--all", action="store_true", help="plan finished jobs too")
    parser.add_argument("--results", type=Path, help="results to compare or to report on; default: the scale's")
    parser.add_argument("--reference", type=Path, help="a folder of records in place of the shipped reference run")
    parser.add_argument("--output", type=Path, default=Path("mine.yaml"), help="configuration that advise writes")
    parser.add_argument("--measure", action="store_true", help="measure what untrained variants still read, by l")
    parser.add_argument(
        "targets", nargs="*", help="artifacts, sets of them, or files; default: all artifacts; or a model"
    )
    options = parser.parse_intermixed_args()
    COMMANDS[options.command](options)


def advise(options: argparse.Namespace) -> None:
    """Print the limits of SwiftKV's gain for a model, and write the configuration to train it."""
    from pipeline.run.advise import advise

    if len(options.targets) != 1:
        raise UserError("name one model: make advise MODEL=org/name, or its folder")
    for part in advise(options.targets[0], _profile(options), options.output, measure=options.measure):
        print(f"{part}\n", flush=True)


def plan(options: argparse.Namespace) -> None:
    """Print what a run would cost: jobs, hours, disk, downloads and licenses."""
    from pipeline.run.plan import make_plan, report

    print(report(make_plan(_profile(options), options.targets, everything=options.all)))


def check(options: argparse.Namespace) -> None:
    """Check what would stop a run, before it starts."""
    from pipeline.run.check import check

    check(_profile(options), options.targets)


def probe(options: argparse.Namespace) -> None:
    """Check the nodes of a run's largest job by one of a few minutes, with the same GPUs."""
    from pipeline.run.probe import probe

    probe(_profile(options), options.targets)


def run(options: argparse.Namespace) -> None:
    """Make targets with Snakemake."""
    words = _profile(options).command(options.targets)
    # In place of this program, so that signals reach it.
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])


def report(options: argparse.Namespace) -> None:
    """Write report.html and gallery.md of what the scale has made."""
    from pipeline.artifacts.report import write_report

    results = options.results or Path(_config(options)[0].pathvars.results)
    write_report(results, results / "report.html", results / "gallery.md")


def compare(options: argparse.Namespace) -> None:
    """Compare the scale's results, or those of some artifacts, with its reference run."""
    from pipeline.run.compare import compare, inputs, report

    config, reference = _config(options)
    results = options.results or Path(config.pathvars.results)
    found = compare(reference, results, inputs(config, options.targets) if options.targets else None)
    print(report(found, reference, results))
    if found.disagreements:
        raise UserError(f"disagreements with the reference run: {len(found.disagreements)}")


def redraw(options: argparse.Namespace) -> None:
    """Draw tables and figures of the reference run, in results/reference."""
    from pipeline.run.reference_run import redraw

    failed = 0
    for file, why in redraw(*_config(options), options.targets):
        print(file if why is None else f"{file} is not drawn: {why}", flush=True)
        failed += why is not None
    if failed:
        raise UserError(f"{failed} artifacts could not be drawn")


def keep(options: argparse.Namespace) -> None:
    """Make the scale's results its reference run, which at local scale docs/reproduced.md and the gallery show."""
    from pipeline.run.reference_run import keep, show

    config, reference = _config(options)
    print(keep(config, reference))
    if Path(options.profile).name == "local":
        print(show(Path(config.pathvars.results), HERE))


COMMANDS = {
    function.__name__: function for function in (advise, plan, check, probe, run, report, compare, redraw, keep)
}


def _profile(options: argparse.Namespace) -> Profile:
    """The profile of a scale."""
    from pipeline.run.jobs import read_profile

    return read_profile(options.profile, options.configfile)


def _config(options: argparse.Namespace) -> tuple[Config, Path]:
    """The configuration of a scale, and the folder of its reference run."""
    from pipeline.run.compare import folder
    from pipeline.run.jobs import read_config

    config = read_config(_profile(options))
    return config, options.reference or folder(HERE, config)


if __name__ == "__main__":
    main()
