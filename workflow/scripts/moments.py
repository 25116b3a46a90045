"""Run the teacher over some of the packed rows and gather what fitted starts need; alone or as every rank of torchrun."""

from __future__ import annotations

import argparse
from pathlib import Path

from swiftkv.errors import command_line
from swiftkv.gpus import add_gpus, compute_with


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--recipe", required=True, help="the recipe as JSON")
    parser.add_argument("--data", type=Path, required=True, help="packed rows")
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="every l a fitted start may have")
    parser.add_argument("--output", type=Path, required=True, help="the moments, safetensors")
    parser.add_argument("--threads", type=int, default=1, help="processor threads a rank may use")
    add_gpus(parser)
    options = parser.parse_args()

    compute_with(options.threads, options.gpus)
    from swiftkv.device import launched_ranks
    from swiftkv.distill.recipe import Recipe
    from swiftkv.distill.teacher import write_moments
    from swiftkv.sources import read_source

    model = Path(read_source(options.model_source)["path"])
    with launched_ranks():
        write_moments(model, options.data, Recipe.from_json(options.recipe), options.layers, options.output)


if __name__ == "__main__":
    main()
