"""What vLLM may score in place of transformers, and what is refused before it starts."""

import json

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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"do_sample": True, "temperature": 0.5}, "samples"),
        ({"temperature": 0.5}, "samples"),
        ({"do_sample": False, "num_beams": 4}, "num_beams"),
        ({"max_gen_toks": 2048}, "2048 tokens of a model that has 2048 positions"),
    ],
)
def test_a_task_that_vllm_would_answer_otherwise_is_refused(settings, sentence):
    check_task("t", {"do_sample": False, "temperature": 0.5, "until": []}, 2048)
    with pytest.raises(UserError, match=sentence):
        check_task("t", settings, 2048)


def test_generation_settings_of_a_checkpoint_are_kept_or_refused(tmp_path):
    assert repetition_penalty(tmp_path) == 1.0
    file = tmp_path / "generation_config.json"
    file.write_text(
        json.dumps({"eos_token_id": [1, 2], "repetition_penalty": 1.05, "top_k": 20, "num_beam_groups": None})
    )
    assert repetition_penalty(tmp_path) == 1.05
    file.write_text(json.dumps({"no_repeat_ngram_size": 3}))
    with pytest.raises(UserError, match="sets no_repeat_ngram_size"):
        repetition_penalty(tmp_path)


def test_scoring_with_vllm_says_what_it_lacks(tiny_teacher, tmp_path):
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    # Asked first, while no other model holds the memory.
    tasks = {"transformers": GSM8K, "vllm": GSM8K | {"engine": {"gpus": 0}}}
    outputs = [tmp_path / f"{name}.json" for name in tasks]
    with pytest.raises(UserError, match="needs --engine-log"):
        measure_scores(source, None, "baseline", None, "auto", tasks, 0, outputs)
    assert not any(output.exists() for output in outputs)
