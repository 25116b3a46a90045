"""What the scoring tests share: a tiny checkpoint on disk, and tasks of the
configuration with the local scale's packaged questions, four of each."""

import json

import datasets
from tests.conftest import byte_tokenizer
from tests.programs import ROOT, read_yaml, write_lines

from pipeline.config import load
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

SHAPE = {"vocab_size": 320, "max_position_embeddings": 16384}
SPEC = SwiftKVSpec(6, 3, 2)


def write_source(model, folder):
    """Save a base checkpoint with tokenizer and the source.json that names it; returns the latter's path."""
    model.save_pretrained(folder / "checkpoint")
    byte_tokenizer().save_pretrained(folder / "checkpoint")
    source = {"name": "tiny", "title": "Tiny", "path": str(folder / "checkpoint"), "resolved": "random weights"}
    source |= {"num_hidden_layers": model.config.num_hidden_layers, "config": model.config.to_dict()}
    path = folder / "source.json"
    path.write_text(json.dumps(source, default=str))
    return path


def write_chats(path, number=6, before=()):
    chats = [
        {
            "id": f"chat/{index}",
            "source": "chat",
            "messages": [
                *before,
                {"role": "user", "content": f"What is {index} and {index}?"},
                {"role": "assistant", "content": f"It is {2 * index}" + "." * index},
            ],
        }
        for index in range(number)
    ]
    write_lines(path, chats)
    return path


def scored(source, tasks, **changes):
    """Score the model of a source on tasks; their records."""
    from pipeline.quality.scores import measure_scores  # which takes seconds

    outputs = [source.parent / f"{name}.json" for name in tasks]
    arguments = {"checkpoint": None, "variant": "v", "spec": None, "kv_cache": "auto", "seed": 3} | changes
    measure_scores(source, **arguments, tasks=tasks, outputs=outputs)
    return [read_json(output) for output in outputs]


def winogrande(name, rows):
    """Questions about someone of this name."""
    sentences = [f"{name} met Bea and _ smiled {number}" for number in range(rows)]
    columns = {"sentence": sentences, "option1": [name] * rows, "option2": ["Bea"] * rows}
    return datasets.Dataset.from_dict(columns | {"answer": ["1", "2", "1"] * (rows // 3)})


def arrow_file(folder):
    winogrande("Ann", 9).save_to_disk(folder / "table")
    return next((folder / "table").glob("*.arrow"))


PAPER, LOCAL = load()["tasks"], read_yaml(ROOT / "profiles/local/override.yaml")["tasks"]


def entry(name, **changes):
    return PAPER[name] | LOCAL.get(name, {}) | {"limit": 4, "batch_size": 4} | changes


def entries(**changes):
    return {name.replace("_", "-"): entry(name.replace("_", "-"), **more) for name, more in changes.items()}


SHORT = {"max_gen_toks": 3}
TASKS = entries(
    arc_challenge=SHORT | {key: PAPER["arc-challenge"][key] for key in ("task", "filter")},
    winogrande={},
    hellaswag={"shots": 2},
    mmlu=SHORT | {"shots": 1},
    mmlu_cot=SHORT,
    gsm8k=SHORT | {"shots": 1},
)
MMLU = TASKS["mmlu"]["source"]
COMPLETIONS = entries(
    arc_challenge_completion={"source": TASKS["arc-challenge"]["source"]},
    mmlu_completion={"source": MMLU},
    mmlu_cot_completion={"source": MMLU | {"splits": {"validation": MMLU["splits"]["dev"]}}},
    gsm8k_completion={"source": TASKS["gsm8k"]["source"]},
)
PANEL = entries(
    arc_easy={}, hellaswag_completion={}, lambada={}, mmlu_continuation={}, gsm8k_bits={}, mbpp_bits={},
    arc_easy_bits={}, arc_challenge_bits={}, hellaswag_bits={}, mmlu_bits={}, humaneval_bits={},
)  # fmt: skip
TRUTHFULQA = entry("truthfulqa")
# Questions of the published splits; ARC without those that have not four answers.
TOTALS = {
    "arc-challenge": 295,
    "winogrande": 1267,
    "hellaswag": 10042,
    "mmlu": 14042,
    "mmlu-cot": 14042,
    "gsm8k": 1319,
}
