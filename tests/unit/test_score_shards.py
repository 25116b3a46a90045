"""A score computed in shards is the score that one job computes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from score_helpers import SHAPE, write_source
from score_tasks import TASKS

from pipeline.score.run import measure_scores
from pipeline.score.shards import EXAMPLES, merge_scores
from swiftkv.errors import UserError
from swiftkv.io import read_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    from tests.conftest import tiny_teacher

    return write_source(tiny_teacher(**SHAPE), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def winogrande(tmp_path_factory) -> dict:
    """A task whose examples are drawn at random, one question after the other."""
    folder = tmp_path_factory.mktemp("winogrande")
    for split, rows in (("train", 30), ("validation", 11)):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt") as file:
            for number in range(rows):
                row = {"sentence": f"{split} {number}: Ann met Bea and _ smiled", "option1": "Ann", "option2": "Bea"}
                file.write(json.dumps(row | {"answer": str(1 + number % 2)}) + "\n")
    splits = {split: f"{split}.jsonl.gz" for split in ("train", "validation")}
    return TASKS["winogrande"] | {"source": {"local": str(folder), "splits": splits}, "shots": 3, "limit": 10}


def score(source: Path, task: dict, output: Path, shard=(1, 1)) -> dict:
    measure_scores(source, None, "v", None, "auto", {"t": task}, seed=3, outputs=[output], shard=shard)
    return read_json(output)


def divide(source: Path, task: dict, folder: Path, shards: int) -> list[Path]:
    paths = [folder / f"{number}-of-{shards}.json" for number in range(1, shards + 1)]
    for number, path in enumerate(paths, start=1):
        score(source, task, path, (number, shards))
    return paths


@pytest.fixture(scope="module")
def parts(source, winogrande, tmp_path_factory) -> list[Path]:
    return divide(source, winogrande, tmp_path_factory.mktemp("parts"), 3)


def without_origin(record: dict) -> dict:
    return {key: value for key, value in record.items() if key != "provenance"}


def test_three_shards_are_one_score_with_random_examples(source, winogrande, parts, tmp_path):
    whole = score(source, winogrande, tmp_path / "whole.json")
    assert whole["settings"]["fewshot"] == "random from split 'train', a draw a question"
    merge_scores(parts, tmp_path / "merged.json")
    merged = read_json(tmp_path / "merged.json")
    example = merged["settings"].pop("response_example"), whole["settings"].pop("response_example")
    assert without_origin(merged) == without_origin(whole)
    assert example[0] == pytest.approx(example[1], rel=1e-2)  # a log-likelihood, of another batch
    assert 0 < whole["result"]["value"] < 1 and whole["result"]["n"] == 10
    asked = [read_json(path)["result"] for path in parts]
    assert [len(result["questions"]["values"]) for result in asked] == [4, 3, 3]
    seconds = [read_json(path)["provenance"]["wall_seconds"] for path in parts]
    assert merged["provenance"]["wall_seconds"] == pytest.approx(sum(seconds), abs=1e-3)
    assert [origin["wall_seconds"] for origin in merged["provenance"]["shards"]] == seconds


def test_shards_of_generated_answers_over_subjects_are_one_score(source, tmp_path):
    task = TASKS["mmlu"] | {"limit": 3, "max_gen_toks": 2}
    merge_scores(divide(source, task, tmp_path, 2), tmp_path / "merged.json")
    whole = score(source, task, tmp_path / "whole.json")
    assert without_origin(read_json(tmp_path / "merged.json")) == without_origin(whole)
    assert whole["settings"]["tasks"] > 2  # more subjects than any shard has


def test_the_largest_key_is_that_of_all_shards(parts, tmp_path):
    copies = [tmp_path / path.name for path in parts]
    for path, copy, largest in zip(parts, copies, (3.0, 9.0, 2.0), strict=True):
        record = read_json(path)
        record["result"]["fp8_keys"] = {"bound": 32.0, "largest": largest}
        copy.write_text(json.dumps(record))
    merge_scores(copies, tmp_path / "merged.json")
    assert read_json(tmp_path / "merged.json")["result"]["fp8_keys"] == {"bound": 32.0, "largest": 9.0}


def test_more_shards_than_questions_are_refused(source, winogrande, tmp_path):
    with pytest.raises(UserError, match="10 questions, too few for 11 shards"):
        score(source, winogrande, tmp_path / "x.json", (1, 11))


def test_an_unavailable_source_is_unavailable_in_shards_too(source, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/source.json").write_text('{"status": "unavailable", "reason": "silence"}')
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for number, path in enumerate(paths, start=1):
        tasks = {"t": TASKS["winogrande"] | {"source": {"hub": "a/b", "optional": True}}}
        measure_scores(source, None, "v", None, "auto", tasks, 3, [path], fetched=[tmp_path / "t"], shard=(number, 2))
    merge_scores(paths, tmp_path / "merged.json")
    assert read_json(tmp_path / "merged.json")["reason"] == "silence"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda paths: paths[1].unlink(), "2-of-3.json does not exist"),
        (
            lambda paths: paths.pop(),
            "1-of-3.json, 2-of-3.json in .* not all the shards .* each of its 10 questions once",
        ),
        (lambda paths: paths.append(paths[0]), "not all the shards"),
    ],
)
def test_missing_shards_are_one_sentence(parts, tmp_path, change, sentence):
    copies = [tmp_path / path.name for path in parts]
    for path, copy in zip(parts, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    change(copies)
    with pytest.raises(UserError, match=sentence):
        merge_scores(copies, tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()


def test_shards_scored_otherwise_are_not_merged(parts, tmp_path):
    record = read_json(parts[1])
    record["settings"]["batch_size"] = 99
    (tmp_path / "2-of-3.json").write_text(json.dumps(record))
    assert "batch_size" not in EXAMPLES
    with pytest.raises(UserError, match="2-of-3.json was not scored like .*settings.batch_size differs"):
        merge_scores([parts[0], tmp_path / "2-of-3.json", parts[2]], tmp_path / "merged.json")
