"""python -m pipeline.stages NAME --option ...: the job of one stage; `NAME --help` says which options there are."""

import inspect
import sys

from pipeline import gpus
from pipeline.stages import STAGES, command
from swiftkv.errors import UserError, command_line
from swiftkv.section import nearest


@command_line
def main() -> None:
    """Run a stage.

    Where it runs a model, `--threads` and `--gpus` count before anything is imported that may look for a GPU; its function
    gets them if it has such parameters.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if name == "--help":
        print(__doc__, *(f"  {known:20} {stage.output}" for known, stage in STAGES.items()), sep="\n")
        return
    if name not in STAGES:
        raise UserError(f"there is no stage {name!r}{nearest(name, STAGES)}; the stages are {', '.join(STAGES)}")
    stage = STAGES[name]
    threads, number, rest = command.take_machine(words)
    if stage.gpus:
        gpus.compute_with(threads, number)
        words = words if "gpus" in inspect.signature(stage.function).parameters else rest
    command.call(stage.function, words, f"python -m pipeline.stages {name}")


if __name__ == "__main__":
    main()
