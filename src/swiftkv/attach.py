"""`python -m swiftkv.attach BASE ADDED OUTPUT`: make a checkpoint of a base model and a published `swiftkv.safetensors`."""

from __future__ import annotations

import argparse
from pathlib import Path

from huggingface_hub import snapshot_download

from swiftkv.errors import UserError, command_line, one_line
from swiftkv.io import TOKENIZER_FILES
from swiftkv.models.sharing import attach


@command_line
def main(words: list[str] | None = None) -> None:
    """Read the command line and write the checkpoint, whose base's files are links."""
    parser = argparse.ArgumentParser(prog="python -m swiftkv.attach", description=__doc__)
    parser.add_argument("base", help="the base model: a folder, or org/name on the Hugging Face hub")
    parser.add_argument("added", type=Path, help="folder with swiftkv.safetensors and config.json")
    parser.add_argument("output", type=Path, help="folder of the checkpoint; an existing one is replaced")
    parser.add_argument("--revision", default="main", help="branch, tag or commit on the hub")
    given = parser.parse_args(words)
    base = Path(given.base).expanduser()
    if not base.is_dir():
        patterns = ["*.safetensors", *TOKENIZER_FILES]
        try:
            base = Path(snapshot_download(given.base, revision=given.revision, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{given.base!r} is no folder, and cannot be had from the hub (revision {given.revision!r}): "
                f"{one_line(error)[:200]}"
            ) from None
    attach(base, given.added, given.output)
    print(f"{given.output} is a checkpoint on links to {base}; `cp -rL` makes a folder with copies")


if __name__ == "__main__":
    main()
