"""A run beside the reference run: honest differences pass, a wrong number is found, and so is what was not measured."""

import copy
import csv
import math
import re
from pathlib import Path

import pytest
from tests.unit.artifact_helpers import ROOT, SMOL, closeness, record, scale, score, throughput, training, typed

from pipeline.artifacts.records import Record
from pipeline.run.reference.compare import compare, leaves, report
from pipeline.run.reference.folder import folder, keep, records, verdicts
from pipeline.run.reference.redraw import redraw
from pipeline.run.reference.tolerances import ROUNDING, tolerance
from pipeline.statistics import mean_and_stderr
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json

ANSWERS = [1.0, 0.0, 0.0, 1.0, 0.0] * 20
LAYERS = 4


def similarity():
    result = {
        "simscore": [0.1, 0.5, 0.7],
        "simscore_stderr": [0.01] * 3,
        "pairwise": [[1.0, 0.5, 0.4, 0.3] for _ in range(LAYERS)],
        "tokens": 9106, "documents": 50, "num_hidden_layers": LAYERS,
    }  # fmt: skip
    return record("similarity", SMOL, "baseline", result, settings={"documents": 50, "max_length": 512, "seed": 42})


def fidelity():
    content = closeness(SMOL, "swiftkv-50", 0.5)
    chats = {"positions": [100, 60], "kl": [55.0, 25.0], "top1_agreement": [70.0, 50.0], "nll": [330.0, 210.0]}
    content["result"] |= {"chats": chats}
    content["result"]["top1_agreement"]["value"] = 120 / 160
    content["result"]["perplexity"]["value"] = math.exp(540 / 160)
    return content


def serving(ratio=1.85):
    content = throughput(SMOL, "swiftkv-50", "batch-2k", 3000.0)
    seconds = [4.0, 4.1, 4.2]
    content["settings"] |= {"threads": 2, "command": ["python"]}
    content["result"] = {
        "tokens_per_second": 12096 / 4.1, "seconds": 4.1, "num_prompts": 6, "tokens": 12096,
        "samples_seconds": seconds, "baseline_samples_seconds": [ratio * each for each in seconds],
    }  # fmt: skip
    content["engine"] |= {"kv_cache_tokens": 46592}
    return content


def made_up():
    """One record of some measures, by its place in a folder of results."""
    stderr = mean_and_stderr(ANSWERS)[1]
    return {
        f"scores/{SMOL}/swiftkv-50/auto/arc-easy.json": score(
            SMOL, "swiftkv-50", "arc-easy", 0.4, stderr=stderr, questions=ANSWERS
        ),
        f"fidelity/{SMOL}/swiftkv-50/auto.json": fidelity(),
        f"training/{SMOL}/swiftkv-50.json": training(SMOL, "swiftkv-50"),
        f"similarity/{SMOL}.json": similarity(),
        f"serving/batch-2k/{SMOL}/swiftkv-50/auto.json": serving(),
    }


SCORE, FIDELITY, TRAINING, SIMILARITY, SERVING = made_up()


def written(place, contents):
    for name, content in contents.items():
        write_json(place / name, content)
    return place


