"""Would early exit pay as self-speculation? An estimate from measured agreement and the weights each pass reads.

    python performance/self_speculation.py results/local/early_exit/smollm2-135m/swiftkv-50-early-exit.json

Layers below l with the early exit head draft token after token, as long as the head is surer than a threshold and at most
K tokens; then layers l and above verify all of them in one pass, and the text is that of full depth (greedy). One
sequence decodes at a time, so a pass costs what its weights take to read, however few tokens go through it:

    seconds a cycle = drafts x (lower layers + keys and values of the upper ones + early exit head) + upper layers + head
    tokens a cycle  = 1 + (s a) + (s a)^2 + ...,   drafts = 1 + s + s^2 + ...   (K terms each)

where s is the share of positions at which the head is sure and a how often it is right there, both from the record of
`score/early_exit.py`, taken as independent from token to token. The head is read for every draft but the last of K,
whose successor nobody drafts. Left out, all to the disadvantage of speculation: the KV cache, launching, sampling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError, command_line
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[1]
LONGEST = 8  # tokens of a cycle
GOAL = 1.15  # speed-up at one sequence from which it would be built


@dataclass(frozen=True)
class Passes:
    """Weights read by each pass; the unit is a weight."""

    lower: int
    upper: int
    head: int

    @classmethod
    def of(cls, arch: Dimensions, spec: SwiftKVSpec) -> Passes:
        """Of a model without biases and norms, which weigh nothing."""
        query = arch.hidden_size * arch.num_attention_heads * arch.head_dim
        key_value = 2 * arch.hidden_size * arch.num_key_value_heads * arch.head_dim
        rest = query + 3 * arch.hidden_size * arch.intermediate_size  # output projection and MLP
        lower = spec.num_key_value_layers * (query + key_value + rest) + len(spec.groups) * key_value
        upper = (arch.num_hidden_layers - spec.num_key_value_layers) * (query + rest)
        return cls(lower, upper, arch.vocab_size * arch.hidden_size)

    def speedup(self, sure: float, right: float, longest: int) -> float:
        """Tokens a second over those of plain decoding.

        Args:
            sure: share of positions at which another token is drafted.
            right: share of these drafts that are the full model's token.
            longest: tokens of a cycle at most; 1 is plain decoding.
        """
        tokens = sum((sure * right) ** count for count in range(longest))
        drafts = sum(sure**count for count in range(longest))
        heads = sum(sure**count for count in range(longest - 1))
        cycle = drafts * self.lower + (heads + 1) * self.head + self.upper
        return tokens * (self.lower + self.upper + self.head) / cycle


def thresholds(alignment: dict[str, Any]) -> Iterator[tuple[float, float, float]]:
    """(threshold, share of positions above it, agreement there) for every edge of the record's bins."""
    bins = [entry for entry in alignment["bins"] if entry["positions"]]
    everything = sum(entry["positions"] for entry in bins)
    for index, entry in enumerate(bins):
        count = sum(other["positions"] for other in bins[index:])
        agreed = sum(other["positions"] * other["agreement"]["value"] for other in bins[index:])
        yield entry["confidence_from"], count / everything, agreed / count


def best(passes: Passes, alignment: dict[str, Any]) -> tuple[float, float, int]:
    """The largest speed-up, with its threshold and its longest cycle of at least two tokens."""
    return max(
        (passes.speedup(sure, right, longest), threshold, longest)
        for threshold, sure, right in thresholds(alignment)
        for longest in range(2, LONGEST + 1)
    )


def needed(passes: Passes, goal: float) -> float:
    """The agreement, at every position, from which the best cycle reaches `goal`; in steps of 0.001.

    Raises:
        UserError: no agreement does.
    """
    for step in range(1001):
        if max(passes.speedup(1.0, step / 1000, longest) for longest in range(2, LONGEST + 1)) >= goal:
            return step / 1000
    raise UserError(f"no agreement gives a speed-up of {goal}")


@command_line
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="of a variant with an early exit head")
    parser.add_argument("--config", type=Path, help="config.json of the model; the one beside the checkpoint without")
    options = parser.parse_args()
    record = read_json(options.record)
    if record.get("measure") != "early_exit" or not record.get("result"):
        raise UserError(f"{options.record} is no measurement of early exit")
    model, variant = record["model"]["name"], record["variant"]
    config = options.config or options.record.parents[2] / "checkpoints" / model / variant / "config.json"
    alignment = record["result"]["alignment"]
    spec = SwiftKVSpec(**{name: record["spec"][name] for name in SwiftKVSpec.__dataclass_fields__})
    small = Passes.of(Dimensions.from_config(read_json(config)), spec)
    large_config = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
    large = Passes.of(Dimensions.from_config(large_config), SwiftKVSpec(large_config["num_hidden_layers"], 16))
    agreement = alignment["all"]["agreement"]
    print(f"{model}, {variant}: agreement {agreement['value']:.3f} +- {agreement['stderr']:.3f} at all positions\n")
    print("| weights read as in | best speed-up with that agreement | sure above | tokens a cycle | agreement needed |")
    print("|---|---|---|---|---|")
    for title, passes in ((record["model"]["title"], small), ("Llama-3.1-8B, l = 16", large)):
        speedup, threshold, longest = best(passes, alignment)
        agreements = f"{needed(passes, GOAL):.3f} for {GOAL}, {needed(passes, 1.0):.3f} for 1"
        print(f"| {title} | {speedup:.3f} | {threshold:.2f} | {longest} | {agreements} |")


if __name__ == "__main__":
    main()
