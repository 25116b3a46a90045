"""Train one variant of a model; alone, or as every rank of torchrun or the deepspeed launcher."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--variant", required=True, help="name of the variant")
    parser.add_argument("--spec", required=True, help="the SwiftKV spec as JSON; null trains the model as it is")
    parser.add_argument("--recipe", required=True, help="the recipe as JSON")
    parser.add_argument("--data", type=Path, required=True, help="packed rows")
    parser.add_argument("--teacher-states", type=Path, help="stored teacher states, for recipes that use them")
    parser.add_argument("--moments", type=Path, help="what a fitted start is fitted to, for recipes that have one")
    parser.add_argument("--state-dir", type=Path, required=True, help="folder for resumable state")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the trained checkpoint")
    # torchrun takes --log for one of its own options, so there is a second name.
    parser.add_argument("--log", "--loss-log", type=Path, required=True, help="CSV of the losses")
    parser.add_argument("--record", type=Path, required=True, help="JSON of what the training cost")
    parser.add_argument("--threads", type=int, default=1, help="processor threads a rank may use")
    add_gpus(parser)
    parser.add_argument("--minutes", type=float, help="time the job has; the state is saved before they are over")
    options = parser.parse_args()

    compute_with(options.threads, options.gpus)
    from swiftkv.distill.recipe import Recipe, spec_from_json
    from swiftkv.distill.trainer import Training, train
    from swiftkv.sources import read_source

    recipe = Recipe.from_json(options.recipe)
    spec = spec_from_json(options.spec)
    files = Training(
        source=read_source(options.model_source),
        variant=options.variant,
        data=options.data,
        teacher_states=options.teacher_states,
        moments=options.moments,
        state=options.state_dir,
        checkpoint=options.checkpoint,
        log=options.log,
        record=options.record,
        started=started,
        minutes=options.minutes,
    )
    train(spec, recipe, files)


if __name__ == "__main__":
    main()