def put(content, path, value):
    """Set a value of nested keys and places, as in `result.kl.value`."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        content = content[part]
    content[last] = value


def compared(tmp_path, changed):
    return compare(written(tmp_path / "reference", made_up()), written(tmp_path / "run", changed))


def elsewhere():
    """The same run on another machine: it is half as fast, rounds otherwise, and so answers seven questions otherwise."""
    run = made_up()
    for content in run.values():
        content["provenance"]["hardware"] = {"processor": "Another", "cores": 8, "threads": 8, "gpus": []}
        content["provenance"]["libraries"] = {"torch": "2.14"}
        content["settings"] |= {"threads": 8} if "threads" in content["settings"] else {}
    answers = list(ANSWERS)
    for place in (0, 3, 5, 8, 1, 2, 6):
        answers[place] = 1 - answers[place]
    mean, stderr = mean_and_stderr(answers)
    run[SCORE]["result"] |= {"value": mean, "stderr": stderr}
    run[SCORE]["result"]["questions"]["values"] = answers
    chats = run[FIDELITY]["result"]["chats"]
    run[FIDELITY]["result"] |= {
        "kl": {"value": 0.5 * 1.005, "stderr": 0.0101, "n": 60},
        "top1_agreement": {"value": 121 / 160, "stderr": 0.0102, "n": 60},
        "perplexity": {"value": math.exp(542 / 160), "stderr": 0.0103, "n": 60},
        "chats": chats | {"kl": [55.4, 25.0], "top1_agreement": [71.0, 50.0], "nll": [331.0, 211.0]},
    }
    run[TRAINING]["result"] |= {
        "seconds": 14400.0, "hours": 4.0, "tokens_per_second": 1e6 / 14400, "loss_first": 3.26, "loss_last": 0.52
    }  # fmt: skip
    run[SIMILARITY]["result"] |= {"simscore": [0.102, 0.499, 0.703], "simscore_stderr": [0.02] * 3}
    own = [8.0, 8.1, 8.4]
    run[SERVING]["result"] |= {
        "seconds": 8.1, "tokens_per_second": 12096 / 8.1, "samples_seconds": own,
        "baseline_samples_seconds": [1.55 * each for each in own],
    }  # fmt: skip
    return run


def test_a_run_agrees_with_itself_and_with_one_of_another_machine(tmp_path):
    same = compared(tmp_path, made_up())
    assert same.disagreements == [] and same.compared == 5 and same.agreed > 60 and not same.absent
    other = compared(tmp_path, elsewhere())
    assert other.disagreements == [] and other.agreed == same.agreed
    said = report(other, tmp_path / "reference", tmp_path / "run")
    assert "Another, 8 cores, torch 2.14" in said and "speeds, times" in said and "do not" in said


@pytest.mark.parametrize(
    ("name", "path", "wrong", "said"),
    [
        (FIDELITY, "result.kl.value", 0.55, "kl is 0.55 ± 0.010, in the reference 0.5 ± 0.010: 0.05 apart, 0.028 at most"),
        (FIDELITY, "result.top1_agreement.value", 0.78, "top1_agreement"),
        (FIDELITY, "result.perplexity.value", 40.0, "perplexity"),
        (FIDELITY, "result.start.kl.value", 2.9, "start.kl"),
        (FIDELITY, "result.kl.stderr", 0.02, "kl.stderr is 0.02"),
        (FIDELITY, "result.kl.n", 59, "kl.n is 59, in the reference 60 ("),
        (FIDELITY, "result.chats.kl.0", 95.0, "kl is 0.5, but 0.75 by the record's own samples"),
        (FIDELITY, "result.kl", None, "kl is missing"),
        (SCORE, "result.value", 0.47, "value is 0.47, but 0.4 by the record's own samples"),
        (SCORE, "result.stderr", 0.01, "its error is 0.01"),
        (SCORE, "result.questions.sha256", "other", "questions.sha256 is other"),
        (TRAINING, "result.tokens", 1_000_001, "tokens is 1000001"),
        (TRAINING, "result.loss_last", 0.7, "loss_last"),
        (TRAINING, "result.hours", 3.0, "hours is 3, but 2"),
        (SIMILARITY, "result.simscore.1", 0.55, "simscore[1] is 0.55, in the reference 0.5: 0.05 apart, 0.01 at most"),
        (SIMILARITY, "result.pairwise.2.3", 0.35, "pairwise[2][3]"),
        (SERVING, "result.tokens_per_second", 9000.0, "tokens_per_second is 9000"),
        (SERVING, "result.baseline_samples_seconds", [10.0, 10.2, 10.4], "speedup on the same processor is 2.4"),
        (SERVING, "engine.kv_cache_tokens", 46593, "engine.kv_cache_tokens is 46593"),
        (SERVING, "cost.request_speedup_limit", 1.81, "cost.request_speedup_limit is 1.81"),
        (SERVING, "status", "oom", "status is oom, in the reference ok"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_found(tmp_path, name, path, wrong, said):
    run = made_up()
    put(run[name], path, wrong)
    disagreements = compared(tmp_path, run).disagreements
    assert any(said in sentence for sentence in disagreements), disagreements
    assert all(sentence.startswith(f"{name}: ") for sentence in disagreements)


def test_answers_of_another_model_are_found_where_both_scores_hang_together(tmp_path):
    run = made_up()
    answers = [1.0 if place % 5 in (0, 1, 3) else 0.0 for place in range(100)]  # 20 more are right, none less
    mean, stderr = mean_and_stderr(answers)
    run[SCORE]["result"] |= {"value": mean, "stderr": stderr}
    run[SCORE]["result"]["questions"]["values"] = answers
    (sentence,) = compared(tmp_path, run).disagreements
    assert f"{SCORE}: value is 0.6 ± 0.049, in the reference 0.4 ± 0.049: 0.2 apart" in sentence


def test_another_experiment_is_named_and_its_numbers_are_not_compared(tmp_path):
    run = made_up()
    run[SIMILARITY]["settings"]["documents"] = 20
    put(run[SIMILARITY], "result.simscore.1", 0.9)
    run[TRAINING]["spec"]["num_key_value_layers"] = 15
    first, second = sorted(compared(tmp_path, run).disagreements)
    assert first.startswith(f"{SIMILARITY}: settings.documents is 20, in the reference 50")
    assert second.startswith(f"{TRAINING}: spec.num_key_value_layers is 15, in the reference 14")


def test_a_wrong_number_of_the_reference_itself_is_found(tmp_path):
    planted = made_up()
    put(planted[SERVING], "result.seconds", 2.0)
    found = compare(written(tmp_path / "reference", planted), written(tmp_path / "run", made_up()))
    assert any("seconds of the reference is 2, but 4.1" in sentence for sentence in found.disagreements)


def test_what_one_of_both_does_not_have_is_said_and_no_disagreement(tmp_path):
    run = made_up()
    run[SCORE] = score(SMOL, "swiftkv-50", "arc-easy", 0.4, reason="the hub cannot be reached")
    del run[FIDELITY]
    found = compared(tmp_path, run)
    assert found.disagreements == [] and found.absent == [FIDELITY]
    assert found.unavailable == {"this run: the hub cannot be reached": [SCORE]}
    said = report(found, tmp_path / "reference", tmp_path / "run")
    assert f"not there yet: 1, {FIDELITY}" in said and "hub cannot be reached" in said


def test_a_claim_with_another_verdict_is_named_and_no_disagreement(tmp_path):
    found = compared(tmp_path, made_up())
    for folder_of, verdict in (("reference", "agrees"), ("run", "undecided")):
        file = tmp_path / folder_of / "tables/claims.csv"
        file.parent.mkdir()
        file.write_text(f"id,text,place,verdict\na,it is fast,Sec. 1,{verdict}\nb,it is good,Sec. 2,agrees\n")
    said = report(found, tmp_path / "reference", tmp_path / "run")
    assert said.endswith("judged otherwise: it is fast (Sec. 1): undecided, in the reference agrees")
    assert not found.disagreements


def test_nothing_to_compare_is_said(tmp_path):
    with pytest.raises(UserError, match="no reference run is shipped for this scale"):
        compare(tmp_path / "none", tmp_path)
    with pytest.raises(UserError, match="has none of the 5 records"):
        compare(written(tmp_path / "reference", made_up()), tmp_path / "empty")


# The folder of the reference run


@pytest.fixture
def local(tmp_path, monkeypatch):
    """The local scale with two artifacts, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    content = scale("local")
    content["artifacts"] = {name: content["artifacts"][name] for name in ("table1", "figure2_left")}
    return content


