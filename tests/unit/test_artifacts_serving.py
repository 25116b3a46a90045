"""Serving tables: the right number in the right cell, missing and OOM visible, nothing compared that must not be."""

import pytest
from artifact_helpers import PAPER, saved
from tests.unit.serving_helpers import CPU, H100, entry, make, record, rows, speed

from pipeline.artifacts.records import Record, read_records
from pipeline.artifacts.serving import (
    Case,
    Serving,
    check_comparable,
    length_label,
    variant_of,
)
from pipeline.artifacts.table import to_html, to_latex, to_markdown
from swiftkv.errors import UserError

CASES = [Case("baseline"), Case("merge-all-layers"), Case("swiftkv-50"), Case("swiftkv-50-across4"),
         Case("swiftkv-50-across4", "fp8")]  # fmt: skip
MEMORY = {
    "large": {"input_tokens": 2000, "output_tokens": 256, "memory_gib": 80},
    "little": {"input_tokens": 2000, "output_tokens": 256, "memory_gib": 16},
}


def table5(folder, models=("llama-3.1-8b",), published=True, **changes):
    """80 GB: everything; 16 GB: baseline and swiftkv-50 out of memory, Merge-all-Layers not measured."""
    numbers = {"large": (20000, 22000, 30000, 31000, 32000), "little": (None, 0, None, 4220, 7280)}
    records = [
        record("throughput", point, *case, value and speed(value), model=models[0], **changes)
        for point, line in numbers.items()
        for case, value in zip(CASES, line, strict=True)
        if value != 0
    ]
    shown = entry("throughput_table", MEMORY, CASES, models, head="memory", notes=["said in the entry"])
    return make(folder, shown, records, **({"published": [PAPER / "table5.csv"]} if published else {}))


def cell(panel, row, column):
    frame = panel.frame
    return frame.iloc[row][next(name for name in frame.columns if name.startswith(column))]


