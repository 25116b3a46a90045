"""Serving tables: the right number in the right cell, missing and OOM visible, nothing compared that must not be."""

import pytest
from artifact_helpers import PAPER, saved
from tests.unit.serving_helpers import CPU, H100, entry, make, record, rows, speed

from pipeline.artifacts.records import read_records
from pipeline.artifacts.serving import Case
from pipeline.artifacts.table import to_markdown
from swiftkv.errors import UserError

CASES = [Case("baseline"), Case("merge-all-layers"), Case("swiftkv-50"), Case("swiftkv-50-across4"),
         Case("swiftkv-50-across4", "fp8")]  # fmt: skip
MEMORY = {
    "large": {"input_tokens": 2000, "output_tokens": 256, "memory_gib": 80},
    "little": {"input_tokens": 2000, "output_tokens": 256, "memory_gib": 16},
}


def table5(folder, model="llama-3.1-8b", **changes):
    """80 GB: everything; 16 GB: baseline and swiftkv-50 out of memory, Merge-all-Layers not measured."""
    numbers = {"large": (20000, 22000, 30000, 31000, 32000), "little": (None, 0, None, 4220, 7280)}
    records = [
        record("throughput", point, *case, value and speed(value), model=model, **changes)
        for point, line in numbers.items()
        for case, value in zip(CASES, line, strict=True)
        if value != 0
    ]
    shown = entry("throughput_table", MEMORY, CASES, [model], head="memory")
    return make(folder, shown, records, published=[PAPER / "table5.csv"])


def cell(panel, row, column):
    frame = panel.frame
    return frame.iloc[row][next(name for name in frame.columns if name.startswith(column))]


def test_values_oom_missing_and_the_paper_under_memory_limits(tmp_path):
    table = table5(tmp_path)
    speeds, gains, capacity = table.panels
    assert list(speeds.frame["Memory"]) == ["80 GB", "published", "16 GB", "published"]
    assert cell(speeds, 0, "Baseline") == "20,000" and cell(speeds, 1, "Baseline") == "22,900"
    assert cell(speeds, 2, "Baseline").startswith("OOM [") and cell(speeds, 3, "Baseline") == "OOM"
    assert cell(speeds, 2, "Merge-all-Layers").startswith("n/a [") and speeds.frame.iloc[3, -1] == "7,280"
    assert cell(gains, 0, "50% SingleInputKV") == "1.50× (limit 1.80×)"
    assert cell(gains, 1, "50% SingleInputKV + 4× AcrossKV") == "– (baseline OOM)"
    assert cell(capacity, 1, "Baseline") == "OOM" and cell(capacity, 0, "Baseline") == "93,184"
    assert "no memory is left" in "\n".join(table.notes) and "not measured" in "\n".join(table.notes)
    values = {(row["point"], row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert len(values) == 10
    one = values["large", "swiftkv-50", "auto"]
    assert (float(one["speedup"]), float(one["speedup_limit"]), float(one["memory_gb"])) == (1.5, 1.8, 80)
    assert float(one["fraction_of_limit"]) == pytest.approx(1.5 / 1.8)
    assert float(one["tokens_per_second_published"]) == 31000
    assert float(one["speedup_published"]) == pytest.approx(31000 / 22900)
    little = values["little", "baseline", "auto"]
    assert (little["status"], little["tokens_per_second_published"]) == ("oom", "OOM")
    missing = values["little", "merge-all-layers", "auto"]
    assert (missing["status"], missing["tokens_per_second"]) == ("missing", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": CPU},
        {"hardware": H100 | {"gpus": ["NVIDIA H200"]}},
        {"settings": {"tensor_parallel_size": 2}},
        {"model": "mine"},
    ],
)
def test_the_paper_stands_only_beside_its_model_on_its_hardware(tmp_path, changes):
    table = table5(tmp_path, **changes)
    assert "published" not in to_markdown(table)
    assert not any(row["tokens_per_second_published"] or row["speedup_published"] for row in rows(table))


def test_kv_capacity_is_for_one_byte_of_cache(tmp_path):
    sizes = {CASES[0]: (1000, 2**30), CASES[3]: (1600, 2**30), CASES[4]: (3150, 2**29)}
    records = [
        record(
            "kv_capacity", "p", *case, {"kv_cache_tokens": tokens, "kv_cache_bytes": size}, cost={"capacity_limit": 1.6}
        )
        for case, (tokens, size) in sizes.items()
    ]
    table = make(tmp_path, entry("capacity", {"p": {"input_tokens": 2000}}, CASES), records)
    values = {(row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert float(values["swiftkv-50-across4", "auto"]["fraction_of_limit"]) == pytest.approx(1)
    assert float(values["swiftkv-50-across4", "fp8"]["capacity_ratio"]) == pytest.approx(6.3)
    assert values["swiftkv-50", "auto"]["status"] == "missing"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"hardware": CPU}, "hardware"),
        ({"engine": {"vllm": "0.26.0"}}, "vLLM version"),
        ({"engine": {"compilation": "compiled"}}, "compilation"),
        ({"settings": {"max_num_batched_tokens": 64}}, "chunk"),
        ({"settings": {"max_num_seqs": 1024}}, "sequences"),
        ({"settings": {"quantization": "fp8"}}, "quantization"),
        ({"weights": "dummy"}, "weights"),
    ],
)
def test_records_of_different_conditions_are_never_compared(tmp_path, changes, what):
    records = [
        record("throughput", "large", "baseline", "auto", speed(1), settings={"quantization": "none"}),
        record(
            "throughput", "large", "swiftkv-50", "auto", speed(2), **{"settings": {"quantization": "none"}} | changes
        ),
    ]
    with pytest.raises(UserError, match=f"differ in {what}|differ in .*{what}"):
        make(tmp_path, entry("throughput_table", MEMORY, CASES, head="memory"), records)


def test_threads_are_a_condition_on_a_processor_alone(tmp_path):
    def records(hardware):
        cases = enumerate(("baseline", "swiftkv-50"), start=1)
        return [
            record("throughput", "large", variant, "auto", speed(1), hardware=hardware, settings={"threads": threads})
            for threads, variant in cases
        ]

    make(tmp_path, entry("throughput_table", MEMORY, CASES, head="memory"), records(H100))
    with pytest.raises(UserError, match="differ in processor threads: .* has 1, .* has 2"):
        make(tmp_path, entry("throughput_table", MEMORY, CASES, head="memory"), records(CPU))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda made: made.pop("weights"), "weights"),
        (lambda made: made.update(measure="latency"), "latency"),
        (lambda made: made.update(result=None), "no result"),
        (lambda made: made, "second measurement"),
    ],
)
def test_a_file_of_another_kind_or_of_a_cell_that_has_one_is_named(tmp_path, change, named):
    records = [record("throughput", "p", "baseline", "auto", speed(1)) for _ in range(2)]
    change(records[1])
    with pytest.raises(UserError, match=f"1.json .*{named}"):
        read_records({}, saved(tmp_path, records), "throughput")
