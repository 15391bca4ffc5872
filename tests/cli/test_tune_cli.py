"""`apportion tune`, as a person and as a script use it."""

import json

import pytest

from apportion.tuning import private_search

pytest.importorskip("optuna")
PUBLIC = ("tune", "--data", "digits", "--model", "linear", "--epsilon", "3", "--steps", "6", "--vary", "lr=0.5,2")
PRIVATE = (
    *("tune", "--data", "tuned_here:data", "--model", "tuned_here:model", "--vary", "lr=0.5,2", "--recipe", "abadi"),
    *("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "40", "--sample-rate", "1"),
    *("--steps", "3", "--ledger", "books.sqlite", "--expected-trials", "3"),
)
LIMIT = ("ledger", "limit", "books.sqlite", "--name", "mine", "--delta", "1e-4", "--unit", "record", "--rule", "sum")


@pytest.fixture
def mine(apportion, tmp_path, monkeypatch):
    (tmp_path / "tuned_here.py").write_text(
        "import torch, apportion\n"
        "def pair(n): return torch.rand(n, 3), torch.zeros(n, dtype=torch.long)\n"
        "def data(): return pair(40), apportion.Public(pair(20))\n"
        "def no_test(): return pair(40), None\n"
        "def model(): return torch.nn.Linear(3, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(private_search.secrets, "randbits", lambda bits: 0)  # one trial
    assert apportion(*LIMIT, "--epsilon", "4")[0] == 0
    return apportion


def last(out):
    return json.loads(out.strip().splitlines()[-1])


def test_every_recipe_has_the_same_trials_on_public_data(apportion, tmp_path):
    code, out, err = apportion(*PUBLIC, "--trials", "2", "--recipe", "abadi", "--recipe", "lin-decay", "--json")
    assert code == 0, err
    found = last(out)
    assert "free: public data" in found["price"]
    settings = {name: [] for name in ("abadi", "lin-decay")}
    for trial in found["trials"]:
        settings[trial["settings"]["recipe"]].append(trial["settings"]["lr"])
    assert settings["abadi"] == settings["lin-decay"]
    assert len(settings["abadi"]) == 2
    assert "trial 4 of 4" in err
    assert json.loads((tmp_path / "runs/tune-digits/tuned.json").read_text()) == found


def test_a_person_is_told_how_to_use_what_was_found(apportion):
    code, out, _ = apportion(*PUBLIC, "--trials", "1", "--vary", "clip.start=0.5,1", "--recipe", "lin-decay")
    assert code == 0
    assert "free: public data" in out
    assert "apportion train --data YOUR_DATA --recipe lin-decay --lr" in out
    assert "--set clip.start=" in out


def test_a_search_on_public_data_goes_on(apportion):
    assert apportion(*PUBLIC, "--trials", "1", "--out", "found")[0] == 0
    code, out, err = apportion(*PUBLIC, "--trials", "2", "--out", "found", "--resume", "--json")
    assert code == 0
    assert len(last(out)["trials"]) == 2
    assert "trial 1 of 2" not in err


def test_the_price_is_shown_before_anything_is_charged(mine, tmp_path):
    code, out, _ = mine(*PRIVATE, "--dry-run")
    assert code == 0
    assert "one run instead" in out
    assert "books.sqlite: the search costs ε = " in out
    code, out, _ = mine(*PRIVATE, "--dry-run", "--json")
    facts = last(out)
    assert facts["trial_epsilon"] < facts["epsilon"] <= 3
    assert facts["trial_noise"] > facts["run_noise"]
    assert facts["ledger"]["fits"]
    assert last(mine("ledger", "show", "books.sqlite", "--json")[1])["runs"] == []
    assert not (tmp_path / "runs").exists()
    code, out, _ = mine(*PUBLIC, "--trials", "3", "--dry-run")
    assert "3 trials for each of 1 recipes, 2 candidates. free: public data" in out


def test_a_private_search_is_charged_and_its_winner_can_be_verified(mine, tmp_path):
    code, out, err = mine(*PRIVATE, "--json")
    assert code == 0, err
    found = last(out)
    assert found["trials"] == []
    assert found["statement"]["epsilon"] == found["price"]["epsilon"] <= 3
    assert "is drawn and not shown" in err
    runs = last(mine("ledger", "show", "books.sqlite", "--json")[1])["runs"]
    assert runs[0]["amounts"]["main"] == found["price"]["epsilon"]
    assert "a search" in mine("ledger", "show", "books.sqlite")[1]
    winner = "runs/tune-tuned_here-data/winner"
    code, out, _ = mine("account", winner)
    assert code == 0
    assert "for a selection among trials like this one" in " ".join(out.split())
    statement = tmp_path / winner / "public/privacy.json"
    facts = json.loads(statement.read_text())
    facts["epsilon"] = found["price"]["trial_epsilon"] * 1.01
    statement.write_text(json.dumps(facts))
    code, _, err = mine("account", winner)
    assert code == 1
    assert "less than the best of such trials costs" in err
    facts["search"] = {"expected_trials": "many"}
    statement.write_text(json.dumps(facts))
    code, _, err = mine("account", winner)
    assert code == 2
    assert "its part about the search is damaged" in err


def test_more_than_there_is_is_refused_and_nothing_is_left(mine, tmp_path):
    assert mine(*PRIVATE)[0] == 0
    code, _, err = mine(*PRIVATE, "--out", "second")
    assert code == 2
    assert "Nothing was charged" in err
    assert not (tmp_path / "second").exists()


def test_a_private_search_goes_on(mine):
    code, out, _ = mine(*PRIVATE, "--out", "found")
    assert code == 0
    assert "Winner    found/winner" in out
    code, again, _ = mine(*PRIVATE, "--out", "found", "--resume")
    assert (code, again) == (0, out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*PUBLIC,), "trials/expected_trials"),
        ((*PUBLIC, "--trials", "2", "--expected-trials", "3"), "trials/expected_trials"),
        ((*PUBLIC, "--trials", "2", "--resume"), "resume=True"),
        ((*PUBLIC[:-2], "--trials", "2"), "nothing to choose from"),
        ((*PUBLIC, "--trials", "2", "--vary", "lr"), "NAME=VALUE"),
        ((*PUBLIC, "--trials", "2", "--vary", "lr=1"), "was given before"),
        ((*PUBLIC, "--trials", "2", "--vary", "rate=1"), "no such setting"),
        ((*PUBLIC, "--trials", "2", "--ledger", "books.sqlite"), "a search on public data is free"),
        ((*PRIVATE[:-4], "--expected-trials", "3"), "charged, as a whole"),
        ((*PRIVATE[:-2], "--trials", "3"), "nobody declared this data public"),
        ((*PRIVATE, "--public"), "declared public, and a search on it is free"),
        ((*PRIVATE, "--distribution", "poisson"), "distribution='poisson'"),
        ((*PRIVATE, "--distribution", "-1"), "distribution=-1.0"),
        (("tune", "--data", "tuned_here:no_test", *PRIVATE[3:]), "no public test part"),
        (("tune", "--trials", "3"), "data=None"),
    ],
)
def test_bad_input_is_one_line(mine, tmp_path, arguments, words):
    code, _, err = mine(*arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
