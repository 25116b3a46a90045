"""python -m pipeline.stages NAME --option ...: the job of one stage; `NAME --help` says which options there are."""

import sys

from pipeline.stages import STAGES
from swiftkv.errors import UserError, command_line


@command_line
def main() -> None:
    name, *words = sys.argv[1:] or ["none"]
    if name not in STAGES:
        raise UserError(f"there is no stage {name!r}; the stages are {', '.join(STAGES)}")
    STAGES[name].start(name, words)


if __name__ == "__main__":
    main()
