"""A run beside the reference run: honest differences pass, and a wrong number, a lost gain and a missing record are found."""

import copy
import math
import re
from pathlib import Path

import pytest
from tests.unit.artifact_helpers import ROOT, SMOL, closeness, record, scale, score, throughput, training, typed

from pipeline.artifacts.records import Record
from pipeline.run.compare import EXACT, compare, folder, leaves, records, report, tolerance, verdicts
from pipeline.run.reference_run import keep, redraw
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
    assert same.disagreements == [] and same.records == 5 and same.agreed > 100
    other = compared(tmp_path, elsewhere())
    assert other.disagreements == [] and other.agreed == same.agreed
    assert "Another, 8 cores, torch 2.14" in report(other, tmp_path / "reference", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "path", "wrong", "said"),
    [
        (FIDELITY, "result.kl.value", 0.55, "kl is 0.55 ± 0.01, in the reference 0.5 ± 0.01, at most 0.028 apart"),
        (FIDELITY, "result.start.kl.value", 2.9, "start.kl"),
        (FIDELITY, "result.kl.n", 59, "kl.n is 59, in the reference 60"),
        (FIDELITY, "result.kl", None, "kl is missing"),
        (SCORE, "result.questions.sha256", "other", "questions.sha256 is other"),
        (TRAINING, "result.loss_last", 0.7, "loss_last"),
        (SIMILARITY, "result.pairwise.2.3", 0.35, "pairwise[2][3] is 0.35"),
        (SERVING, "result.baseline_samples_seconds", [10.0, 10.2, 10.4], "speed-up is 2.4"),
        (SERVING, "engine.kv_cache_tokens", 46593, "engine.kv_cache_tokens is 46593"),
        (SERVING, "cost.request_speedup_limit", 1.81, "cost.request_speedup_limit is 1.81"),
        (SERVING, "status", "oom", "status is oom, in the reference ok"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_found(tmp_path, name, path, wrong, said):
    run = made_up()
    put(run[name], path, wrong)
    disagreements = compared(tmp_path, run).disagreements
    assert any(sentence.startswith(f"{name}: ") and said in sentence for sentence in disagreements), disagreements


def test_answers_of_another_model_are_found(tmp_path):
    run = made_up()
    answers = [1.0 if place % 5 in (0, 1, 3) else 0.0 for place in range(100)]  # 20 more are right, none less
    mean, stderr = mean_and_stderr(answers)
    run[SCORE]["result"] |= {"value": mean, "stderr": stderr}
    run[SCORE]["result"]["questions"]["values"] = answers
    (sentence,) = compared(tmp_path, run).disagreements
    assert sentence.startswith(f"{SCORE}: value is 0.6 ")


def test_a_gain_that_is_gone_is_found_within_the_tolerance_of_its_size(tmp_path):
    reference, run = made_up(), elsewhere()
    reference[SERVING] = serving(ratio=1.2)
    run[SERVING]["result"]["baseline_samples_seconds"] = run[SERVING]["result"]["samples_seconds"]
    found = compare(written(tmp_path / "reference", reference), written(tmp_path / "run", run))
    (sentence,) = found.disagreements
    assert sentence.startswith(f"{SERVING}: speed-up is gone: 1,")


def test_the_numbers_of_another_experiment_are_not_compared(tmp_path):
    run = made_up()
    run[SIMILARITY]["settings"]["documents"] = 20
    put(run[SIMILARITY], "result.simscore.1", 0.9)
    (sentence,) = compared(tmp_path, run).disagreements
    assert sentence.startswith(f"{SIMILARITY}: settings.documents is 20, in the reference 50")


def test_missing_records_and_numbers_are_disagreements(tmp_path):
    run = made_up()
    unavailable = score(SMOL, "swiftkv-50", "arc-easy", 0.4, reason="the hub cannot be reached")
    run[SCORE] = unavailable
    del run[FIDELITY]
    first, second = compared(tmp_path, run).disagreements
    assert first.startswith(f"{SCORE}: unavailable") and second == f"1 of 5 records are missing: {FIDELITY}"
    reference = made_up() | {SCORE: unavailable}
    assert compare(written(tmp_path / "offline", reference), written(tmp_path / "all", made_up())).disagreements == []


@pytest.mark.parametrize(("now", "disagreements"), [("contradicts", 1), ("undecided", 0), ("agrees", 0)])
def test_a_claim_that_turned_is_a_disagreement(tmp_path, now, disagreements):
    for name, verdict in (("reference", "agrees"), ("run", now)):
        (tmp_path / name / "tables").mkdir(parents=True)
        lines = f"id,text,place,verdict\na,it is fast,Sec. 1,{verdict}\n"
        (tmp_path / name / "tables/claims.csv").write_text(lines)
    assert len(compared(tmp_path, made_up()).disagreements) == disagreements


def test_nothing_to_compare_is_said(tmp_path):
    with pytest.raises(UserError, match="no reference run is shipped for this scale"):
        compare(tmp_path / "none", tmp_path)
    with pytest.raises(UserError, match="has none of the 5 records"):
        compare(written(tmp_path / "reference", made_up()), tmp_path / "empty")


# The folder of the reference run


def test_a_finished_run_is_kept_and_its_claims_are_judged_by_its_own_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = scale("local")
    content["artifacts"] = {name: content["artifacts"][name] for name in ("claims", "figure2_left")}
    config = typed(content)
    place = folder(tmp_path, config)
    with pytest.raises(UserError, match="results/local is no finished run: 2 of 2 files are missing"):
        keep(config, place)
    results = written(tmp_path / "results/local", {f"similarity/{SMOL}.json": similarity()})
    (results / "tables").mkdir()
    (results / "tables/claims.csv").write_text("id,verdict\n")
    keep(config, place)
    assert records(place) == [f"similarity/{SMOL}.json"] and (place / "tables/claims.csv").is_file()

    assert [Path(file).stem for file, why in redraw(config, place) if why is None] == ["figure2_left", "claims"]
    judged = verdicts(Path("results/reference/local"))
    assert float(judged["simscore-half-8b"]["value"]) in similarity()["result"]["simscore"]

    write_json(results / f"similarity/{SMOL}.json", similarity() | {"reason": f"{tmp_path}/results is gone"})
    with pytest.raises(UserError, match="names a folder of this machine"):
        keep(config, place)


SHIPPED = ROOT / "resources/reference/local"


def test_a_number_planted_in_the_shipped_run_is_found(tmp_path):
    for name in records(SHIPPED):
        write_json(tmp_path / name, read_json(SHIPPED / name))
    name = next(name for name in records(SHIPPED) if name.startswith("fidelity/") and "baseline" not in name)
    content = copy.deepcopy(read_json(SHIPPED / name))
    content["result"]["kl"]["value"] *= 1.1
    write_json(tmp_path / name, content)
    (sentence,) = compare(SHIPPED, tmp_path).disagreements
    assert sentence.startswith(f"{name}: kl is ")


def half_as_fast(value, path=""):
    """The same numbers of a machine that takes twice as long for everything."""
    if isinstance(value, dict):
        return {key: half_as_fast(part, f"{path}.{key}.") for key, part in value.items()}
    if isinstance(value, list):
        return [half_as_fast(part, path) for part in value]
    times, rates = re.search(r"(seconds|_ms|hours)\.", path), "per_second" in path
    return value / 2 if rates and value else 2 * value if times and value else value


def test_the_shipped_run_agrees_with_a_machine_half_as_fast_and_not_with_a_server_that_saves_nothing(tmp_path):
    in_turns = []
    for name in records(SHIPPED):
        content = read_json(SHIPPED / name)
        content["result"] = half_as_fast(content["result"])
        content["provenance"]["hardware"]["processor"] = "Another"
        write_json(tmp_path / name, content)
        in_turns += [name] if any(key.startswith("baseline_samples") for key in content["result"]) else []
    assert in_turns and compare(SHIPPED, tmp_path).disagreements == []
    for name in in_turns:
        content = read_json(tmp_path / name)
        result = content["result"]
        own = {key: result[f"baseline_{key}"] for key in result if f"baseline_{key}" in result and "samples" in key}
        write_json(tmp_path / name, content | {"result": result | own})
    found = compare(SHIPPED, tmp_path).disagreements
    assert len({sentence.partition(": ")[0] for sentence in found}) > len(in_turns) / 2


def test_no_number_that_rounding_moves_has_to_be_equal():
    """Another machine may round any number that a model computes, so only what is counted or drawn is compared exactly."""
    counted = r"prefill_reduction|caches\.\d+\.(held|share)|fp8_keys\.bound|source\.\w+"
    for name in records(SHIPPED):
        measured = Record.read(SHIPPED / name)
        for key, value in leaves(measured.result, "result"):
            exact = tolerance(f"{measured.measure}:{key}") is EXACT
            if exact and isinstance(value, float) and re.search(r"\d\.\d|\de-", str(value)):
                assert re.search(rf"\.({counted})$", key), f"{name}: {key}"
