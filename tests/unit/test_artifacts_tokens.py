"""Quality over training tokens: where points lie, and which trainings have one."""

from tests.unit import artifact_helpers as helpers
from tests.unit.artifact_helpers import LLAMA, closeness, made, resolved, saved, training

from pipeline.artifacts import contents


def test_a_curve_has_each_training_at_its_tokens(tmp_path):
    variants = ["swiftkv-25", "swiftkv-50", "swiftkv-50-tuned"]
    parts = [{"title": "a curve", "models": ["small"], "variants": variants}]
    entry = resolved("tokens", parts=parts, panels=[{"columns": ["kl"]}])
    trainings = [training(LLAMA, variant) for variant in variants[:2]]
    for record, tokens in zip(trainings, (400, 100), strict=True):
        record["result"]["tokens"] = tokens
    fidelity = [closeness(LLAMA, variant, kl) for variant, kl in zip(variants, (0.2, 0.5, 0.1), strict=True)]
    (kl,) = made(entry, training=saved(tmp_path, trainings), fidelity=saved(tmp_path, fidelity)).figure.axes
    assert [line.get_xydata().tolist() for line in kl.lines] == [[[100, 0.5], [400, 0.2]]]


def test_what_is_separate_is_made_only_where_it_is_named():
    config = helpers.scale("local")
    assert "tokens" in contents.names(helpers.typed(config)) and "tokens" not in contents.standard(
        helpers.typed(config)
    )
    config["artifacts"]["tokens"]["separate"] = False
    assert "tokens" in contents.standard(helpers.typed(config))