def test_values_oom_missing_and_the_paper_under_memory_limits(tmp_path):
    table = table5(tmp_path)
    speeds, gains, capacity = table.panels
    assert list(speeds.frame["Memory"]) == ["80 GB", "published", "16 GB", "published"]
    assert cell(speeds, 0, "Baseline") == "20,000" and cell(speeds, 1, "Baseline") == "22,900"
    assert cell(speeds, 2, "Baseline").startswith("OOM [") and cell(speeds, 3, "Baseline") == "OOM"
    assert cell(speeds, 2, "Merge-all-Layers").startswith("n/a [")
    assert speeds.frame.iloc[3, -1] == "7,280" and speeds.frame.columns[-1].endswith("(FP8 KV)")
    assert cell(gains, 0, "50% SingleInputKV") == "1.50× (limit 1.80×)"
    assert cell(gains, 1, "50% SingleInputKV + 4× AcrossKV") == "– (baseline OOM)"
    assert cell(capacity, 1, "Baseline") == "OOM" and cell(capacity, 0, "Baseline") == "93,184"
    notes = "\n".join(table.notes)
    assert "no memory is left" in notes and "not measured" in notes and "said in the entry" in notes
    assert table.label == "an_artifact"
    for word in (
        "Llama-3.1-8B-Instruct",
        "1 × NVIDIA H100",
        "vLLM 0.32.0",
        "eager",
        "what is shown (paper's Figure 0)",
    ):
        assert word in table.title
    values = {(row["point"], row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert len(values) == 10
    one = values["large", "swiftkv-50", "auto"]
    assert (float(one["speedup"]), float(one["speedup_limit"]), float(one["memory_gb"])) == (1.5, 1.8, 80)
    assert float(one["fraction_of_limit"]) == pytest.approx(1.5 / 1.8)
    assert float(one["tokens_per_second_published"]) == 31000
    assert float(one["speedup_published"]) == pytest.approx(31000 / 22900)
    assert one["conditions"].startswith("1 × NVIDIA H100")
    assert values["little", "baseline", "auto"]["status"] == "oom"
    assert values["little", "baseline", "auto"]["tokens_per_second_published"] == "OOM"
    missing = values["little", "merge-all-layers", "auto"]
    assert (missing["status"], missing["reason"], missing["tokens_per_second"]) == ("missing", "not measured", "")
    assert to_latex(table).count(r"\begin{tabular}{") == 3 and "OOM" in to_markdown(table) and "OOM" in to_html(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": CPU},
        {"hardware": H100 | {"gpus": ["NVIDIA H200"]}},
        {"settings": {"tensor_parallel_size": 2}},
        {"models": ("mine",)},
    ],
)
def test_the_paper_stands_only_beside_its_model_on_its_hardware(tmp_path, changes):
    table = table5(tmp_path, **changes)
    assert "published" not in to_markdown(table)
    assert not any(row["tokens_per_second_published"] or row["speedup_published"] for row in rows(table))


def test_rows_by_input_length_want_the_blogs_gpus(tmp_path):
    records = [
        record("throughput", "batch-4k", variant, "auto", speed(10000), model=model,
               settings={"tensor_parallel_size": gpus})
        for model, gpus in (("llama-3.1-8b", 1), ("llama-3.1-70b", 8))
        for variant in ("baseline", "merge-all-layers", "swiftkv-50")
    ]  # fmt: skip
    models = ("llama-3.1-8b", "llama-3.1-70b")
    shown = entry("throughput_table", {"batch-4k": {"input_tokens": 4000}}, CASES[:3], models, head="input_tokens")
    frame = make(tmp_path, shown, records, published=[PAPER / "blog_table1.csv"]).panels[0].frame
    assert list(frame["Model"]) == ["Llama-3.1-8B-Instruct", "published", "Llama-3.1-70B-Instruct"]
    assert frame.iloc[1]["50% SingleInputKV"] == "25,200" and list(frame["Input"]) == ["4K", "", "4K"]


def test_an_entry_without_the_baseline_or_without_any_record_is_still_drawn(tmp_path):
    alone = entry("throughput_table", MEMORY, CASES[1:2], head="memory")
    table = make(tmp_path, alone, [record("throughput", "large", *CASES[1], speed(5))])
    assert cell(table.panels[1], 0, "Merge") == "– (baseline n/a)"
    reasons = {"llama-3.1-8b": {"merge-all-layers": "its weights cannot be loaded"}}
    nothing = make(tmp_path, alone | {"unmeasured": reasons}, [])
    assert "its weights cannot be loaded" in to_markdown(nothing)
    assert nothing.title == "Llama-3.1-8B-Instruct: what is shown (paper's Figure 0)"


def test_kv_capacity_is_held_against_the_cost_model(tmp_path):
    tokens = {CASES[0]: 1000, CASES[1]: 32000, CASES[3]: 1600, CASES[4]: 3150}
    allowed = {CASES[0]: 1.0, CASES[1]: 32.0, CASES[3]: 1.6, CASES[4]: 3.2}
    records = [
        record("kv_capacity", "p", *case, {"kv_cache_tokens": count, "kv_cache_bytes": 2**30},
               cost={"capacity_limit": allowed[case]})
        for case, count in tokens.items()
    ]  # fmt: skip
    records[3]["result"]["kv_cache_bytes"] = 2**29  # half the memory: the ratio is for one byte of cache
    table = make(tmp_path, entry("capacity", {"p": {"input_tokens": 2000}}, CASES), records)
    values = {(row["variant"], row["kv_cache"]): row for row in rows(table)}
    assert float(values["merge-all-layers", "auto"]["capacity_ratio"]) == 32
    assert float(values["swiftkv-50-across4", "auto"]["fraction_of_limit"]) == pytest.approx(1)
    assert float(values["swiftkv-50-across4", "fp8"]["capacity_ratio"]) == pytest.approx(6.3)
    assert values["swiftkv-50", "auto"]["status"] == "missing"
    assert "n/a [1]" in to_markdown(table)
    variants = list(table.panels[0].frame["Variant"])
    assert variants[1] == "Merge-all-Layers" and variants[3] == variants[4] == "50% SingleInputKV + 4× AcrossKV"


def test_an_answer_stands_below_the_baseline_s_with_the_gain_in_time_to_its_first_token(tmp_path):
    result = {
        "question": "What is " + "very " * 200 + "long?", "prompt_tokens": 210, "text": "This.", "tokens": 2,
        "baseline_text": "", "baseline_tokens": 1, "samples_ms": [100.0, 110.0, 90.0],
        "baseline_samples_ms": [200.0, 220.0, 180.0], "samples_seconds": [0.5, 0.6, 0.7],
        "baseline_samples_seconds": [0.3, 0.3, 0.3],
    }  # fmt: skip
    shown = entry("answer", {"p": {"input_tokens": 512, "output_tokens": 64}}, [CASES[2], CASES[3]])
    table = make(tmp_path, shown, [record("answer", "p", "swiftkv-50", "auto", result)])
    frame = table.panels[0].frame
    assert list(frame[""]) == ["Baseline", "50% SingleInputKV", "50% SingleInputKV + 4× AcrossKV"]
    assert list(frame["Answer"])[:2] == ["(empty)", "This."] and frame["Answer"][2].startswith("n/a [")
    assert list(frame["First token,\nms"])[:2] == ["200", "100"] and frame["Last token,\ns"][1] == "0.600"
    assert frame["First token,\nspeed-up"][1].startswith("2.00× ± 0.00") and frame["First token,\nspeed-up"][0] == "–"
    asked = table.panels[0].caption
    assert asked.startswith("What is very very") and "[...]" in asked and asked.endswith("long?")
    lines = {row["variant"]: row for row in rows(table)}
    assert lines["swiftkv-50"]["first_token_speedup"] == "2.0" and lines["baseline"]["first_token_speedup"] == ""


def decode(*medians):
    times = {"median": list(medians), "min": [0.9 * x for x in medians], "max": [1.2 * x for x in medians]}
    return {"batch_sizes": [1, 64], "tpot_ms": times, "samples_ms": [list(medians)]}


def test_decoding_times_and_what_their_spread_allows(tmp_path):
    points = {"p": {"input_tokens": 1000, "batch_sizes": [1, 8, 64]}}
    records = [
        record("decode", "p", "baseline", "auto", decode(8.0, 20.0), engine={"compilation": "compiled, CUDA graphs"}),
        record("decode", "p", "swiftkv-50", "auto", decode(8.0, 25.0), engine={"compilation": "compiled, CUDA graphs"}),
    ]
    table = make(tmp_path, entry("decode", points, [CASES[0], CASES[2], CASES[3]]), records)
    times, ratios = (panel.frame for panel in table.panels)
    assert list(times.columns) == ["Variant", "Mode", "1", "8", "64"]
    assert list(times.iloc[0]) == ["Baseline", "compiled, CUDA graphs", "8.00", "n/a [1]", "20.0"]
    assert list(times.iloc[2])[1:] == ["n/a", "n/a [2]", "n/a [2]", "n/a [2]"]
    assert ratios.iloc[0]["64"] == "1.25× (0.94 to 1.67)" and ratios.iloc[0]["8"] == "n/a"
    assert "[1] not measured at this batch size" in table.notes and "[2] not measured" in table.notes
    found = {(row["variant"], row["batch_size"]): row for row in rows(table)}
    one = found["swiftkv-50", "64"]
    assert (float(one["tpot_ms"]), float(one["tpot_ms_max"])) == (25, 30)
    assert float(one["tpot_ratio_min"]) == pytest.approx(22.5 / 24)
    assert found["swiftkv-50", "8"]["tpot_ms"] == "" and one["mode"] == "compiled, CUDA graphs"


def test_decoding_in_turns_has_the_scatter_of_the_turns(tmp_path):
    # 8.8 / 8 and 9.9 / 9.9; the second batch was 1.25 and 1.15 times as slow
    turns = {"samples_ms": [[8.8, 9.9], [25.0, 23.0]], "baseline_samples_ms": [[8.0, 9.9], [20.0, 20.0]]}
    records = [
        record("decode", "p", "baseline", "auto", decode(8.0, 20.0)),
        record("decode", "p", "swiftkv-50", "auto", decode(9.35, 24.0) | turns),
    ]
    points = {"p": {"input_tokens": 1000, "batch_sizes": [1, 64]}}
    table = make(tmp_path, entry("decode", points, [CASES[0], CASES[2]]), records)
    ratios = table.panels[1].frame
    assert (ratios.iloc[0]["1"], ratios.iloc[0]["64"]) == ("1.05× ± 0.32", "1.20× ± 0.32")
    line = next(row for row in rows(table) if row["variant"] == "swiftkv-50" and row["batch_size"] == "64")
    assert float(line["tpot_ratio_stderr"]) == pytest.approx(0.32, abs=0.003) and float(line["tpot_ratio_max"]) == 1.25


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"hardware": CPU}, "hardware.*Intel Xeon Processor, 2 cores"),
        ({"engine": {"vllm": "0.26.0"}}, "vLLM version.*0.26.0"),
        ({"engine": {"compilation": "compiled"}}, "compilation"),
        ({"settings": {"max_num_batched_tokens": 64}}, "chunk"),
        ({"settings": {"max_num_seqs": 1024}}, "most sequences"),
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
    with pytest.raises(UserError, match=f"paper's Figure 0 would compare records that differ in {what}") as error:
        make(tmp_path, entry("throughput_table", MEMORY, CASES, head="memory"), records)
    assert "large/llama-3.1-8b/baseline/auto" in str(error.value) and "swiftkv-50" in str(error.value)
    assert "\n" not in str(error.value)