def test_a_finished_run_is_kept_and_drawn_from(local, tmp_path):
    config, place = typed(local), folder(tmp_path, typed(local))
    with pytest.raises(UserError, match="results/local is no finished run: 3 of 3 files are missing"):
        keep(config, place)
    results = written(tmp_path / "results/local", {f"similarity/{SMOL}.json": similarity()})
    write_json(results / f"models/{SMOL}/source.json", {"path": "base", "config": {}})
    (results / "tables").mkdir()
    (results / "tables/claims.csv").write_text("id,verdict\n")
    assert "3 files of results/local" in keep(config, place) and "beside commit no commit" in keep(config, place)
    assert records(place) == [f"similarity/{SMOL}.json"] and (place / "tables/claims.csv").is_file()
    assert compare(place, results).disagreements == []

    drawn = ["results/reference/local/tables/table1.csv", "results/reference/local/figures/figure2_left.csv"]
    (place / f"models/{SMOL}/source.json").unlink()
    assert list(redraw(config, place)) == [
        (drawn[0], f"the run has no models/{SMOL}/source.json"),
        (drawn[1], None),
    ]
    with open(drawn[1], newline="") as lines:
        assert [float(row["simscore"]) for row in csv.DictReader(lines)] == similarity()["result"]["simscore"]
    assert list(redraw(config, place, ["results/local/figures/figure2_left.png"])) == [(drawn[1], None)]
    with pytest.raises(UserError, match="there is no artifact 'figure2_rigt'"):
        list(redraw(config, place, ["figures/figure2_rigt.png"]))


