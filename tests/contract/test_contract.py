"""A change of vLLM that the project relies on is found in its sources."""

import pytest
from tests.contract.check import breaches, findings, installed, users
from tests.contract.facts import FACTS

# File below vllm/: what is written otherwise there, and what the sentence must name beside it: the module of this project
# where it is noticed, or vLLM's function.
PLANTED = {
    "model_executor/layers/attention/attention.py": (
        "        kv_sharing_target_layer_name: str | None",
        "        kv_sharing_target: str | None",
        "Attention.__init__",
    ),
    "v1/attention/backends/utils.py": (
        "    num_logits_indices: int | None = None\n\n\ndef",
        "    logits_count: int | None = None\n\n\ndef",
        "serve/model.py",
    ),
    "model_executor/models/qwen3.py": ("class Qwen3DecoderLayer(", "class Qwen3Layer(", "Qwen3DecoderLayer.__init__"),
    "benchmarks/serve.py": ("    burstiness: float,", "    shape: float,", "measure/client.py"),
}


def changed(sources, to, changes):
    """vLLM's sources, file by file linked but for those that are written otherwise."""
    for file in (sources / "vllm").rglob("*.py"):
        linked = to / file.relative_to(sources)
        linked.parent.mkdir(parents=True, exist_ok=True)
        linked.symlink_to(file)
    for name, (old, new) in changes.items():
        file = to / "vllm" / name
        text = file.read_text()
        assert text.count(old) == 1, name
        file.unlink()
        file.write_text(text.replace(old, new))
    return to


@pytest.fixture(scope="module")
def tested():
    return findings(installed()[0])


def test_the_installed_release_keeps_every_fact_and_the_plugin_is_clean(tested):
    assert {"src/swiftkv/serve/model.py", "workflow/pipeline/measure/client.py"} < set(users())
    assert [sentence for sentence in tested.values() if "/serve/" in sentence] == []
    sources, version = installed()
    assert [fact for fact in FACTS if fact.applies(version) and not fact.holds(sources)] == []


def test_every_planted_change_is_found(tested, tmp_path):
    sources, version = installed()
    planted = changed(sources, tmp_path, {name: change[:2] for name, change in PLANTED.items()})
    found = breaches(planted, version, tested)
    words = {name: old.split("(")[0].split(":")[0].split()[-1] for name, (old, *_) in PLANTED.items()}
    for name, (*_, module) in PLANTED.items():
        assert any(module in sentence and words[name] in sentence for sentence in found), (name, found)