def test_threads_are_a_condition_on_a_processor_alone():
    def records(hardware):
        return [Record.of(record("throughput", "p", "baseline", "auto", speed(1), hardware=hardware,
                                 settings={"threads": threads})) for threads in (1, 2)]  # fmt: skip

    check_comparable(records(H100), "Table 5")
    with pytest.raises(UserError, match="differ in processor threads: .* has 1, .* has 2"):
        check_comparable(records(CPU), "Table 5")


def test_what_an_engine_did_not_report_is_no_difference():
    one = record("throughput", "p", "baseline", "auto", speed(1))
    two = record("throughput", "p", "swiftkv-50", engine={"vllm": None, "compilation": None})
    check_comparable([Record.of(one), Record.of(two)], "Table 5")


def shown(tmp_path, records, **more):
    """A `Serving` of records at one point."""
    models = tuple(dict.fromkeys(record["model"]["name"] for record in records))
    shown = entry("throughput", {"p": {"input_tokens": 2000}}, CASES, models, **more)
    return Serving(shown, read_records(shown, saved(tmp_path, records), "throughput"))


def test_titles_name_models_machines_and_engines(tmp_path):
    plain = record("throughput", "p", "baseline", "auto", speed(1))
    dummy = record("throughput", "p", "baseline", hardware=CPU, weights="dummy", settings={"quantization": "fp8"})
    assert Record.of(plain).conditions() == "1 × NVIDIA H100 80GB HBM3, vLLM 0.32.0, eager"
    assert Record.of(dummy).conditions() == "Intel Xeon Processor, 2 cores, vLLM 0.32.0, eager, dummy FP8 weights"
    parallel = record("throughput", "p", "baseline", settings={"tensor_parallel_size": 4})
    assert Record.of(parallel).machine.startswith("4 × ")
    other = record("throughput", "p", "baseline", "auto", speed(1), model="big", settings={"tensor_parallel_size": 4})
    both = shown(tmp_path, [plain, other])
    assert both.heading == (
        "Llama-3.1-8B-Instruct (1 × NVIDIA H100 80GB HBM3) and Big (4 × NVIDIA H100 80GB HBM3), vLLM 0.32.0, eager: "
        "what is shown (paper's Figure 0)"
    )
    above, panels = both.captions()
    assert above == ["What is shown (paper's Figure 0)", "vLLM 0.32.0, eager"]
    assert panels["big"] == ["Big", "4 × NVIDIA H100 80GB HBM3"]