def test_claims_are_judged_by_the_tables_of_the_reference_run(local, tmp_path):
    content = scale("local")
    local["artifacts"] = {name: content["artifacts"][name] for name in ("claims", "figure2_left")}
    config, place = typed(local), tmp_path / "reference/local"
    written(place, {f"similarity/{SMOL}.json": similarity()})
    names = [Path(file).stem for file, why in redraw(config, place) if why is None]
    assert names == ["figure2_left", "claims"]
    judged = verdicts(Path("results/reference/local"))
    assert float(judged["simscore-half-8b"]["value"]) in similarity()["result"]["simscore"]
    assert "table2" in judged["loss-50"]["reason"]


def test_a_record_that_names_a_folder_of_this_machine_is_not_shipped(local, tmp_path):
    local["artifacts"] = {"figure2_left": local["artifacts"]["figure2_left"]}
    config, content = typed(local), similarity()
    content["reason"] = f"{tmp_path}/results is gone"
    results = written(tmp_path / "results/local", {f"similarity/{SMOL}.json": content})
    (results / "tables").mkdir()
    (results / "tables/claims.csv").touch()
    with pytest.raises(UserError, match="names a folder of this machine"):
        keep(config, folder(tmp_path, config))
    assert not folder(tmp_path, config).exists()


SHIPPED = sorted(place for place in ROOT.glob("resources/reference/*") if place.is_dir())


@pytest.mark.parametrize("place", SHIPPED, ids=lambda place: place.name)
def test_the_shipped_run_hangs_together_and_a_number_planted_in_it_is_found(place, tmp_path):
    assert compare(place, place).disagreements == []
    for name in records(place):
        write_json(tmp_path / name, read_json(place / name))
    name = next(name for name in records(place) if name.startswith("fidelity/") and "baseline" not in name)
    content = copy.deepcopy(read_json(place / name))
    content["result"]["kl"]["value"] *= 1.1
    write_json(tmp_path / name, content)
    disagreements = compare(place, tmp_path).disagreements
    assert disagreements and all(name in sentence for sentence in disagreements)
    assert not any(str(Path.home()) in (place / each).read_text() for each in records(place))


def half_as_fast(value, path=""):
    """The same numbers of a machine that takes twice as long for everything."""
    if isinstance(value, dict):
        return {key: half_as_fast(part, f"{path}.{key}.") for key, part in value.items()}
    if isinstance(value, list):
        return [half_as_fast(part, path) for part in value]
    times, rates = re.search(r"(seconds|_ms|hours)\.", path), "per_second" in path
    return value / 2 if rates and value else 2 * value if times and value else value


@pytest.mark.parametrize("place", SHIPPED, ids=lambda place: place.name)
def test_the_shipped_run_on_a_machine_half_as_fast_agrees_with_it(place, tmp_path):
    for name in records(place):
        content = read_json(place / name)
        write_json(tmp_path / name, content | {"result": half_as_fast(content["result"])})
    assert compare(place, tmp_path).disagreements == []


@pytest.mark.parametrize("place", SHIPPED, ids=lambda place: place.name)
def test_no_number_that_rounding_moves_has_to_be_equal(place):
    """Another machine may round any number that a model computes, so only what is counted or drawn is compared exactly."""
    counted = r"prefill_reduction|caches\.\d+\.(held|share)|fp8_keys\.bound|source\.\w+"
    for name in records(place):
        measured = Record.read(place / name)
        for key, value in leaves(measured.result, "result"):
            within = tolerance(f"{measured.measure}:{key}")
            exact = within.compared and not within.absolute and not within.errors and within.share <= ROUNDING
            if exact and isinstance(value, float) and re.search(r"\d\.\d|\de-", str(value)):
                assert re.search(rf"\.({counted})$", key), f"{name}: {key}"
