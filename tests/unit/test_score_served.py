"""What vLLM may score in place of transformers, and what is refused before it starts."""

import pytest
from score_helpers import SHAPE, write_source
from score_tasks import TASKS

from pipeline.config.catalogue import output_type
from pipeline.score.run import measure_scores
from pipeline.score.served import check_task, repetition_penalty
from swiftkv.errors import UserError

GSM8K = TASKS["gsm8k"]


def test_output_types_are_lm_evals():
    assert output_type("mmlu_cot_llama") == output_type("gsm8k_cot") == "generate_until"
    assert output_type("winogrande") == output_type("mmlu") == "multiple_choice"


@pytest.mark.parametrize("settings", [{"do_sample": True, "temperature": 0.5}, {"temperature": 0.5}])
def test_a_task_that_samples_is_refused(settings):
    check_task("t", {"do_sample": False, "temperature": 0.5, "until": []})
    with pytest.raises(UserError, match="samples"):
        check_task("t", settings)


def test_the_repetition_penalty_of_a_checkpoint_is_kept(tmp_path):
    assert repetition_penalty(tmp_path) == 1.0
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2], "repetition_penalty": 1.05}')
    assert repetition_penalty(tmp_path) == 1.05


def test_scoring_with_vllm_says_what_it_lacks(tiny_teacher, tmp_path):
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    # Asked first, while no other model holds the memory.
    tasks = {"transformers": GSM8K, "vllm": GSM8K | {"engine": {"gpus": 0}}}
    outputs = [tmp_path / f"{name}.json" for name in tasks]
    with pytest.raises(UserError, match="needs --engine-log"):
        measure_scores(source, None, "baseline", None, "auto", tasks, 0, outputs)
    assert not any(output.exists() for output in outputs)