def test_labels_come_from_specs_and_settings_not_from_names(tmp_path):
    renamed = record("throughput", "p", "swiftkv-50", "auto", speed(1), settings={"merge_all_layers": True})
    assert variant_of(Record.of(renamed)) == "Merge-all-Layers"
    reference = record("throughput", "p", "swiftkv-50", "auto", speed(1), engine={"plugin": "other-plugin 0.1"})
    assert variant_of(Record.of(reference)) == "50% SingleInputKV, other-plugin 0.1"
    serving = shown(tmp_path, [record("throughput", "p", "baseline", "auto", speed(1))])
    assert serving.label(Case("swiftkv-50-across4", "fp8")) == "50% SingleInputKV + 4× AcrossKV (FP8 KV)"
    assert serving.label(Case("swiftkv-50-across4", "fp8"), kv_format=False) == "50% SingleInputKV + 4× AcrossKV"
    serving.entry["cases"].append(["swiftkv-50-longer", "auto"])
    serving.entry["specs"]["llama-3.1-8b"]["swiftkv-50-longer"] = serving.entry["specs"]["llama-3.1-8b"]["swiftkv-50"]
    assert serving.label(Case("swiftkv-50-longer")) == "50% SingleInputKV (swiftkv-50-longer)"
    assert serving.label(Case("swiftkv-50")) == "50% SingleInputKV (swiftkv-50)"


def test_lengths_are_written_as_in_the_paper():
    assert [length_label(tokens) for tokens in (512, 2000, 4096, 16000, 128000, 131072)] == [
        "512", "2K", "4K", "16K", "128K", "128K",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda made: made.pop("weights"), "1.json is not a measurement file: it has no weights"),
        (lambda made: made.pop("engine"), "1.json is not a measurement file: it has no engine"),
        (lambda made: made.update(measure="latency"), "1.json is a latency record"),
        (lambda made: made.update(result=None), "1.json has status 'ok' and no result"),
        (lambda made: made, "1.json is a second measurement of llama-3.1-8b baseline auto p"),
    ],
)
def test_a_file_of_another_kind_or_of_a_cell_that_has_one_is_named(tmp_path, change, sentence):
    records = [record("throughput", "p", "baseline", "auto", speed(1)) for _ in range(2)]
    change(records[1])
    with pytest.raises(UserError, match=sentence):
        read_records({}, saved(tmp_path, records), "throughput")
