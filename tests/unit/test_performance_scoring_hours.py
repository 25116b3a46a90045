"""The estimate of docs/scoring.md is the program's, and is of the FLOPs it says."""

from pathlib import Path

import pytest
import yaml

from performance.scoring_hours import ROOT, gpu_hours, scored_by_vllm, table
from swiftkv.cost import Architecture, parameter_count, request_flops
from swiftkv.records import read_json


@pytest.fixture(scope="module")
def config():
    return {
        key: section
        for name in ("config.yaml", "artifacts.yaml")
        for key, section in yaml.safe_load((ROOT / name).read_text()).items()
    }


def test_the_documentation_has_this_table(config):
    assert "\n".join(table(config)) in Path(ROOT / "docs/scoring.md").read_text()


def test_only_what_vllm_would_score_is_counted(config):
    found = scored_by_vllm(config)
    assert len(found) == len(set(found)) and ("llama-3.1-8b", "swiftkv-50", "gsm8k") in found
    assert not [case for case in found if case[2] in ("winogrande", "mmlu-completion") or case[1] == "swiftkv-50-mqa"]


def test_hours_are_those_of_the_flops_and_of_reading_the_weights(config):
    source = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
    flops = 1319 * sum(request_flops(Architecture.from_config(source), None, 1250, 150).values())
    gpu = config["planning"]["gpu"]
    peak, share, bandwidth = 1e12 * gpu["tflops"]["value"], gpu["forward"]["value"], 1e9 * gpu["memory_gb"]["value"]
    read = 2 * parameter_count(source) / bandwidth
    hours = gpu_hours(config, "llama-3.1-8b", "baseline", "gsm8k")
    compute = flops / (peak * share)
    assert hours["transformers"] == pytest.approx((compute + 83 * 300 * read) / 3600)
    assert hours["vllm"] == pytest.approx((compute + 773 * read) / 3600)
    student = gpu_hours(config, "llama-3.1-8b", "swiftkv-50", "gsm8k")
    assert student["transformers"] == hours["transformers"] and 0.5 < student["vllm"] / hours["vllm"] < 0.7
