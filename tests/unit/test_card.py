"""The model card, of a checkpoint of the shipped reference run."""

import itertools
import re

import pytest
import yaml
from tests.programs import ROOT

from pipeline.card import write_card
from swiftkv.io import read_json, write_json

REFERENCE = ROOT / "resources/reference/local"
VARIANT = "smollm2-135m/swiftkv-50-across4"
FIDELITY = REFERENCE / f"fidelity/{VARIANT}/auto.json"


@pytest.fixture
def card(tmp_path):
    """Write the card of a changed training record: its metadata and its text."""

    def written(fidelity=FIDELITY, **changes):
        training = read_json(REFERENCE / f"training/{VARIANT}.json")
        for name, change in changes.items():
            training[name] = change and training[name] | change
        write_json(tmp_path / "training.json", training)
        write_card(tmp_path / "training.json", tmp_path / "README.md", fidelity)
        _, head, text = (tmp_path / "README.md").read_text().split("---\n", 2)
        return yaml.safe_load(head), text

    return written


def first_cells(text):
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]


def test_metadata_and_numbers(card):
    metadata, text = card(model={"kind": "hub", "id": "org/base", "resolved": "c0ffee"})
    assert (metadata["base_model"], metadata["library_name"]) == ("org/base", "transformers")
    kl = read_json(FIDELITY)["result"]["kl"]["value"]
    row = next(line for line in text.splitlines() if line.startswith("| KL"))
    low, high = (float(word.strip("[],|")) for word in row.split()[-3:-1])
    assert f"{kl:.4g}" in row and low < kl < high and "loss `distillation` at temperature 2 |" in text
    assert "\npython -m swiftkv.attach org/base FOLDER OUTPUT --revision c0ffee\n" in text
    assert "layers 14 to 29" in text.replace("\n", " ") and "4 neighboring ones share" in text


def test_what_was_not_measured_or_is_of_this_machine_is_left_out(card, tmp_path):
    fidelity = read_json(FIDELITY)
    fidelity["result"] = {key: fidelity["result"][key] for key in ("answer_kl", "documents")}  # of own_key_values
    write_json(tmp_path / "fidelity.json", fidelity)
    local = {"kind": "local", "id": "/home/me/mine", "revision": None}
    _, text = card(tmp_path / "fidelity.json", model=local, settings={"loss": "lm"})
    measured = "KL to the base model on answers, nats a token"
    assert first_cells(text) == ["base model", "trained", "training", measured]
    assert (
        "swiftkv.attach BASE FOLDER" in text
        and "| base model | mine |" in text
        and "/home" not in text
        and "temperature" not in text
    )


def test_a_model_that_was_trained_as_it_is_has_nothing_of_swiftkv(card):
    """Nor has a card closeness that was not measured."""
    metadata, text = card(fidelity=None, spec=None)
    assert "held-out" not in text
    assert "tags" not in metadata and "swiftkv." not in text and first_cells(text) == ["base model", "training"]


def test_nobody_is_told_to_install_swiftkv_from_a_package_index():
    """This project is published on none, so that a package of its name there would be another's."""
    for folder, suffix in itertools.product(("src", "workflow", "docs", "envs", "."), (".md", ".py", ".smk", ".txt")):
        for file in (ROOT / folder).glob(f"*{suffix}" if folder == "." else f"**/*{suffix}"):
            for words in re.findall(r"pip3? install ([^`\n;&]*)", file.read_text()):
                assert not re.search(r"(?<![\w/.-])swiftkv(?![\w/-])", words), file
