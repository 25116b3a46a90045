"""A score computed in shards is the score that one job computes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from score_helpers import SHAPE, write_source
from score_tasks import TASKS

from pipeline.score.run import measure_scores
from pipeline.score.shards import merge_scores
from swiftkv.errors import UserError
from swiftkv.io import read_json


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


def test_shards_of_generated_answers_over_subjects_are_one_score(source, tmp_path):
    task = TASKS["mmlu"] | {"limit": 3, "max_gen_toks": 2}
    merge_scores(divide(source, task, tmp_path, 2), tmp_path / "merged.json")
    whole = score(source, task, tmp_path / "whole.json")
    assert without_origin(read_json(tmp_path / "merged.json")) == without_origin(whole)
    assert whole["settings"]["tasks"] > 2  # more subjects than any shard has


def copies(parts: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copy(path, folder)) for path in parts]


def change(path: Path, section: str, **values) -> None:
    record = read_json(path)
    record[section] |= values
    path.write_text(json.dumps(record))


def test_the_largest_key_and_the_time_are_those_of_all_shards(parts, tmp_path):
    made = copies(parts, tmp_path)
    for path, number in zip(made, (3, 9, 2), strict=True):
        change(path, "result", fp8_keys={"largest": number})
        change(path, "provenance", finished=f"2026-01-0{number}", wall_seconds=number)
    merge_scores(made, tmp_path / "merged.json")
    merged = read_json(tmp_path / "merged.json")
    assert merged["result"]["fp8_keys"] == {"largest": 9}
    assert (merged["provenance"]["finished"], merged["provenance"]["wall_seconds"]) == ("2026-01-09", 14)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda paths: paths[1].unlink(), "2-of-3.json does not exist"),
        (lambda paths: paths.pop(), "do not have each question of the score once"),
        (lambda paths: paths.append(paths[0]), "do not have each question"),
    ],
)
def test_shards_that_are_not_one_score_are_not_merged(parts, tmp_path, edit, sentence):
    made = copies(parts, tmp_path)
    edit(made)
    with pytest.raises(UserError, match=sentence):
        merge_scores(made, tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()
