"""Score one variant of a model on one task; --task-name, --task and --output repeated score several in one go."""

import argparse
import json
from pathlib import Path

from swiftkv.errors import UserError, command_line


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--checkpoint", type=Path, help="SwiftKV checkpoint; without it the base model is scored")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--spec", type=json.loads, required=True, help="fields of SwiftKVSpec as JSON, or null")
    parser.add_argument("--kv-cache", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--task-name", action="append", required=True, help="key of the task in the config")
    parser.add_argument("--task", type=json.loads, action="append", required=True, help="its config entry as JSON")
    parser.add_argument("--output", type=Path, action="append", required=True)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, help="CPU threads; as the environment says, if not given")
    arguments = parser.parse_args()
    if not len(arguments.task_name) == len(arguments.task) == len(arguments.output):
        raise UserError("give --task-name, --task and --output the same number of times")

    from swiftkv.score.run import score_tasks

    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    score_tasks(
        arguments.model_source,
        arguments.checkpoint,
        arguments.variant,
        arguments.spec,
        arguments.kv_cache,
        list(zip(arguments.task_name, arguments.task, arguments.output, strict=True)),
        arguments.seed,
    )


if __name__ == "__main__":
    main()
