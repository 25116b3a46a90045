"""Tokenize chats with a model's chat template and pack them into rows of the recipe's length."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from swiftkv.data.read import read_chats
from swiftkv.distill.packing import pack, tokenize, write_packed
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import command_line
from swiftkv.models import load_tokenizer
from swiftkv.records import CHAT_DATE
from swiftkv.sources import read_source


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-source", type=Path, required=True, help="source.json of the model")
    parser.add_argument("--recipe", required=True, help="the recipe as JSON")
    parser.add_argument("--data", type=Path, required=True, help="chats, one JSON object a line")
    parser.add_argument("--output", type=Path, required=True, help="packed rows, safetensors")
    options = parser.parse_args()

    recipe = Recipe.from_json(options.recipe)
    model = read_source(options.model_source)
    tokenizer = load_tokenizer(model["path"])
    samples, refused = tokenize(tokenizer, read_chats(options.data))
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    needed = None if recipe.max_steps is None else recipe.max_steps * recipe.batch_size
    longest = min(recipe.max_length, model["config"].get("max_position_embeddings") or recipe.max_length)
    arrays, counts = pack(samples, recipe.max_length, recipe.seed, padding or 0, needed, longest)
    rows = len(arrays["input_ids"])
    recipe.total_steps(rows)
    source = {key: model.get(key) for key in ("name", "id", "revision", "resolved")}
    description = {"rows": rows, "max_length": recipe.max_length, "longest": longest, "chat_date": str(CHAT_DATE)}
    write_packed(options.output, arrays, {**description, "tokenizer": source, "refused": refused, **counts})
    filled = counts["tokens"] / arrays["input_ids"].size
    print(
        f"{counts['samples']} chats, {counts['tokens']} tokens in {rows} rows of {recipe.max_length} "
        f"({filled:.1%} full), {counts['assistant_tokens']} the assistant's; left out: "
        f"{counts['too_long']} of more than {longest} tokens, {refused} refused, {counts['empty']} empty, "
        f"{counts['not_needed']} not needed",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
