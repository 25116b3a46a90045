"""A run beside the shipped one: honest differences pass, and a wrong number, a lost gain and a missing record are found."""

import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from tests.conftest import refused
from tests.programs import run as start
from tests.unit.artifact_helpers import ROOT, SMOL, scale, typed

from pipeline import __main__ as pipeline
from pipeline.artifacts import report as report_page
from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.published import read_csv
from pipeline.artifacts.report import read_artifacts, result
from pipeline.run import reference_run
from pipeline.run.compare import CLAIMS, compare, folder, inputs, records, report, verdicts
from pipeline.run.jobs import read_config, read_profile
from pipeline.run.reference_run import BEGIN, END, FIGURE, PAGE, REDRAWN, TABLE, keep, page_part, redraw
from pipeline.statistics import mean_and_stderr
from swiftkv.io import read_json, write_json

SHIPPED = ROOT / "resources/reference/local"
SCORE = f"scores/{SMOL}/swiftkv-50/auto/arc-easy.json"
FIDELITY = f"fidelity/{SMOL}/swiftkv-50/auto.json"
TRAINING = f"training/{SMOL}/swiftkv-50.json"
SIMILARITY = f"similarity/{SMOL}.json"
SERVING = f"serving/batch-6k/{SMOL}/swiftkv-50/auto.json"
LATENCY = f"serving/first-1k/{SMOL}/swiftkv-33-tuned-quarter/auto.json"
READING = f"reading/{SMOL}/swiftkv-33-tuned-quarter.json"
FEW = (READING, SCORE, FIDELITY, TRAINING, SIMILARITY, SERVING, LATENCY)


@pytest.fixture
def run():
    return {name: read_json(SHIPPED / name) for name in FEW}


@pytest.fixture
def compared(tmp_path):
    """Compare changed records with those of the shipped run, or of another one."""

    def compared(run, reference=None):
        shipped = {name: read_json(SHIPPED / name) for name in FEW}
        for place, contents in (("run", run), ("reference", reference or shipped)):
            for name, content in contents.items():
                write_json(tmp_path / place / name, content)
        return compare(tmp_path / "reference", tmp_path / "run")

    return compared


