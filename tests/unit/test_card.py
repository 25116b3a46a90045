"""The model card, of a checkpoint of the shipped reference run."""

import json

import yaml
from tests.programs import ROOT

from pipeline.card import write_card

REFERENCE = ROOT / "resources/reference/local"
VARIANT = "smollm2-135m/swiftkv-50-across4"


def test_metadata_and_numbers(tmp_path):
    source = json.loads((REFERENCE / f"training/{VARIANT}.json").read_text())["model"]
    (tmp_path / "source.json").write_text(json.dumps(source | {"kind": "hub", "id": "org/base"}))
    fidelity = REFERENCE / f"fidelity/{VARIANT}/auto.json"
    write_card(tmp_path / "source.json", REFERENCE / f"training/{VARIANT}.json", fidelity, tmp_path / "card.md")
    _, head, text = (tmp_path / "card.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["base_model"], metadata["library_name"]) == ("org/base", "transformers")
    kl = json.loads(fidelity.read_text())["result"]["kl"]["value"]
    row = next(line for line in text.splitlines() if line.startswith("| KL"))
    low, high = (float(word.strip("[],|")) for word in row.split()[-3:-1])
    assert f"{kl:.4g}" in row and low < kl < high and "loss `distillation` at temperature 2 |" in text
    assert "layers 14 to 29" in text.replace("\n", " ") and "4 neighboring ones share" in text


def test_what_was_not_measured_or_is_of_this_machine_is_left_out(tmp_path):
    files = [f"training/{VARIANT}.json", f"fidelity/{VARIANT}/auto.json"]
    training, fidelity = (json.loads((REFERENCE / file).read_text()) for file in files)
    source = training["model"] | {"kind": "local", "id": "/home/me/mine", "revision": None}
    training["settings"]["loss"] = "lm"
    fidelity["result"] = {key: fidelity["result"][key] for key in ("answer_kl", "documents")}  # of own_key_values
    for place, record in enumerate((source, training, fidelity)):
        (tmp_path / f"{place}.json").write_text(json.dumps(record))
    write_card(*(tmp_path / f"{place}.json" for place in range(3)), tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == [" base model ", " mine "] and rows[-1][0] == " KL to the base model on answers, nats a token "
    assert "/home" not in text and "temperature" not in text and len(rows) == 5
