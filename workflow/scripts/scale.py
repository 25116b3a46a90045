"""Plan, check or run a scale, as `make plan`, `make check` and `make reproduce` do."""

import argparse
import os
import signal
import sys
from pathlib import Path

from swiftkv.errors import command_line

ROOT = Path(__file__).resolve().parents[2]


@command_line
def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["plan", "check", "run"])
    parser.add_argument("--profile", required=True, help="folder of the profile, or its name under profiles/")
    parser.add_argument("--configfile", action="append", default=[], help="added to the profile's; may be repeated")
    parser.add_argument("--all", action="store_true", help="plan what is finished, too")
    parser.add_argument("targets", nargs="*", help="files to make; all artifacts, if none is named")
    options = parser.parse_intermixed_args()
    where = (ROOT, options.profile, options.targets, options.configfile)
    if options.command == "plan":
        from swiftkv.planning.plan import make_plan
        from swiftkv.planning.report import report

        print(report(make_plan(*where, everything=options.all)))
    elif options.command == "check":
        from swiftkv.preflight.checks import check

        check(*where)
    else:
        from swiftkv.planning.profile import read_profile

        words = read_profile(options.profile, ROOT, options.configfile).command(ROOT, options.targets)
        os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])


if __name__ == "__main__":
    main()
