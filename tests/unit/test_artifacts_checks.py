"""Cells beside what is expected of them: a wrong number fails, whoever reads the table is told, and mistakes are refused."""

import csv
import subprocess
import sys

import pytest
from tests.unit.artifact_helpers import scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.make import make_artifact
from swiftkv.errors import UserError

KL = {"what": "KL", "artifact": "recipes", "column": "kl", "where": {"variant": "swiftkv-50"}}
EXPECTED = KL | {"expected": 0.5, "tolerance": 0.02}


@pytest.fixture
def checked(tmp_path):
    """Makes checks of a table whose only number is `kl`; gives the CSV's lines, the Markdown, and what a reader is told."""

    def make(*checks, kl=0.5):
        config = scale("local")
        config["artifacts"]["demo"]["checks"] = list(checks)
        contents.check(typed(config))
        entry = contents.resolve(typed(config), "demo")
        assert contents.needs(typed(config), "demo") == {"tables": ["results/local/tables/recipes.csv"]}
        table = tmp_path / "recipes.csv"
        table.write_text(f"variant,kl,note\nswiftkv-50,{kl},x\nswiftkv-50-tuned,,\n")
        outputs = [tmp_path / f"demo.{form}" for form in ("csv", "tex", "md", "html", "json")]
        make_artifact(entry, {"tables": [str(table)]}, outputs)
        told = subprocess.run(
            [sys.executable, "-m", "pipeline.artifacts.checked", outputs[0]], capture_output=True, text=True
        )
        return list(csv.DictReader(outputs[0].open())), outputs[2].read_text(), told

    return make


@pytest.mark.parametrize("kl", [0.48, 0.5, 0.5199])
def test_a_value_within_its_tolerance_passes(checked, kl):
    (line,), page, told = checked(EXPECTED, kl=kl)
    assert line["verdict"] == "passed" and "passed" in page
    assert told.returncode == 0 and told.stdout.startswith("1 of 1 checks passed")


@pytest.mark.parametrize("kl", [0.4799, 0.5201, 5.0, "nan", ""])
def test_a_wrong_number_fails_and_is_named(checked, kl):
    lines, page, told = checked(EXPECTED, KL | {"least": -1}, kl=kl)
    assert lines[0]["verdict"] == "FAILED" and "FAILED" in page
    assert told.returncode == 1
    assert told.stdout.splitlines()[0].startswith(
        f"FAILED  KL: {'no value' if kl in ('', 'nan') else kl}, expected 0.48 to 0.52"
    )
    assert " of 2 checks passed" in told.stdout.splitlines()[-1]


def test_a_bound_may_be_open(checked):
    lines, page, _ = checked(KL | {"least": 0.4}, KL | {"most": 0.4}, KL | {"least": 0.4, "most": 0.6})
    assert [line["verdict"] for line in lines] == ["passed", "FAILED", "passed"]
    assert "at least 0.4" in page and "at most 0.4" in page and "0.4 to 0.6" in page


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (KL, "needs either expected and tolerance, or least, most or both"),
        (EXPECTED | {"least": 0}, "needs either expected and tolerance, or least, most or both"),
        (KL | {"expected": 0.5}, "expected and tolerance go together"),
        (
            EXPECTED | {"artifact": "recipies"},
            r"'recipies' is not defined under artifacts \(did you mean 'recipes'\?\)",
        ),
        (EXPECTED | {"artifact": "demo"}, "'demo' is not defined under artifacts"),
        (EXPECTED | {"artifact": "tableB5"}, "tableB5 is not made at this scale: no model of this scale plays"),
        (EXPECTED | {"where": {"variant": "swiftkv-5"}}, "recipes.csv has no row with variant swiftkv-5; correct"),
        (EXPECTED | {"where": {}}, "where"),
        (EXPECTED | {"column": "lk"}, "recipes.csv has no column 'lk'; correct the check 'KL'"),
        (EXPECTED | {"column": "note"}, "note of recipes.csv is 'x', which is no number"),
    ],
)
def test_a_check_of_nothing_is_refused(checked, check, sentence):
    with pytest.raises(UserError, match=sentence):
        checked(check)


def test_a_table_that_is_not_made_is_one_sentence(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "pipeline.artifacts.checked", tmp_path / "demo.csv"], capture_output=True, text=True
    )
    assert told.returncode == 1 and told.stderr.startswith("error: ") and "has not been made" in told.stderr
