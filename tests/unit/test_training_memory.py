"""The memory of a training: the plan's formula against what the trainer itself allocates, in fake tensors and in real ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from swiftkv.planning.plan import estimate_plan
from swiftkv.planning.profile import Profile
from swiftkv.planning.report import report
from swiftkv.pricing.size import Size
from swiftkv.pricing.training import LOSS_NUMBERS, LOSS_ROWS, training_memory
from swiftkv.pricing.work import PlannedJob, Resources

from swiftkv.distill import losses
from tests.unit.artifact_helpers import typed
from tests.unit.distill_helpers import environment

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.05
# Every architecture, loss, kind of trained parameters and ZeRO stage of the paper scale.
TRAININGS = [
    ("llama-3.1-8b", "swiftkv-50-full-model"), ("llama-3.1-8b", "swiftkv-50-lm-loss"), ("llama-3.1-8b", "swiftkv-25"),
    ("llama-3.1-8b", "swiftkv-50-authors-2025"), ("llama-3.1-8b", "swiftkv-50-early-exit"),
    ("llama-3.1-8b", "swiftkv-50-across16"), ("llama-3.1-8b", "swiftkv-50-mha"), ("llama-3.2-3b", "swiftkv-50"),
    ("llama-3.2-1b", "swiftkv-50"), ("llama-2-13b", "swiftkv-50"), ("qwen2.5-7b", "swiftkv-50"),
    ("qwen3-4b", "swiftkv-50"), ("mistral-small-2409", "swiftkv-50"),
]  # fmt: skip


@pytest.fixture(scope="module")
def config():
    names = ("config.yaml", "artifacts.yaml")
    return typed({key: section for name in names for key, section in yaml.safe_load((ROOT / name).read_text()).items()})


def run(folder, cases, **variables):
    """What `fake_training.py` measures of cases."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    words = [sys.executable, str(ROOT / "tests/unit/fake_training.py"), str(file)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**variables))
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(config, folder, trainings):
    """Hold the formula to the fake trainings of models and variants, all on as many GPUs."""
    sizes = {model: Size.of(config, model, ROOT) for model, _ in trainings}
    arguments = [
        (sizes[model], config.spec(model, variant), config.recipe(model, config.variants[variant].recipe))
        for model, variant in trainings
    ]
    gpus = config.models[trainings[0][0]].gpus.distill
    cases = [
        {
            "config": {name: value for name, value in size.config.items() if name != "quantization_config"},
            "spec": spec and vars(spec),
            "recipe": dict(recipe)
            | {"batch_size": min(recipe.batch_size, 2 * gpus)},  # two micro-batches show all there is
            "ranks": gpus,
            "fp8": size.fp8,
        }
        for size, spec, recipe in arguments
    ]
    expected = [training_memory(*of, gpus).peak for of in arguments]
    found = [measured["peak"] for measured in run(folder, cases)]
    named = [f"{model} {variant}" for model, variant in trainings]
    assert dict(zip(named, expected, strict=True)) == pytest.approx(dict(zip(named, found, strict=True)), rel=TOLERANCE)


@pytest.mark.thorough
def test_the_formula_is_what_a_fake_training_allocates(config, tmp_path):
    compare(config, tmp_path, [("llama-3.1-8b", "swiftkv-50"), ("llama-3.1-8b-base", "fine-tuned")])


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainings",
    [TRAININGS, [("llama-3.1-70b", "swiftkv-50"), ("llama-3.1-405b", "swiftkv-50")]],
    ids=["8 GPUs", "32 GPUs"],
)
def test_the_formula_is_what_every_kind_of_fake_training_allocates(config, tmp_path, trainings):
    compare(config, tmp_path, trainings)


@pytest.mark.thorough
def test_a_process_grows_by_the_memory_that_fake_tensors_would_take(config, tmp_path):
    shape = dict(hidden_size=192, intermediate_size=512, num_hidden_layers=4, vocab_size=8192, tie_word_embeddings=True)
    heads = dict(num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=8192)
    cases = [
        {
            "config": {"model_type": "llama"} | shape | heads,
            "spec": {"num_hidden_layers": 4, "num_key_value_layers": 1},
            "recipe": dict(config.recipe("llama-3.1-8b", "distillation"))
            | {"batch_size": rows, "micro_batch_size": rows, "max_length": 512},
            "ranks": 1,
            "gpu": False,
        }
        for rows in (8, 40)
    ]
    fake = run(tmp_path, cases)
    # Freed blocks go back to the system, so that the process is as large as its tensors.
    real = run(tmp_path, [case | {"real": True} for case in cases], MALLOC_MMAP_THRESHOLD_="1000000")
    counted = [[training[name] for name in ("state", "peak")] for training in (*fake, *real)]
    assert counted[:2] == counted[2:]
    grown = real[1]["resident"] - real[0]["resident"]
    assert grown == pytest.approx(fake[1]["peak"] - fake[0]["peak"], rel=0.1)


def test_the_formula_knows_the_sizes_of_the_loss():
    assert (LOSS_ROWS, LOSS_NUMBERS) == (losses.ROWS, losses.GPU_INNER_ELEMENTS)


def test_a_plan_says_whether_trainings_fit(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(**trainings):
        planned = [
            PlannedJob(
                "distill",
                {"model": model.replace("_", "-"), "variant": variant},
                outputs=(model,),
                resources=Resources(gpu=gpus),
            )
            for model, (variant, gpus) in trainings.items()
        ]
        return report(estimate_plan(ROOT, Profile(Path("slurm"), jobs=2), config, planned))

    fine = said(mistral_7b=("swiftkv-50", 8))
    assert re.search(r"GPU memory  up to \d\d GB a GPU in training, of 77 that tensors may take: fits$", fine)
    short = said(llama_2_13b=("swiftkv-50", 1), mistral_7b=("swiftkv-50", 8), deepseek_v2_lite=("swiftkv-45", 8))
    sentence = short.splitlines()[-1]
    assert "does not fit: llama-2-13b swiftkv-50 (" in sentence and "mistral-7b" not in sentence
    assert sentence.endswith(
        "not counted for deepseek-v2-lite, as what layers with latent attention and experts keep is not counted"
    )
    assert "GPU memory" not in said(mistral_7b=("swiftkv-50", 0))
