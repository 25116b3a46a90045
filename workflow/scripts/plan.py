"""Print what a run would cost before it starts: jobs, GPU-hours, wall time, disk, downloads, licenses, how sure each is."""

import argparse
import signal
from pathlib import Path

from swiftkv.errors import command_line

ROOT = Path(__file__).resolve().parents[2]


@command_line
def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", required=True, help="folder of the profile, or its name under profiles/")
    parser.add_argument("--configfile", action="append", default=[], help="in place of the profile's; may be repeated")
    parser.add_argument("--all", action="store_true", help="plan what is finished, too")
    parser.add_argument("targets", nargs="*", help="files to make; all artifacts, if none is named")
    arguments = parser.parse_args()

    from swiftkv.planning.plan import make_plan
    from swiftkv.planning.report import report

    plan = make_plan(ROOT, arguments.profile, arguments.targets, arguments.configfile, everything=arguments.all)
    print(report(plan))


if __name__ == "__main__":
    main()
