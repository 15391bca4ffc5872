"""`apportion statement`, tables of a comparison, and what is said about further runs on the same records."""

import csv
import json

import pytest

from apportion.cli.output import next_steps
from apportion.reporting.result import RunResult

TRAIN = ("train", "--data", "digits", "--model", "linear", "--sample-rate", "0.01", "--steps", "2", "--lr", "1")
BUDGET = ("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437", "--recipe", "abadi")
OWN = """
import torch, apportion as ap
def data():
    inputs, targets = torch.randn(50, 4), torch.randint(0, 2, (50,))
    return (inputs, targets), ap.Public((inputs[:9], targets[:9]))
def model():
    return torch.nn.Linear(4, 2)
"""
LIMIT = ("--name", "ward", "--epsilon", "9", "--delta", "1e-4", "--unit", "record")


@pytest.fixture
def own(tmp_path, request):
    """A module of one's own, under a name that no other test has imported."""
    name = f"mine_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    return ("train", "--data", f"{name}:data", "--model", f"{name}:model", "--sample-rate", "0.1", "--steps", "2")


def test_a_run_is_written_in_every_form(apportion, tmp_path):
    assert apportion(*TRAIN, *BUDGET, "--out", "run")[0] == 0
    code, out, _ = apportion("statement", "run", "--out", "page.html")
    assert (code, out) == (0, "page.html\n")
    assert "Privacy statement: run" in (tmp_path / "page.html").read_text(encoding="utf-8")
    code, out, _ = apportion("statement", "run", "--format", "nist")
    stated = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text(encoding="utf-8"))
    assert json.loads(out)["guarantee"]["privacy_parameters"]["epsilon"] == stated["epsilon"]
    assert json.loads(apportion("statement", "run", "--format", "registry")[1])["url_slug"] == "run"
    card = apportion("statement", "run", "--format", "card")[1]
    assert "- data: digits" in card
    for wrong in (("run", "--out", "page.pdf"), ("nowhere",), ("run", "--format", "card", "--out", "card.html")):
        code, out, err = apportion("statement", *wrong)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1


def test_a_comparison_is_exported(apportion, tmp_path):
    compare = ("compare", *TRAIN[1:], *BUDGET, "--seed", "1")
    code, _, err = apportion(*compare, "--out", "tables/one.tex")
    assert code == 0
    assert "tables/one.tex" in err
    assert "abadi & " in (tmp_path / "tables" / "one.tex").read_text(encoding="utf-8")
    folder = tmp_path / "runs" / "compare-digits"
    assert (folder / "results.json").exists()
    assert apportion("report", str(folder), "--out", "one.csv")[0] == 0
    with (tmp_path / "one.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["recipe"], row["private"]) == ("abadi", "False")
    code, out, err = apportion("report", str(folder), "--out", "one.docx")
    assert (code, out) == (2, "")
    assert "out='one.docx'" in err
    assert "End it in .html" in err


def test_without_a_ledger_further_runs_cost_more():
    (said,) = next_steps(RunResult(data="mine:data"))
    assert "together they cost more than one, at most the sum of their ε and of their δ" in said


def test_with_a_ledger_further_runs_stay_within_its_limit(apportion, own):
    assert apportion("ledger", "limit", "ward.sqlite", *LIMIT)[0] == 0
    code, out, err = apportion(*own, *BUDGET[:6], "--population", "50", "--out", "run", "--ledger", "ward.sqlite")
    assert code == 0
    assert "Further runs on ward are admitted while all of them together stay within ε = 9, δ = 0.0001" in out
    assert "the sum" not in out
    assert "The rule gaussian is wasteful for these runs" in err
    code, out, _ = apportion("ledger", "show", "ward.sqlite")
    assert "declare the ledger of the next data set with --rule sum" in out
    facts = json.loads(apportion("ledger", "show", "ward.sqlite", "--json")[1])
    assert facts["advice"].startswith("The rule gaussian is wasteful")
