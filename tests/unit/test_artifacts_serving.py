"""Serving tables: the right number in the right cell, missing and OOM visible, nothing compared that must not be."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from swiftkv.artifacts.capacity import kv_capacity
from swiftkv.artifacts.inputs import read_published
from swiftkv.artifacts.serving import (
    Case,
    check_comparable,
    conditions,
    heading,
    length_label,
    machine,
    read_serving,
)
from swiftkv.artifacts.serving_tables import blog_table1, table5
from swiftkv.artifacts.table import to_csv, to_latex, to_markdown
from swiftkv.errors import UserError
from swiftkv.records import write_json
from tests.unit.serving_helpers import CPU, H100, record, serving, speed

ROOT = Path(__file__).parents[2]
CASES = [Case("baseline"), Case("merge-all-layers"), Case("swiftkv-50"), Case("swiftkv-50-across4"),
         Case("swiftkv-50-across4", "fp8")]  # fmt: skip
KINDS = {
    "figure2": "forward_time", "figure3": "throughput", "figure4": "latency", "figureB1": "latency", "table5": "throughput",
    "kv_capacity": "kv_capacity", "blog_table1": "throughput", "blog_figure3": "throughput", "blog_figure4": "throughput",
    "blog_figure5": "latency", "blog_figure6": "latency", "blog_figure7": "latency",
}  # fmt: skip


def table5_records(**changes):
    """80 GB: everything; 16 GB: baseline and swiftkv-50 out of memory, Merge-all-Layers not measured."""
    numbers = {"memory-80gb": (20000, 22000, 30000, 31000, 32000), "memory-16gb": (None, 0, None, 4220, 7280)}
    records = []
    for point, row in numbers.items():
        for case, value in zip(CASES, row, strict=True):
            if value == 0:
                continue
            limit = {"memory_gib": int(point[7:9])}
            records.append(record("throughput", point, *case, value and speed(value), settings=limit, **changes))
    return records


def rows(table):
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def cell(panel, row, column):
    frame = panel.frame
    return frame.iloc[row][next(name for name in frame.columns if name.startswith(column))]


def published5():
    return read_published([ROOT / "resources/paper/table5.csv"], None, ("model", "memory_gib"))


def test_table5_prints_values_oom_missing_and_the_paper():
    table = table5(serving(table5_records(), ["memory-80gb", "memory-16gb"], CASES, published5()))
    speeds, gains, capacity = table.panels
    assert list(speeds.frame["Memory"]) == ["80 GB", "published", "16 GB", "published"]
    assert cell(speeds, 0, "Baseline") == "20,000" and cell(speeds, 1, "Baseline") == "22,900"
    assert cell(speeds, 2, "Baseline").startswith("OOM [") and cell(speeds, 3, "Baseline") == "OOM"
    assert cell(speeds, 2, "Merge-all-Layers").startswith("n/a [")
    assert speeds.frame.iloc[3, -1] == "7,280" and speeds.frame.columns[-1].endswith("(FP8 KV)")
    assert cell(gains, 0, "50% SingleInputKV") == "1.50× (limit 1.80×)"
    assert cell(gains, 1, "50% SingleInputKV + 4× AcrossKV") == "– (baseline OOM)"
    assert cell(capacity, 1, "Baseline") == "OOM" and cell(capacity, 0, "Baseline") == "93,184"
    assert "[1] " in "\n".join(table.notes) and "no memory is left" in "\n".join(table.notes)
    for word in ("Llama-3.1-8B-Instruct", "1 × NVIDIA H100", "vLLM 0.32.0", "eager", "Table 5"):
        assert word in table.title
    values = {(row["point"], row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert len(values) == 10
    one = values["memory-80gb", "swiftkv-50", "auto"]
    assert (float(one["speedup"]), float(one["speedup_limit"])) == (1.5, 1.8)
    assert float(one["fraction_of_limit"]) == pytest.approx(1.5 / 1.8)
    assert float(one["tokens_per_second_published"]) == 31000
    assert values["memory-16gb", "baseline", "auto"]["status"] == "oom"
    assert values["memory-16gb", "merge-all-layers", "auto"]["status"] == "missing"
    assert values["memory-16gb", "merge-all-layers", "auto"]["tokens_per_second"] == ""
    assert to_latex(table).count(r"\begin{tabular}{") == 3 and "OOM" in to_markdown(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": CPU},
        {"hardware": H100 | {"gpus": ["NVIDIA H200"]}},
        {"settings": {"tensor_parallel_size": 2}},
        {"model": "mine"},
    ],
)
def test_table5_shows_the_paper_only_for_its_model_on_its_hardware(changes):
    records = table5_records(**{name: value for name, value in changes.items() if name != "settings"})
    for each in records:
        each["settings"] |= changes.get("settings", {})
    table = table5(serving(records, ["memory-80gb", "memory-16gb"], CASES, published5()))
    assert "published" not in to_markdown(table)
    assert not any(row["tokens_per_second_published"] for row in rows(table))


def test_blog_table1_wants_the_blogs_gpus():
    published = read_published([ROOT / "resources/paper/blog_table1.csv"], None, ("model", "input_length"))
    records = [
        record("throughput", "batch-4k", variant, "auto", speed(10000), model=model,
               settings={"input_tokens": 4000, "tensor_parallel_size": gpus})
        for model, gpus in (("llama-3.1-8b", 1), ("llama-3.1-70b", 8))
        for variant in ("baseline", "merge-all-layers", "swiftkv-50")
    ]  # fmt: skip
    table = blog_table1(serving(records, ["batch-4k"], CASES[:3], published))
    frame = table.panels[0].frame
    assert list(frame["Model"]) == ["Llama-3.1-8B-Instruct", "published", "Llama-3.1-70B"]
    assert frame.iloc[1]["50% SingleInputKV"] == "25,200" and list(frame["Input"]) == ["4K", "", "4K"]


def test_kv_capacity_is_held_against_the_cost_model():
    tokens = {CASES[0]: 1000, CASES[1]: 32000, CASES[3]: 1600, CASES[4]: 3150}
    allowed = {CASES[0]: 1.0, CASES[1]: 32.0, CASES[3]: 1.6, CASES[4]: 3.2}
    records = [
        record("kv_capacity", "kv-capacity", *case, {"kv_cache_tokens": count, "kv_cache_bytes": 2**30},
               cost={"capacity_limit": allowed[case]})
        for case, count in tokens.items()
    ]  # fmt: skip
    records[3]["result"]["kv_cache_bytes"] = 2**29  # half the memory: the ratio is for one byte of cache
    table = kv_capacity(serving(records, ["kv-capacity"], CASES))
    values = {(row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert float(values["merge-all-layers", "auto"]["capacity_ratio"]) == 32
    assert float(values["swiftkv-50-across4", "auto"]["fraction_of_limit"]) == pytest.approx(1)
    assert float(values["swiftkv-50-across4", "fp8"]["capacity_ratio"]) == pytest.approx(6.3)
    assert values["swiftkv-50", "auto"]["status"] == "missing"
    assert "n/a [1]" in to_markdown(table)
    with pytest.raises(UserError, match="one serving point"):
        kv_capacity(serving(records, ["kv-capacity", "other"], CASES))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"hardware": CPU}, "hardware.*Intel Xeon Processor, 2 cores"),
        ({"engine": {"vllm": "0.26.0"}}, "vLLM version.*0.26.0"),
        ({"engine": {"compilation": "compiled"}}, "compilation"),
        ({"settings": {"max_num_batched_tokens": 64}}, "chunk"),
        ({"settings": {"quantization": "fp8"}}, None),
        ({"weights": "dummy"}, "weights"),
    ],
)
def test_records_of_different_conditions_are_never_compared(changes, what):
    one = record("throughput", "p", "baseline", "auto", speed(1), settings={"quantization": "none"})
    two = record("throughput", "p", "swiftkv-50", "auto", speed(2), **changes)
    sentence = what or "quantization"
    with pytest.raises(UserError, match=sentence) as error:
        check_comparable([one, two], "Table 5")
    assert "p/llama-3.1-8b/baseline/auto" in str(error.value) and "swiftkv-50" in str(error.value)
    assert "\n" not in str(error.value)
    if what:
        with pytest.raises(UserError, match=sentence):
            table5(serving([one, two], ["p"], CASES))


def test_what_an_engine_did_not_report_is_no_difference():
    one = record("throughput", "p", "baseline", "auto", speed(1))
    two = record("throughput", "p", "swiftkv-50", engine={"vllm": None, "compilation": None})
    check_comparable([one, two], "Table 5")


def test_conditions_name_machine_engine_and_weights():
    plain = record("throughput", "p", "baseline", "auto", speed(1))
    dummy = record("throughput", "p", "baseline", hardware=CPU, weights="dummy", settings={"quantization": "fp8"})
    assert conditions([plain]) == "1 × NVIDIA H100 80GB HBM3, vLLM 0.32.0, eager"
    assert conditions([dummy]) == "Intel Xeon Processor, 2 cores, vLLM 0.32.0, eager, dummy FP8 weights"
    assert machine(record("throughput", "p", "baseline", settings={"tensor_parallel_size": 4})).startswith("4 × ")
    other = record("throughput", "p", "baseline", "auto", speed(1), model="big", settings={"tensor_parallel_size": 4})
    assert heading(serving([plain, other], ["p"], CASES)) == (
        "Llama-3.1-8B-Instruct (1 × NVIDIA H100 80GB HBM3) and Big (4 × NVIDIA H100 80GB HBM3), vLLM 0.32.0, eager"
    )


def test_lengths_are_written_as_in_the_paper():
    assert [length_label(tokens) for tokens in (512, 2000, 4096, 16000, 128000, 131072)] == [
        "512", "2K", "4K", "16K", "128K", "128K",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda made: made.pop("engine"), "it has no engine"),
        (lambda made: made.update(benchmark="latency"), "is a latency record"),
        (lambda made: made.update(result=None), "no usable result"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, change, sentence):
    made = record("throughput", "p", "baseline", "auto", speed(1))
    change(made)
    write_json(tmp_path / "x.json", made)
    with pytest.raises(UserError, match=f"x.json.*{sentence}"):
        read_serving([tmp_path / "x.json"], "throughput")


def test_two_files_for_one_cell_are_refused(tmp_path):
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", record("throughput", "p", "baseline", "auto", speed(1)))
    with pytest.raises(UserError, match="b.json is a second measurement of p llama-3.1-8b baseline auto"):
        read_serving([tmp_path / "a.json", tmp_path / "b.json"], "throughput")


def run(name, folder, kinds, *arguments):
    command = [sys.executable, str(ROOT / f"workflow/scripts/{name}.py"), *arguments]
    command += [f"--output-{kind}={folder / name}.{kind}" for kind in kinds]
    return subprocess.run(command, capture_output=True, text=True)


def test_table_script_writes_three_files_or_one_sentence(tmp_path):
    records = table5_records()
    files = [tmp_path / f"{number}.json" for number in range(len(records))]
    for file, each in zip(files, records, strict=True):
        write_json(file, each)
    shown = ["--models", '{"llama-3.1-8b": "llama-3.1-8b"}', "--points", '["memory-80gb", "memory-16gb"]', "--cases",
             json.dumps(CASES), "--published", str(ROOT / "resources/paper/table5.csv")]  # fmt: skip
    done = run("table5", tmp_path, ("csv", "tex", "md"), "--records", *map(str, files), *shown)
    assert done.returncode == 0, done.stderr
    assert "published" in (tmp_path / "table5.md").read_text()
    assert all((tmp_path / f"table5.{kind}").stat().st_size for kind in ("csv", "tex"))
    files[0].write_text("{")
    failed = run("table5", tmp_path, ("csv", "tex", "md"), "--records", *map(str, files), *shown)
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1 and "0.json is not valid JSON" in failed.stderr


@pytest.mark.parametrize("scale", [None, "local", "smoke"])
def test_artifacts_name_points_of_the_right_kind(scale):
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    override = yaml.safe_load((ROOT / f"profiles/{scale}/override.yaml").read_text()) if scale else {}
    points = {name: dict(entry) for name, entry in config["serving"]["points"].items()}
    for name, entry in override.get("serving", {}).get("points", {}).items():
        points[name] = points.get(name, {}) | entry
    for artifact, kind in KINDS.items():
        entry = config["artifacts"][artifact] | override.get("artifacts", {}).get(artifact, {})
        assert {points[point]["measure"] for point in entry["points"]} == {kind}, artifact
        if scale != "smoke":  # which shows that every rule works, not what SwiftKV is worth
            assert entry["variants"][0] == "baseline", artifact
        if scale:
            assert entry["models"] == override["artifacts"][artifact]["models"], artifact