def put(content, path, value):
    """Set a value of nested keys and places, as in `result.kl.value`; a function makes it of the old one."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        content = content[part]
    content[last] = value(content[last]) if callable(value) else value


def answer(run, changed):
    result = run[SCORE]["result"]
    for place in changed:
        result["questions"]["values"][place] = 1 - result["questions"]["values"][place]
    result["value"], result["stderr"] = mean_and_stderr(result["questions"]["values"])


def elsewhere(run):
    """Change the run to one of another processor: half as fast, rounded otherwise, with other answers to five questions."""
    for content in run.values():
        content["provenance"]["hardware"] |= {"processor": "Another", "cores": 8}
        content["settings"] |= {"threads": 8} if "threads" in content["settings"] else {}
    answer(run, range(5))
    put(run[FIDELITY], "result.kl.value", lambda kl: 1.005 * kl)
    put(run[TRAINING], "result.seconds", lambda seconds: 2 * seconds)
    put(run[TRAINING], "result.loss_last", lambda loss: 1.02 * loss)
    put(run[SIMILARITY], "result.simscore.1", lambda score: score + 0.003)
    put(run[READING], "result.members.1.tasks.squad.bits.3", lambda bits: bits + 2)
    put(run[SERVING], "result.samples_seconds", lambda samples: [2 * each for each in samples])
    put(run[SERVING], "result.baseline_samples_seconds", lambda samples: [2.2 * each for each in samples])
    put(run[LATENCY], "result.rates.0.ttft_ms.median", lambda median: 2 * median)
    return run


def test_a_run_agrees_with_itself_and_with_one_of_another_machine(run, compared, tmp_path):
    same = compared(run)
    assert same.disagreements == [] and same.records == 7 and same.agreed > 100
    other = compared(elsewhere(run))
    assert other.disagreements == [] and other.agreed == same.agreed
    assert "Another, 8 cores" in report(other, tmp_path / "reference", tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "path", "wrong", "said"),
    [
        (FIDELITY, "result.kl.value", lambda kl: 1.1 * kl, "kl is 0.55"),
        (FIDELITY, "result.kl.n", 49, "n of kl is 49, in the reference 50"),
        (FIDELITY, "result.kl", None, "kl is missing"),
        (
            READING,
            "result.members.1.tasks.squad.bits",
            lambda bits: [each + 2 for each in bits],
            "kept of squad at 20",
        ),
        (TRAINING, "result.loss_last", lambda loss: 1.2 * loss, "loss_last"),
        (TRAINING, "result.steps", lambda steps: steps + 1, "training_steps"),
        (SIMILARITY, "result.pairwise.2.3", lambda cosine: cosine - 0.05, "next_similarity at 2 is "),
        (
            SERVING,
            "result.baseline_samples_seconds",
            lambda times: [2 * each for each in times],
            "speedup of batch-6k is 3.9",
        ),
        (SERVING, "engine.kv_cache_tokens", 46593, "engine.kv_cache_tokens is 46593"),
        (SCORE, "result.questions.sha256", "of others", "questions.sha256 is of others"),
        (READING, "result.tasks.squad.sha256", "of others", "tasks.squad.sha256 is of others"),
        (FIDELITY, "result.tokens", 8321, "tokens is 8321"),
        (SERVING, "status", "oom", "status is oom, in the reference ok"),
    ],
)
def test_a_wrong_number_is_found(run, compared, name, path, wrong, said):
    put(run[name], path, wrong)
    disagreements = compared(run).disagreements
    assert any(sentence.startswith(f"{name}: ") and said in sentence for sentence in disagreements), disagreements


def test_an_uncertain_speed_up_is_gone_only_where_less_than_half_of_it_is_left(run, compared):
    own = run[SERVING]["result"]["samples_seconds"]
    uncertain = [time * (0.8, 2.8)[turn % 2] for turn, time in enumerate(own)]
    put(run[SERVING], "result.baseline_samples_seconds", uncertain)
    assert compared(run).disagreements == []
    put(run[SERVING], "result.baseline_samples_seconds", own)
    (sentence,) = compared(run).disagreements
    assert sentence.startswith(f"{SERVING}: speedup of batch-6k is gone")


def test_a_lost_gain_in_decoding_is_found_though_it_is_small(compared):
    """Of decoding the ratio of times is shown, which is less than 1 where there is a gain."""
    name, sides = f"serving/decode/{SMOL}/swiftkv-50/auto.json", []
    for factor in (1, 1.15):
        sides.append({name: read_json(SHIPPED / name)})
        own = sides[-1][name]["result"]["samples_ms"]
        put(sides[-1][name], "result.baseline_samples_ms", [[factor * time for time in times] for times in own])
    disagreements = compared(*sides).disagreements
    assert len(disagreements) == 3 and all("is gone" in sentence for sentence in disagreements)


def test_answers_of_another_model_and_another_experiment_are_found(run, compared):
    wrong = [place for place, value in enumerate(run[SCORE]["result"]["questions"]["values"]) if value == 0]
    answer(run, wrong[:8])  # within three standard errors of the answers that changed
    assert compared(run).disagreements == []
    answer(run, wrong[8:40])
    (sentence,) = compared(run).disagreements
    assert sentence.startswith(f"{SCORE}: arc-easy is {100 * run[SCORE]['result']['value']:g},")
    # Of another experiment the numbers are not compared.
    put(run[SIMILARITY], "settings.documents", 20)
    put(run[SIMILARITY], "result.simscore.1", 0.9)
    sentence, _ = compared(run).disagreements
    assert sentence.startswith(f"{SIMILARITY}: settings.documents is 20")


def test_a_record_that_lacks_numbers_is_named_by_its_own_path(run, compared, tmp_path):
    del run[SERVING]["result"]["seconds"]
    with refused(f"{tmp_path}/run/{SERVING} was written by an older version"):
        compared(run)


def test_tasks_of_an_earlier_version_are_not_missed(compared):
    name = f"reading/{SMOL}/copied.json"
    before, now = read_json(SHIPPED / name), read_json(SHIPPED / name)
    for part in (now["result"]["tasks"], *(member["tasks"] for member in now["result"]["members"])):
        del part["induction-256"], part["induction-768"]
    del now["result"]["heads"]
    for key in ("induction", "retrieval", "synthetic"):
        del now["settings"][key]
    assert compared({name: now}, reference={name: before}).disagreements == []


def test_missing_records_and_numbers_are_disagreements(run, compared):
    unavailable = run[SCORE] | {"status": "unavailable", "reason": "the hub cannot be reached", "result": None}
    whole = dict(run)
    run[SCORE] = unavailable
    del run[FIDELITY]
    first, second = compared(run).disagreements
    assert first.startswith(f"{SCORE}: unavailable") and second == f"1 of 7 records are missing: {FIDELITY}"
    assert compared(whole, reference=whole | {SCORE: unavailable}).disagreements == []


@pytest.mark.parametrize(
    ("now", "disagreements"), [("does not hold here", 1), ("unclear", 0), ("points the same way", 0)]
)
def test_a_claim_that_turned_is_a_disagreement(run, compared, tmp_path, now, disagreements):
    for name, verdict in (("reference", "points the same way"), ("run", now)):
        (tmp_path / name / "tables").mkdir(parents=True)
        lines = f"id,text,place,verdict,orientation\na,it is fast,Sec. 1,not tested,{verdict}\n"
        (tmp_path / name / "tables/claims.csv").write_text(lines)
    assert len(compared(run).disagreements) == disagreements


def test_the_demo_is_compared_by_its_own_records_and_nothing_is_said(tmp_path):
    only = set(inputs(typed(scale("local")), ["demo"]))
    assert {SIMILARITY, READING, LATENCY} < only and SCORE not in only
    assert compare(SHIPPED, SHIPPED, only).records == len(only) == 9
    with refused("no reference run is shipped for this scale"):
        compare(tmp_path / "none", tmp_path)
    with refused("has none of the"):
        compare(SHIPPED, tmp_path / "empty")
    counted = compare(SHIPPED, tmp_path / "empty", inputs(typed(scale("local")), ["table1"]))  # of no records
    assert "0 quantities of 0 records agree, 0 do not" in report(counted, SHIPPED, tmp_path / "empty")


def test_no_number_that_rounding_moves_has_to_be_equal():
    """Another machine may round any number that a model computes, so only what is counted is compared exactly."""
    exact = {name for name, metric in METRICS.items() if metric.tolerance == {}}
    assert {"training_tokens", "kv_cache_tokens"} < exact and all(METRICS[name].counted for name in exact)


def test_a_finished_run_is_kept_and_its_claims_are_judged_by_its_own_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = scale("local")
    content["artifacts"] = {name: content["artifacts"][name] for name in ("claims", "figure2_left")}
    config, results = typed(content), tmp_path / "results/local"
    place = folder(tmp_path, config)
    with refused("results/local is no finished run: 2 of 2 files are missing"):
        keep(config, place)
    for name in (SIMILARITY, "tables/claims.csv"):
        (results / name).parent.mkdir(parents=True)
        shutil.copy(SHIPPED / name, results / name)
    keep(config, place)
    assert records(place) == [SIMILARITY] and (place / "tables/claims.csv").is_file()

    assert [Path(file).stem for file, why in redraw(config, place) if why is None] == ["figure2_left", "claims"]
    judged = verdicts(Path("results/reference/local"))
    assert float(judged["simscore-half-8b"]["value"]) in read_json(SHIPPED / SIMILARITY)["result"]["simscore"]

    write_json(results / SIMILARITY, read_json(SHIPPED / SIMILARITY) | {"reason": f"{tmp_path}/results is gone"})
    with refused("names a folder of this machine"):
        keep(config, place)


@pytest.mark.parametrize("profile", ["local", "profiles/local", "profiles/smoke"])
def test_pages_follow_the_local_reference_run(monkeypatch, capsys, profile):
    monkeypatch.chdir(ROOT)
    for name in ("keep", "show"):
        monkeypatch.setattr(reference_run, name, lambda *places, name=name: name)
    pipeline.keep(Namespace(profile=profile, configfile=[], reference=None))
    assert capsys.readouterr().out.split() == (["keep", "show"] if "local" in profile else ["keep"])


def command(*words, cwd):
    return start(sys.executable, "-m", "pipeline", *words, "--profile", "local", cwd=cwd)


def test_a_reference_run_is_drawn_from_and_compared_with(tmp_path):
    place, results = tmp_path / "shipped/local", tmp_path / "results/local"
    for folder_of in (place, results):
        (folder_of / "similarity").mkdir(parents=True)
        shutil.copy(SHIPPED / SIMILARITY, folder_of / SIMILARITY)
    targets = ("results/local/figures/figure2_left.csv", "table2")
    drawn = command("redraw", "--reference", place, *targets, cwd=tmp_path)
    file = "results/reference/local/figures/figure2_left.csv"
    lacking = "results/reference/local/tables/table2.csv is not drawn: the run has no reading/"
    assert drawn.stdout.startswith(f"{file}\n{lacking}") and drawn.stderr == "error: 1 artifacts could not be drawn\n"
    scores = read_json(SHIPPED / SIMILARITY)["result"]["simscore"]
    assert [float(row["value"]) for row in read_csv(tmp_path / file) if row["metric"] == "simscore"] == scores

    assert command("compare", "--reference", place, cwd=tmp_path).returncode == 0
    planted = read_json(SHIPPED / SIMILARITY)
    planted["result"]["simscore"][0] += 0.2
    write_json(results / SIMILARITY, planted)
    wrong = command("compare", "--reference", place, cwd=tmp_path)
    assert wrong.returncode == 1 and "simscore at 0 is " in wrong.stdout and "Traceback" not in wrong.stderr


def test_the_page_and_the_demo_show_what_the_shipped_records_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = read_config(read_profile("local"))
    assert not [why for _, why in redraw(config, folder(ROOT, config), (FIGURE, TABLE, "demo")) if why]
    made = read_artifacts(REDRAWN / "local")
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    counts = report_page.verdicts({"claims": {"lines": read_csv(SHIPPED / CLAIMS)}})
    sentence = f"{result(made)} {counts}"
    assert text.partition(BEGIN)[2].partition(END)[0] == page_part(made[FIGURE], made[TABLE], sentence)
    # And the demo says its own.
    said = result({"demo_result": made["demo_result"]})
    assert "finds 25 of 25 numbers" in said
    metrics = ("ttft_reduction_percent", "passage_kept_percent")
    lines = made["demo_result"]["lines"]
    shown = [row for row in lines if row["variant"] != "baseline" and not row["against"] and row["metric"] in metrics]
    assert len(shown) == 4  # of the variant that the demo trains, and the shipped one
    assert all(f" {float(row['value']):.0f} % [" in said for row in shown)
