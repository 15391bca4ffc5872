"""A table on the command line: train, hold out, predict, draft a schema; and what is refused."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.training.statement import show_epsilon

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))
from made_tables import SCHEMA, patients

FAST = ("--model", "linear", "--sample-rate", "0.1", "--steps", "3")
BUDGET = ("--epsilon", "2", "--delta", "1e-6", "--population", "400")
RECORD = ("--unit", "record")
TABLE = ("--data", "t.csv", "--target", "ill", "--schema", "t.toml")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t.csv").write_text(patients(400))
    (tmp_path / "new.csv").write_text(patients(5, seed=1))
    (tmp_path / "t.toml").write_text(SCHEMA)
    return tmp_path


def train(apportion, *more, table=TABLE, unit=RECORD):
    code, out, err = apportion("train", *table, *FAST, *BUDGET, *unit, "--json", "--out", "run", *more)
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def test_from_a_csv_file_to_predictions(apportion, files):
    run, err = train(apportion)
    assert "run/secret/problems.jsonl says exactly" in err  # also where a script reads the rest
    assert 0 < run["epsilon"] <= 2
    assert run["test_accuracy"] is None
    assert run["data"] == "t.csv"
    assert run["seconds"] is None  # what depends on the drawn records is not published
    assert json.loads((files / "run/results.json").read_text())["runs"][0]["seconds"] is None
    assert "holdout" not in run
    saved = json.loads((files / "run/public/encoding.json").read_text())
    assert (saved["target"], saved["model"]) == ("ill", "linear")

    code, out, err = apportion("predict", "run", "new.csv", "--json", "--out", "predictions.csv")
    assert code == 0, err
    found = json.loads(out)
    assert found["classes"] == ["0", "1"]
    assert set(found["predictions"]) <= {"0", "1"}
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in found["probabilities"])
    header, *lines = (files / "predictions.csv").read_text().splitlines()
    assert header == "ill,probability of 0,probability of 1"
    assert [line.split(",")[0] for line in lines] == found["predictions"]
    predictor = ap.load("run")
    assert predictor.predict("new.csv") == found["predictions"]
    assert predictor.probabilities(files / "new.csv") == pytest.approx(np.array(found["probabilities"]), abs=1e-6)

    (files / "new.csv").write_text("age,sex,dose\n54,M\n54,X,\n")
    code, out, _ = apportion("predict", "run", "new.csv")
    assert (code, out.splitlines()[1]) == (0, ",,")
    assert out.splitlines()[2][0] in "01"


def test_what_is_chosen_for_a_table_is_said_with_its_reason(apportion, files):
    (files / "public.csv").write_text(patients(300, seed=2))
    code, out, err = apportion("train", *TABLE, *BUDGET, *RECORD, "--test", "public.csv", "--out", "run")
    assert code == 0, err
    said = " ".join(err.split())
    assert "Chosen, as nothing was said: model additive: one layer on columns whose numbers are spread" in said
    assert "Chosen, as nothing was said: sample_rate 0.2, steps 200, lr" in said
    results = json.loads((files / "run/results.json").read_text())["runs"][0]
    assert results["model"] == "additive"
    assert results["test_accuracy"] > 0.85  # a single number of two has a curve here
    assert len(ap.load("run").predict("new.csv")) == 5
    code, out, _ = apportion("plan", *TABLE, *BUDGET, *RECORD, "--json")
    assert (code, json.loads(out)["steps"], json.loads(out)["sample_rate"]) == (0, 200, 0.2)


def test_a_public_table_measures_accuracy(apportion, files):
    (files / "public.csv").write_text(patients(100, seed=2))
    assert 0 <= train(apportion, "--test", "public.csv")[0]["test_accuracy"] <= 1


def test_values_of_private_records_change_no_exit_code_and_no_word(apportion, files):
    lines = patients(400).splitlines()
    said = []
    for number, garbage in enumerate(["54,M,1,1", 'x,"y,,9', "1e999,?,nan,3"]):
        (files / "t.csv").write_text("\n".join([lines[0], garbage, *lines[2:]]), encoding="utf-8")
        out = ("--out", f"run{number}")
        code, _, err = apportion("train", *TABLE, *FAST, *BUDGET, *RECORD, "--seed", "0", *out)
        assert code == 0
        said.append(err.replace(f"run{number}", "run"))
    problems = (files / "run2/secret/problems.jsonl").read_text()
    for kind in ("age: out of range", "sex: missing", "ill: unknown category"):
        assert json.dumps({"while_reading": kind, "times": 1}) in problems
    assert len(set(said)) == 1


@pytest.mark.parametrize("holdout", [(), ("--holdout", "0.5")])
@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_table_without_records_or_users_looks_like_one_with_some(unit, holdout, apportion, files):
    (files / "t.toml").write_text('unit = "patient"\n' + SCHEMA)
    header, ends = "patient,age,sex,dose,ill\n", []
    for number, rows in enumerate(["", ",50,M,1,1\n", "p,50,M,1,1\n"]):
        (files / "t.csv").write_text(header + rows)
        out = ("--out", f"run{number}", "--no-count-usable")
        code, _, err = apportion("train", *TABLE, *FAST, *BUDGET, "--unit", unit, *holdout, *out)
        assert "error:" not in err
        ends.append((code, len(err.splitlines())))
    assert len(set(ends)) == 1
    assert ends[0][0] == 0


def test_a_number_is_predicted_in_its_own_range(apportion, files):
    text = patients(300, header="age,sex,dose,cost")
    (files / "t.csv").write_text(text)
    (files / "t.toml").write_text(
        SCHEMA.replace("[columns.ill]\ncategories = [0, 1]", "[columns.cost]\nrange = [18, 140]")
    )
    table = ("--data", "t.csv", "--target", "cost", "--schema", "t.toml")
    run, _ = train(apportion, "--holdout", "0.3", "--holdout-epsilon", "0.8", table=table)
    assert run["holdout"]["metric"] == "mae"
    assert 0 <= run["holdout"]["value"] == run["test_mae"] <= 122
    assert run["test_accuracy"] is None
    code, out, _ = apportion("predict", "run", "t.csv", "--json")
    assert code == 0
    assert all(18 <= one <= 140 for one in json.loads(out)["predictions"])
    with pytest.raises(ap.InvalidArgument, match="no probabilities"):
        ap.load("run").probabilities("t.csv")


@pytest.fixture
def ledger(apportion, files):
    def declare(epsilon, unit="record"):
        limit = ("--name", "p", "--epsilon", epsilon, "--delta", "1e-5", "--unit", unit, "--rule", "sum")
        assert apportion("ledger", "limit", "p.sqlite", *limit)[0] == 0
        return files / "p.sqlite"

    return declare


def spent(path):
    books = Ledger.open(path)
    found = [(run.terms, run.cost.main) for run in books.runs()]
    books.close()
    return found


def test_training_and_score_share_the_budget(apportion, files, ledger):
    path = ledger("3")
    run, err = train(apportion, "--holdout", "0.25", "--holdout-epsilon", "0.4", "--ledger", "p.sqlite")
    (_, trained), (terms, score) = spent(path)
    assert terms == "statistic: mean"
    assert score == 0.4
    assert trained <= 1.6
    assert run["epsilon"] == pytest.approx(trained + score, abs=1e-6)
    assert run["target_epsilon"] == 2
    assert run["population"] == 300
    held = json.loads((files / "run/public/holdout.json").read_text())
    assert held["epsilon"] == 0.4
    assert run["test_accuracy"] == held["value"]
    assert run["test_accuracy_error"] == held["standard_error"] < 0.1
    assert "Noisy score of held-out records: accuracy" in err
    facts = json.loads((files / "run/public/privacy.json").read_text())
    assert facts["holdout"] == run["holdout"]
    assert facts["data_set"]["runs_admitted"] == 2, "the ledger as it is after the score"
    assert facts["data_set"] == run["data_set"]
    assert facts["data_set"]["epsilon_admitted"] == pytest.approx(trained + score)
    code, out, _ = apportion("train", "--resume", "run", "--json")
    assert code == 0
    assert len(spent(path)) == 2, "a score is asked once"
    assert json.loads(out.splitlines()[-1])["epsilon"] == run["epsilon"]
    (files / "run/public/holdout.json").unlink()
    code, _, err = apportion("train", "--resume", "run", "--json")
    assert (code, len(spent(path))) == (0, 2), "also if its answer was lost"
    assert "No score of the held-out records was told" in err


def test_one_epsilon_is_shown_everywhere(apportion, files):
    """What the run charged, for training and for the score, with its parts."""
    run, _ = train(apportion, "--holdout", "0.25", "--holdout-epsilon", "0.8")
    total, parts = run["epsilon"], run["parts"]
    assert parts["score of held-out records"] == 0.8
    assert total == pytest.approx(sum(parts.values()))
    facts = json.loads((files / "run/public/privacy.json").read_text())
    assert (facts["epsilon"], facts["parts"], facts["target_epsilon"]) == (total, parts, 2)
    page = (files / "run/public/privacy.md").read_text()
    assert f"{show_epsilon(total)}, of a budget of 2" in page
    assert f"{show_epsilon(parts['training'])} (training) + 0.8000" in page
    assert f"{total + 0.0005:.2f}"[:4] in run["statement"]
    code, out, err = apportion("account", "run", "--json")
    account = json.loads(out)
    assert (code, account["held_out_score"]) == (0, 0.8), err
    assert account["guarantee"] == account["stated"] == total
    assert account["recomputed"] == pytest.approx(total, rel=0.005)
    nist = json.loads(apportion("statement", "run", "--format", "nist")[1])
    assert nist["guarantee"]["privacy_parameters"]["epsilon"] == total
    assert nist["algorithms"]["utility"]["noisy_score_of_held_out_records"]["score"] == run["test_accuracy"]
    registry = json.loads(apportion("statement", "run", "--format", "registry")[1])["deployment"]
    assert registry["privacy_loss"]["privacy_parameters"]["epsilon"] == total
    assert apportion("statement", "run", "--out", "page.html")[0] == 0
    card = apportion("statement", "run", "--format", "card")[1]
    assert f'"epsilon": {total}' in card
    for text in (registry["basic"]["description"], (files / "page.html").read_text(), card):
        assert "Noisy score of held-out records" in text
    assert "Noisy held-out accuracy" in (files / "run/report.html").read_text()
    (files / "run/public/privacy.json").write_text(json.dumps(facts | {"holdout": {"epsilon": 0.1}}))
    code, _, err = apportion("account", "run")
    assert (code, "0.8 was charged" in err) == (2, True)


def test_a_score_of_noise_is_called_none(apportion, files):
    run, err = train(apportion, "--holdout", "0.2", "--holdout-epsilon", "0.001")
    assert (run["test_accuracy"], run["holdout"]["useful"]) == (None, False)
    assert run["test_accuracy_error"] >= 0.1
    assert "No score: the noise" in err
    assert "no score" in err
    for form in ("card", "nist", "registry"):
        assert "No score: the noise" in apportion("statement", "run", "--format", form)[1]
    assert "No score: the noise" in (files / "run/report.html").read_text()


def test_a_score_that_does_not_fit_is_refused_before_anything_is_charged(apportion, files, ledger):
    path = ledger("1.95")
    more = ("--holdout", "0.2", "--ledger", "p.sqlite", "--out", "refused")
    code, _, err = apportion("train", *TABLE, *FAST, *BUDGET, *RECORD, *more)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "does not cover" in err
    assert spent(path) == []
    assert not (files / "refused").exists()


def test_users_are_held_out_as_a_whole(apportion, files, ledger):
    ledger("2", "user")
    (files / "t.csv").write_text(patients(400, header="patient,age,sex,dose,ill"))
    (files / "t.toml").write_text('unit = "patient"\n' + SCHEMA)
    run, _ = train(apportion, "--holdout", "0.2", "--ledger", "p.sqlite", unit=("--unit", "user"))
    assert run["unit"] == "user"
    assert run["holdout"]["epsilon"] == pytest.approx(0.1)


def test_a_refused_run_leaves_no_key(apportion, files):
    code, _, err = apportion(
        "train", *TABLE, *FAST, *BUDGET, *RECORD, "--holdout", "0.2", "--out", "new/run", "--optimizer", "nonsense"
    )
    assert code == 2, err
    assert not (files / "new").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--target", "nothing"), "no such column"),
        (("--schema", "none.toml"), "No such file"),
        (("--schema", "t.csv"), "not valid TOML"),
        (("--data", "none.csv"), "no such file"),
        (("--data", "digits"), "describes the columns of a CSV"),
        (("--test", "bad.csv"), "declared public, and in record 1"),
        (("--test", "none.csv"), "no such file"),
        (("--holdout", "1"), "strictly between 0 and 1"),
        (("--holdout", "0.2", "--holdout-epsilon", "2"), "a part of --epsilon 2"),
        (("--holdout", "0.2", "--test", "t.csv"), "without public records"),
        (("--holdout", "0.2", "--recipe", "non-private"), "private training"),
        (("--holdout-epsilon", "0.2"), "Pass --holdout"),
        (("--holdout", "0.2", "--plan", "plan.json"), "paid from --epsilon"),
        (("--holdout", "0.2", "--unit", "user", "--user-ids", "ids.txt"), "an entry for every record"),
        (("--holdout", "0.2", "--unit", "user"), "whose each record is"),
        (("--model", "cnn"), "needs images"),
        (("--user-column", "age", "--unit", "user"), "unit = "),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(more, words, apportion, files):
    (files / "bad.csv").write_text("age,sex,dose,ill\n54,M,1,2\n")
    code, _, err = apportion("train", *TABLE, *FAST, *BUDGET, *RECORD, *more)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert words in err
    assert not (files / "runs").exists()


@pytest.mark.parametrize("left_out", ["--target", "--schema"])
def test_both_must_be_said(left_out, apportion, files):
    said = [one for pair in zip(TABLE[::2], TABLE[1::2], strict=True) if pair[0] != left_out for one in pair]
    code, _, err = apportion("train", *said, *BUDGET, *RECORD)
    assert code == 2
    assert f"Pass {left_out}" in err
    code, _, err = apportion("train", "--data", "t.csv", *BUDGET, *RECORD)
    assert (code, "must be declared" in err) == (2, True)


def test_tables_can_be_compared(apportion, files):
    (files / "public.csv").write_text(patients(50, seed=2))
    (files / "t.csv").write_text(patients(200) + "54,M,1,5\n")
    (files / "e.toml").write_text(
        'data = "t.csv"\nlr = 2.0\nrecipe = ["non-private", "abadi"]\nepsilon = 2.0\ndelta = 1e-6\nunit = "record"\npopulation = 200\n'
        'sample_rate = 0.1\nsteps = 2\n[table]\ntarget = "ill"\nschema = "t.toml"\ntest = "public.csv"\n'
    )
    code, out, err = apportion("compare", "e.toml", "--json", "--model", "linear")
    assert code == 0, err
    assert all(0 <= run["test_accuracy"] <= 1 for run in json.loads(out.splitlines()[-1])["runs"])
    assert "runs/*/secret/problems.jsonl says exactly" in err


@pytest.fixture
def run(apportion, files):
    train(apportion)
    return files / "run"


def refused(apportion, words, *arguments):
    code, _, err = apportion("predict", *(arguments or ("run", "new.csv")))
    assert (code, len(err.splitlines())) == (2, 1), err
    assert words in err


def test_predictions_of_a_folder_that_does_not_fit_are_refused(apportion, files, run):
    refused(apportion, "no such file", "run", "none.csv")
    refused(apportion, "holds no public/encoding.json", "folder", "new.csv")
    (files / "other.csv").write_text("age,sex\n1,M\n")
    refused(apportion, "lacks 'dose'", "run", "other.csv")
    encoding = run / "public/encoding.json"
    usual = json.loads(encoding.read_text())
    for change in (
        {"model": "mlp"},
        {"schema": usual["schema"] | {"columns": {**usual["schema"]["columns"], "x": {"range": [0, 1]}}}},
    ):
        encoding.write_text(json.dumps(usual | change))
        (files / "x.csv").write_text("age,sex,dose,x\n1,M,1,1\n")
        refused(apportion, "another model", "run", "x.csv")
    for content in ("", "{}", "[]", json.dumps(usual | {"format": 9}), json.dumps(usual | {"target": "none"})):
        encoding.write_text(content)
        refused(apportion, "damaged")
    encoding.write_text(json.dumps(usual | {"model": None}))
    refused(apportion, "how its model is built")
    encoding.write_text(json.dumps(usual | {"temper": {"nonsense": 1}}))
    refused(apportion, "damaged")
    encoding.write_text(json.dumps(usual))
    (run / "public/averaged.safetensors").write_bytes(b"nonsense")
    refused(apportion, "cannot be read")
    shutil.rmtree(run / "public")
    (run / "public").mkdir()
    encoding.write_text(json.dumps(usual))
    refused(apportion, "no weights")


def test_a_schema_is_drafted_from_public_data(apportion, files):
    code, out, err = apportion("data", "schema", "t.csv", "--from-public", "new.csv", "--out", "draft.toml")
    assert (code, out) == (0, ""), err
    assert ap.tables.Schema.read(files / "draft.toml").columns["sex"].categories == ("F", "M")
    (files / "ids.csv").write_text(patients(30, header="visit,age,sex,dose,ill"))
    code, out, _ = apportion("data", "schema", "ids.csv", "--from-public", "ids.csv", "--decimal", ".")
    assert (code, "# visit is ignored" in out, 'ignore = ["visit"]' in out) == (0, True, True)
    code, _, err = apportion("data", "schema", "t.csv", "--from-public", "new.csv", "--out", "draft.toml")
    assert (code, "a file already" in err) == (2, True)


def test_a_schema_is_drafted_privately(apportion, files):
    limit = ("--name", "p", "--epsilon", "1", "--delta", "1e-5", "--unit", "record", "--rule", "sum")
    assert apportion("ledger", "limit", "p.sqlite", *limit)[0] == 0
    asked = ("--numbers", "age:0:120", "--texts", "sex", "--categories", "ill=0,1", "--ledger", "p.sqlite")
    line = ("data", "schema", "t.csv", "--private", "--epsilon", "0.7", "--delta", "1e-6", *asked)
    code, out, err = apportion(*line)
    assert code == 0, err
    (files / "draft.toml").write_text(out)
    schema = ap.tables.Schema.read(files / "draft.toml")
    assert schema.columns["ill"].categories == ("0", "1")
    assert "dose" in schema.ignore
    assert "epsilon = 0.7 and delta = 1e-06" in out
    assert "charged to p.sqlite" in err
    _, _, err = apportion("data", "schema", "t.csv", "--private", "--epsilon", "0.7", "--numbers", "age:0:120")
    assert "has spent epsilon = 0.7, and nobody has recorded it" in err
    code, _, err = apportion(*line)
    assert (code, "does not cover" in err) == (2, True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "either from public data or privately"),
        (("--private", "--from-public", "new.csv"), "either from public data or privately"),
        (("--from-public", "new.csv", "--epsilon", "1"), "costs nothing"),
        (("--private", "--numbers", "age:0:1"), "your decision"),
        (("--private", "--epsilon", "1"), "nothing to ask"),
        (("--private", "--epsilon", "1", "--numbers", "age:0"), "NAME:LOW:HIGH"),
        (("--private", "--epsilon", "1", "--numbers", "age:a:b"), "NAME:LOW:HIGH"),
        (("--private", "--epsilon", "1", "--categories", "sex"), "NAME=A,B"),
    ],
)
def test_a_draft_that_makes_no_sense_is_refused(more, words, apportion, files):
    code, _, err = apportion("data", "schema", "t.csv", *more)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert words in err


def test_a_metric_without_records_to_measure_on_is_refused(apportion, files):
    for more, words in (
        (("--metric", "auc"), "no public records"),
        (("--evaluate-every", "2"), "no public records"),
        (("--metric", "auc", "--holdout", "0.2"), "scored by accuracy, or by the mean absolute"),
    ):
        line = ("train", *TABLE, *FAST, *BUDGET, *RECORD, *more, "--out", "new")
        code, _, err = apportion(*line)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert words in err
        assert "--test" in err
        assert not (files / "new").exists()


def test_a_loss_that_was_said_keeps_the_weights_of_the_schema(apportion, files):
    (files / "t.toml").write_text("loss.weights = { 1 = 4 }\n" + SCHEMA)
    weighted, _ = train(apportion, "--seed", "0")
    for number, name in enumerate(("cross-entropy", "bce")):  # of two classes, one is the other
        run, _ = train(apportion, "--seed", "0", "--loss", name, "--out", f"run{number}")
        assert (run["loss"], run["loss_weights"]) == (weighted["loss"], [1.0, 4.0])
        assert (files / f"run{number}/public/weights.safetensors").read_bytes() == (
            files / "run/public/weights.safetensors"
        ).read_bytes()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--loss", "mse"), "'ill' is one of 2 categories. Choose from: bce, cross-entropy"),
        (("--loss", "bce", "--target", "age"), "'age' is a number of a range"),
        (("--loss", "torch.nn.functional:cross_entropy"), "the schema declares loss.weights, and your own function"),
        (
            ("--model", "own_models:three"),
            r"own_models:three with outputs (1, 3)': the target 'ill' needs one output for each",
        ),
    ],
)
def test_losses_and_models_that_do_not_fit_the_target_are_refused(more, words, apportion, files, monkeypatch):
    weights = "" if "age" in more else "loss.weights = { 1 = 4 }\n"
    (files / "t.toml").write_text(weights + SCHEMA)
    (files / "own_models.py").write_text("import torch\n\ndef three():\n    return torch.nn.Linear(5, 3)\n")
    monkeypatch.syspath_prepend(str(files))
    code, _, err = apportion("train", *TABLE, *FAST, *BUDGET, *RECORD, "--out", "new", *more)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert words in err
    assert not (files / "new").exists()


def test_a_plan_of_a_table_is_what_training_executes(apportion, files):
    code, out, err = apportion("plan", *TABLE, *BUDGET, *RECORD, "--json")
    assert code == 0, err
    planned = json.loads(out)
    assert (planned["sample_rate"], planned["steps"]) == (0.2, 200)
    assert json.loads(apportion("plan", "--data", "t.csv", *BUDGET, *RECORD, "--json")[1]) == planned
    code, _, err = apportion("plan", "--data", "digits", *TABLE[2:], *BUDGET)
    assert (code, "describes the columns of a CSV" in err) == (2, True)


def test_other_commands_read_tables_too_or_say_that_they_do_not(apportion, files):
    (files / "public.csv").write_text(patients(40, seed=2))
    code, out, err = apportion("check", "--model", "linear", *TABLE, "--json")
    assert code == 0, err
    assert json.loads(out)["parameters"] == 12
    code, out, err = apportion("audit", "replay", "--model", "linear", *TABLE, "--steps", "2", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True), err
    dry = ("--dry-run", "t.csv", *TABLE[2:], "--model", "linear", "--epsilon", "1")
    line = ("advise", "--population", "400", "--sample-rate", "0.1", "--steps", "2", *dry, "--json")
    code, out, err = apportion(*line, "--test", "public.csv")
    assert code == 0, err
    assert 0 <= json.loads(out)["candidates"][0]["accuracy"] <= 1
    assert "Pass --test too" in apportion(*line)[2]
    assert "no data of yours is read" in apportion("advise", "--population", "400", *TABLE[2:])[2]
    assert "does not read tables" in apportion("tune", "--data", "t.csv", "--trials", "2")[2]
    assert "Pass --data too" in apportion("audit", "run", *TABLE[2:])[2]
    assert (
        "nothing"
        in apportion("check", "--model", "linear", "--data", "t.csv", "--schema", "t.toml", "--target", "nothing")[2]
    )


def test_predictions_carry_the_ids_of_their_records(apportion, files):
    (files / "t.csv").write_text(patients(400, header="visit,age,sex,dose,ill"))
    (files / "new.csv").write_text("visit,age,sex,dose\n7,50,M,1\n9,x,M,y\n")
    (files / "t.toml").write_text('id = "visit"\n' + SCHEMA)
    train(apportion)
    code, out, _ = apportion("predict", "run", "new.csv")
    first, second, third = out.splitlines()
    assert (code, first) == (0, "visit,ill,probability of 0,probability of 1")
    assert (second.split(",")[0], third) == ("7", "9,,,"), "nothing is known of the second"
    code, out, _ = apportion("predict", "run", "new.csv", "--id", "age", "--json", "--out", "p.csv")
    assert (json.loads(out)["id"], json.loads(out)["ids"]) == ("age", ["50", "x"])
    refused(apportion, "no such column", "run", "new.csv", "--id", "nothing")
    refused(apportion, "there is a file already", "run", "new.csv", "--out", "p.csv")
    refused(apportion, "cannot be written. End it in .csv", "run", "new.csv", "--out", "p.xlsx")
    (files / "run/public/encoding.json").unlink()
    refused(apportion, "its run has not ended", "run", "new.csv")


def test_a_comparison_makes_no_folder_that_is_called_like_a_file(apportion, files):
    code, _, err = apportion("compare", *TABLE, *FAST, *BUDGET, *RECORD, "--out", "t.xlsx")
    assert (code, ".csv or .tex" in err, (files / "t.xlsx").exists()) == (2, True, False)
