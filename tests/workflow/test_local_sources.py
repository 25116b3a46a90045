"""What lies on this machine is looked at by every plan: changed files run again what is made of them, missing ones are named."""

import json
import os
import re

import pytest
import torch
import yaml
from safetensors.torch import save_file
from tests.programs import ROOT, SNAKEMAKE, run, snakemake

TARGETS = ["results/models/mine/source.json", "results/data/heldout.jsonl"]


@pytest.fixture
def start(tmp_path):
    """Snakemake in a folder of its own whose path has a space, with a model and a data mix that lie there."""
    folder = tmp_path / "my folder"
    (folder / "model").mkdir(parents=True)
    (folder / "model/config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}))
    (folder / "model/tokenizer.json").write_text("{}")
    (folder / "model/chat_template.jinja").write_text("{{ messages }}")
    save_file({"weight": torch.ones(64, 64)}, folder / "model/model.safetensors")
    (folder / "chats.jsonl").write_text("".join(f'{{"q": "{number}", "a": "b"}}\n' for number in range(2000)))
    mix = {"sources": [{"name": "c", "local": "chats.jsonl", "user": "{{ q }}", "assistant": "{{ a }}"}]}
    override = {
        "pathvars": {"results": "results", "logs": "results/logs", "benchmarks": "results/benchmarks"},
        "models": {
            "mine": {
                "title": "Mine", "source": {"local": "model"}, "num_hidden_layers": 8, "num_key_value_layers": {"50": 4},
                "zero_stage": 2, "nodes": {"distill": 1}, "gpus": {"distill": 0, "score": 0, "serve": 0},
            }
        },
        "data": {"ultrachat": mix},
        "heldout": {"data": "ultrachat"},
    }  # fmt: skip
    (folder / "override.yaml").write_text(yaml.safe_dump(override))

    def start(*arguments):
        words = ["--snakefile", ROOT / "Snakefile", "--configfile", "override.yaml", "--cores", "2"]
        words += ["--rerun-triggers", "params", "input", "mtime", *arguments, "--", *TARGETS]
        return snakemake(*words, cwd=folder) if "--dry-run" in arguments else run(SNAKEMAKE, *words, cwd=folder)

    start.folder = folder
    return start


def test_changed_files_run_again_what_is_made_of_them(start):
    first = start()
    assert first.returncode == 0, first.stdout + first.stderr
    weights = start.folder / "model/model.safetensors"
    before = weights.stat()
    save_file({"weight": torch.zeros(64, 64)}, weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))  # as a copy that keeps the older file's time
    planned = start("--dry-run")
    assert planned.returncode == 0 and "Params have changed" in planned.stdout
    assert set(re.findall(r"^rule (\w+):", planned.stdout, re.MULTILINE)) == {"resolve_model"}
    (start.folder / "model").rename(start.folder / "elsewhere")
    missing = start("--dry-run")
    assert missing.returncode == 1 and "Traceback" not in missing.stderr
    assert "error: config, at models.mine.source: 'model' does not exist; check `local`\n" in missing.stderr
