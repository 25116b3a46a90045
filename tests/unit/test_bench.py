"""`make bench` at tiny sizes, with real engines."""

import json
import sys

import pytest
from tests.programs import run


@pytest.mark.thorough
def test_serving_in_pairs_of_engines(tmp_path):
    words = ["--profile", "smoke", "--points", "batch-2k", "decode", "--layers", "4", "--threads", "1", "--pairs", "1"]
    done = run(sys.executable, "performance/bench.py", "--output", tmp_path / "serving.json", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "serving.json").read_text())
    rows = {(row["point"], row["batch"]): row for row in result["rows"]}
    assert rows.keys() == {("batch-2k", None), ("decode", 1), ("decode", 2)}
    assert all(len(row["speedups"]) == 1 and row["speedup"] > 0 for row in rows.values())
    assert rows["batch-2k", None]["limit"] > 1 and rows["decode", 1]["limit"] is None
    assert result["engine"]["fast_prefill"] is True
