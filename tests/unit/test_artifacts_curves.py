"""Quality over training tokens: where points lie, and which trainings have one."""

from tests.unit.artifact_helpers import LLAMA, PAPER, closeness, made, resolved, saved, score, training


def test_a_curve_has_each_training_at_its_tokens_and_the_unchanged_model_is_a_line_across(tmp_path):
    variants = ["swiftkv-25", "swiftkv-50", "swiftkv-50-tuned"]
    parts = [{"title": "a curve", "models": ["small"], "variants": ["baseline", *variants]}]
    entry = resolved("curves", parts=parts, panels=[{"columns": ["kl", "average"]}], tasks=["winogrande"])
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
    entry = resolved("curves", models=["small"], variants=["swiftkv-50"], panels=[{"columns": ["kl"]}])
    trained, close = training(LLAMA, "swiftkv-50"), closeness(LLAMA, "swiftkv-50", 0.2)
    (axis,) = made(entry, training=saved(tmp_path, [trained]), fidelity=saved(tmp_path, [close])).figure.axes
    assert [line.get_ydata().tolist() for line in axis.lines] == [[0.2]]


def test_losses_are_drawn_over_the_layers_skipped_beside_published_ones(tmp_path):
    """Of four questions the unchanged model answers all, and each variant one fewer than the one before."""
    entry = resolved(
        "curves",
        over="prefill_reduction_percent",
        parts=[{"title": "a curve", "models": ["small"], "variants": ["baseline", "swiftkv-50", "swiftkv-25"]}],
        panels=[{"columns": ["average"], "rows": "differences"}],
        tasks=["winogrande"],
        published_models=["llama-3.2-3b"],
        published=["table4"],
    )
    answers = {"baseline": [1, 1, 1, 1], "swiftkv-25": [1, 1, 1, 0], "swiftkv-50": [0, 1, 1, 0]}
    scores = [
        score(LLAMA, variant, "winogrande", sum(values) / 4, questions=values, limit=None, lm_eval_task="winogrande")
        for variant, values in answers.items()
    ]
    (axis,) = made(entry, scores=saved(tmp_path, scores), published=[PAPER / "table4.csv"]).figure.axes
    ours, _, paper = [line.get_xydata().round(2).tolist() for line in axis.lines]
    assert ours == [[25, -25], [50, -50]]
    assert paper == [[0, 0], [25, 0.08], [40, -0.92]]  # 66.47, 66.55 and 65.55
