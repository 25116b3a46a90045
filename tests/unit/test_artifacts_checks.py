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
    """Makes checks of a table with one number, `kl`; gives the CSV's verdicts and what `pipeline.artifacts.checked` says."""

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
        return [line["verdict"] for line in csv.DictReader(outputs[0].open())], told(outputs[0])

    return make


def told(table):
    return subprocess.run([sys.executable, "-m", "pipeline.artifacts.checked", table], capture_output=True, text=True)


@pytest.mark.parametrize("kl", [0.48, 0.5199, 0.4799, 0.5201, "nan", ""])
def test_a_wrong_number_fails_and_is_named(checked, kl):
    passes = kl in (0.48, 0.5199)
    verdicts, said = checked(EXPECTED, KL | {"least": -1}, kl=kl)
    assert verdicts[0] == ("passed" if passes else "FAILED") and said.returncode == (0 if passes else 1)
    assert passes or said.stdout.startswith("FAILED  KL: ")


def test_a_bound_may_be_open(checked):
    verdicts, _ = checked(KL | {"least": 0.4}, KL | {"most": 0.4}, KL | {"least": 0.4, "most": 0.6})
    assert verdicts == ["passed", "FAILED", "passed"]


@pytest.mark.parametrize(
    ("check", "named"),
    [
        (KL, "least"),
        (KL | {"expected": 0.5}, "tolerance"),
        (EXPECTED | {"artifact": "recipies"}, "'recipies'"),
        (EXPECTED | {"artifact": "tableB5"}, "tableB5"),
        (EXPECTED | {"where": {"variant": "swiftkv-5"}}, "swiftkv-5"),
        (EXPECTED | {"where": {}}, "where"),
        (EXPECTED | {"column": "lk"}, "'lk'"),
        (EXPECTED | {"column": "note"}, "'x'"),
    ],
)
def test_a_check_of_nothing_is_refused(checked, check, named):
    with pytest.raises(UserError, match=named):
        checked(check)


def test_a_table_that_is_not_made_is_one_sentence(tmp_path):
    said = told(tmp_path / "demo.csv")
    assert said.returncode == 1 and said.stderr.startswith("error: ") and "demo.csv" in said.stderr
