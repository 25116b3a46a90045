"""`make bench` at tiny sizes: the trainer's own step, and with real engines (thorough) the serving points."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(part, output, *words):
    command = [sys.executable, "performance/bench.py", part, "--tiny", "--layers", "4", "--threads", "1", *words]
    done = subprocess.run([*command, "--output", output], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(output.read_text())


def test_training_in_turns_with_a_plain_loop(tmp_path):
    result = bench("training", tmp_path / "bench/training.json", "--repeats", "3")
    (row,) = result["rows"]
    assert row["tokens_per_second"] > 0 and row["plain_tokens_per_second"] > 0
    assert len(row["speedups"]) == 3 and row["lowest"] <= row["speedup"] <= row["highest"]


@pytest.mark.thorough
def test_serving_in_pairs_of_engines(tmp_path):
    result = bench("serving", tmp_path / "serving.json", "--repeats", "1")
    rows = {(row["point"], row["batch"]): row for row in result["rows"]}
    assert rows.keys() == {("prompts-256", None), ("decode", 1), ("decode", 4)}
    assert all(len(row["speedups"]) == 1 and row["speedup"] > 0 for row in rows.values())
    assert rows["prompts-256", None]["limit"] > 1 and rows["decode", 1]["limit"] is None
    assert result["engine"]["fast_prefill"] is True
