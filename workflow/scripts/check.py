"""Check what a run of a profile needs, before hours are lost; prints one line a check."""

import argparse
import signal
from pathlib import Path

from swiftkv.errors import command_line


@command_line
def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", required=True, help="folder of the profile, or its name under profiles/")
    parser.add_argument("targets", nargs="*", help="files that are to be made (default: everything)")
    arguments = parser.parse_args()

    from swiftkv.preflight.checks import check

    check(arguments.profile, Path(__file__).parents[2], arguments.targets)


if __name__ == "__main__":
    main()
