"""The estimate of what early exit would gain as self-speculation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from performance.self_speculation import Passes, best, needed, thresholds
from swiftkv.cost import parameter_count
from swiftkv.dimensions import Dimensions
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
LLAMA = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
PASSES = Passes(lower=50, upper=40, head=10)


def alignment(*bins):
    """A record's alignment of (confidence from, positions, agreement)."""
    return {
        "bins": [
            {"confidence_from": low, "positions": count, "agreement": {"value": value}} for low, count, value in bins
        ]
    }


def test_passes_read_all_weights_of_the_model_but_the_embedding():
    spec = SwiftKVSpec(32, 16)
    passes = Passes.of(Dimensions.from_config(LLAMA), spec)
    embedding = LLAMA["vocab_size"] * LLAMA["hidden_size"]
    norms = 65 * LLAMA["hidden_size"]
    assert passes.lower + passes.upper + passes.head == parameter_count(LLAMA) - embedding - norms
    assert passes.head == embedding and passes.lower > passes.upper  # keys and values of the upper layers


def test_a_cycle_of_one_token_is_plain_decoding():
    assert PASSES.speedup(0.7, 0.5, 1) == 1


def test_right_drafts_cost_the_lower_half_and_a_head():
    # Two tokens for two lower passes, one draft's head, one upper pass and its head
    assert PASSES.speedup(1, 1, 2) == pytest.approx(2 * 100 / (100 + 10 + 40 + 10))
    assert PASSES.speedup(1, 0, 2) == pytest.approx(100 / 160)  # all drafts are in vain


def test_the_threshold_weighs_few_good_drafts_against_many_bad_ones():
    shape = alignment((0.0, 60, 0.1), (0.5, 0, None), (0.9, 40, 0.95))
    assert [(low, share) for low, share, _ in thresholds(shape)] == [(0.0, 1.0), (0.9, 0.4)]
    assert [right for *_, right in thresholds(shape)] == pytest.approx([0.44, 0.95])
    speedup, threshold, longest = best(PASSES, shape)
    assert threshold == 0.9 and longest >= 2
    assert speedup == max(PASSES.speedup(0.4, 0.95, tokens) for tokens in range(2, 9))


def test_what_is_needed_is_just_enough():
    agreement = needed(PASSES, 1.15)
    reached = [
        max(PASSES.speedup(1, value, tokens) for tokens in range(2, 9)) for value in (agreement, agreement - 1e-3)
    ]
    assert reached[0] >= 1.15 > reached[1]


def test_the_program_prints_both_models(tmp_path):
    record = {"measure": "early_exit", "variant": "v", "model": {"name": "m", "title": "Small"}}
    record["spec"] = {**vars(SwiftKVSpec(32, 16)), "early_exit": True}
    shape = alignment((0.0, 60, 0.1), (0.9, 40, 0.95)) | {"all": {"agreement": {"value": 0.44, "stderr": 0.01}}}
    record["result"] = {"alignment": shape}
    (tmp_path / "record.json").write_text(json.dumps(record))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    command = [sys.executable, ROOT / "performance/self_speculation.py", tmp_path / "record.json"]
    ended = subprocess.run([*command, "--config", tmp_path / "config.json"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    small, large = (line.split("|")[2:] for line in ended.stdout.splitlines()[-2:])
    assert small == large and float(small[0]) > 1  # the same model
