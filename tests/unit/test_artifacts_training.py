"""What training costs, and speed beside the quality of the same checkpoint."""

import pytest
from artifact_helpers import LLAMA, PAPER, closeness, made, resolved, saved, score, throughput, training

from pipeline.artifacts.table import to_markdown
from swiftkv.errors import UserError


def test_published_costs_of_the_papers_model_all_stand_and_all_machines_are_named(tmp_path):
    """The GPUs are a mean, so that hours x GPUs are GPU-hours; the names are those of all attempts, not of the last."""
    more = {"gpus": 4.8, "accelerator": "NVIDIA A100/NVIDIA H100"}
    entry = resolved("training", "training_cost", models=["small"], variants=["swiftkv-25", "swiftkv-50"])
    published = [PAPER / "values.csv"]
    table = made(entry, training=saved(tmp_path, [training(LLAMA, "swiftkv-50", **more)]), published=published)
    assert table.panels[0].frame.set_index("Variant").loc["swiftkv-50", "Hardware"] == "4.8 × NVIDIA A100/NVIDIA H100"
    stated = table.panels[1].frame
    tokens = [cell.split(" [")[0] for cell in stated[stated["What"] == "training tokens"]["Value"]]
    assert sorted(tokens) == ["160M", "320M", "680M"] and set(stated["Model"]) == {LLAMA}
    assert stated["Source"].str.contains("blog").any() and stated["Source"].str.contains("Sec. 3.4").any()
    values = table.values.set_index("variant")["tokens_published"]
    assert values.to_dict() == {"swiftkv-25": "160M", "swiftkv-50": "680M / 160M / 320M"}


CASES = ["baseline", "swiftkv-50"]
SERVED = {"models": ["small"], "variants": CASES, "points": ["batch-2k"], "tasks": ["gsm8k"]}


def speed_and_quality(tmp_path, swiftkv=150.0, **changes):
    """The table of a baseline of 100 tokens a second; `changes` are those of the other record."""
    served = throughput(LLAMA, "swiftkv-50", "batch-2k", swiftkv, reason=None if swiftkv else "no memory is left")
    records = [throughput(LLAMA, "baseline", "batch-2k", 100.0, limit=1.0), served | changes]
    quality = {
        "scores": saved(tmp_path, [score(LLAMA, variant, "gsm8k", 0.5) for variant in CASES]),
        "fidelity": saved(tmp_path, [closeness(LLAMA, variant, 0.2) for variant in CASES]),
    }
    return made(resolved("speed_and_quality", **SERVED), serving=saved(tmp_path, records), **quality)


def test_speed_stands_beside_quality(tmp_path):
    table = speed_and_quality(tmp_path)
    cells = table.panels[0].frame.iloc[1]
    assert cells["Speed-up,\n2K input"] == "1.50× (limit 1.80×)"
    assert cells["KL to teacher,\nnats a token"].startswith("0.2000") and cells["Avg.\nscore, %"].startswith("50.0")
    row = table.values.set_index("variant").loc["swiftkv-50"]
    assert (row["speedup"], row["speedup_limit"], row["kl"], row["average"]) == (1.5, 1.8, 0.2, 50)
    assert row["fraction_of_limit"] == pytest.approx(1.5 / 1.8)
    oom = speed_and_quality(tmp_path, swiftkv=None)
    assert oom.panels[0].frame["Speed-up,\n2K input"][1].startswith("OOM [")
    assert oom.values["missing"].iloc[1] == "no memory is left"
    alone = saved(tmp_path, [throughput(LLAMA, "swiftkv-50", "batch-2k", 100.0)])
    assert "the baseline" in to_markdown(made(resolved("speed_and_quality", **SERVED), serving=alone))


@pytest.mark.parametrize("key", ["num_key_value_layers", "revision", "weights"])
def test_speed_of_another_checkpoint_is_refused(tmp_path, key):
    model = throughput(LLAMA, "swiftkv-50", "batch-2k", 1.0)["model"]
    change = {
        "num_key_value_layers": {"spec": throughput(LLAMA, "swiftkv-25", "batch-2k", 1.0)["spec"]},
        "revision": {"model": model | {"revision": "2"}},
        "weights": {"weights": "original"},
    }[key]
    with pytest.raises(UserError, match=key):
        speed_and_quality(tmp_path, **change)


def test_speed_of_dummy_weights_says_so(tmp_path):
    served = [
        throughput(LLAMA, variant, "batch-2k", speed, weights="dummy")
        for variant, speed in zip(CASES, (100.0, 150.0), strict=True)
    ]
    table = made(resolved("speed_and_quality", **SERVED), serving=saved(tmp_path, served))
    assert table.panels[0].frame.iloc[1]["Speed-up,\n2K input"] == "1.50× (limit 1.80×) [1]"
    assert "dummy weights" in table.notes[-2] and list(table.values["weights"]) == ["dummy", "dummy"]
