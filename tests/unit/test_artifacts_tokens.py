"""Quality over training tokens: where points lie, and which trainings have one."""

from tests.unit.artifact_helpers import LLAMA, closeness, made, resolved, saved, score, training


def test_a_curve_has_each_training_at_its_tokens_and_the_unchanged_model_is_a_line_across(tmp_path):
    variants = ["swiftkv-25", "swiftkv-50", "swiftkv-50-tuned"]
    parts = [{"title": "a curve", "models": ["small"], "variants": ["baseline", *variants]}]
    entry = resolved("tokens", parts=parts, panels=[{"columns": ["kl", "average"]}], tasks=["winogrande"])
    trainings = [training(LLAMA, variant) for variant in variants[:2]]
    for record, tokens in zip(trainings, (400, 100), strict=True):
        record["result"]["tokens"] = tokens
    fidelity = [closeness(LLAMA, variant, kl) for variant, kl in zip(variants, (0.2, 0.5, 0.1), strict=True)]
    scores = [
        score(LLAMA, variant, "winogrande", value, limit=None, lm_eval_task="winogrande")
        for variant, value in (("baseline", 0.7), ("swiftkv-25", 0.6))
    ]
    files = {
        name: saved(tmp_path, group)
        for name, group in (("training", trainings), ("fidelity", fidelity), ("scores", scores))
    }
    kl, average = made(entry, **files).figure.axes
    assert [line.get_xydata().tolist() for line in kl.lines] == [[[100, 0.5], [400, 0.2]]]
    assert [line.get_xydata().tolist() for line in average.lines] == [[[400, 60.0]], [[0, 70.0], [1, 70.0]]]


def test_variants_without_parts_are_one_curve(tmp_path):
    entry = resolved("tokens", models=["small"], variants=["swiftkv-50"], panels=[{"columns": ["kl"]}])
    trained, close = training(LLAMA, "swiftkv-50"), closeness(LLAMA, "swiftkv-50", 0.2)
    (axis,) = made(entry, training=saved(tmp_path, [trained]), fidelity=saved(tmp_path, [close])).figure.axes
    assert [line.get_ydata().tolist() for line in axis.lines] == [[0.2]]
