"""`apportion plan --out` and `apportion train --plan`: one plan, written once, executed as it is."""

import json

import pytest

import apportion as ap

BUDGET = ["--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437"]
LENGTH = ["--sample-rate", "0.1", "--steps", "3"]
TRAINING = ["--data", "digits", "--model", "linear", "--lr", "1"]


@pytest.fixture
def planned(apportion, tmp_path):
    """A plan in plan.json."""
    code, out, _ = apportion("plan", "--recipe", "du-dynamic", *BUDGET, *LENGTH, "--spare", "1", "--out", "plan.json")
    assert code == 0
    assert "--plan plan.json" in out
    return ap.Plan.from_json((tmp_path / "plan.json").read_text())


def test_a_plan_is_written_and_executed(apportion, tmp_path, planned):
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    assert planned == ap.plan("du-dynamic", budget=budget, population=1437, sample_rate=0.1, steps=3, spare=1)
    code, out, _ = apportion("train", *TRAINING, "--plan", "plan.json", "--out", "run", "--json")
    assert code == 0
    run = json.loads(out.strip().splitlines()[-1])
    assert (run["recipe"], run["epsilon"], run["steps"]) == ("du-dynamic", planned.epsilon, 3)
    assert ap.Plan.from_json((tmp_path / "run/public/plan.json").read_text()) == planned
    assert apportion("account", "run")[0] == 0


def test_a_plan_of_ones_own_is_executed(apportion, tmp_path):
    own = ap.plan(
        ap.Recipe(clip=ap.clip.Fixed(0.7)),
        budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        population=1437,
        sample_rate=0.1,
        steps=3,
    )
    (tmp_path / "own.json").write_text(own.to_json())
    code, out, _ = apportion("train", *TRAINING, "--plan", "own.json", "--json")
    assert code == 0
    assert json.loads(out.strip().splitlines()[-1])["clip"]["threshold"] == 0.7
    assert (tmp_path / "runs/custom-digits").is_dir()


@pytest.mark.parametrize(
    "extra",
    [["--epsilon", "2"], ["--recipe", "abadi"], ["--set", "clip.start=2"], ["--spare", "1"], ["--steps", "9"]],
    ids=lambda extra: extra[0],
)
def test_what_a_plan_says_is_not_said_again(apportion, tmp_path, planned, extra):
    code, _, err = apportion("train", *TRAINING, "--plan", "plan.json", *extra)
    assert code == 2
    assert "plan.json says it already" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda plan: plan.to_json().replace('"apportion_plan": 1', '"apportion_plan": 7'), "reads plans of version 1"),
        (lambda plan: plan.to_json().replace(f'"epsilon": {plan.epsilon}', '"epsilon": 1.0'), "it states 1"),
        (lambda plan: "{", "not valid JSON"),
        (lambda plan: None, "cannot be read"),
    ],
    ids=["another version", "another price", "no JSON", "no file"],
)
def test_a_bad_plan_is_one_line_and_nothing_is_trained(apportion, tmp_path, planned, content, message):
    text = content(planned)
    if text is None:
        (tmp_path / "plan.json").unlink()
    else:
        (tmp_path / "plan.json").write_text(text)
    code, _, err = apportion("train", *TRAINING, "--plan", "plan.json")
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_a_plan_for_training_has_the_spare_steps_that_training_would_have(apportion, tmp_path):
    long = ["--sample-rate", "0.1", "--steps", "200"]
    apportion("plan", *BUDGET, *long, "--out", "plan.json")
    assert ap.Plan.from_json((tmp_path / "plan.json").read_text()).spare == 2
    assert json.loads(apportion("plan", *BUDGET, *long, "--json")[1])["spare"] == 0


def test_one_file_holds_one_plan(apportion, tmp_path):
    code, _, err = apportion(
        "plan", "--recipe", "abadi", "--recipe", "du-growing", *BUDGET, *LENGTH, "--out", "plan.json"
    )
    assert code == 2
    assert "2 recipes were given" in err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [((), "in the first 3 steps, with 1.00% of their price"), (("--no-count-usable",), "not counted")],
)
def test_the_count_of_usable_records_is_shown_with_its_price(apportion, more, words):
    code, out, _ = apportion("plan", *BUDGET, *LENGTH, *more)
    assert (code, words in out) == (0, True), out
    facts = json.loads(apportion("plan", *BUDGET, *LENGTH, *more, "--json")[1])
    assert facts["usable"] == (None if more else {"steps": 3, "share": 0.01})


def test_a_plan_replaces_no_file(apportion, tmp_path, planned):
    before = (tmp_path / "plan.json").read_text()
    code, _, err = apportion("plan", *BUDGET, *LENGTH, "--out", "plan.json")
    assert code == 2
    assert "plan.json" in err
    assert "it exists already. Choose a new file" in err
    assert (tmp_path / "plan.json").read_text() == before


def test_a_strategy_of_ones_own_is_compared_by_its_name(apportion, tmp_path):
    (tmp_path / "own_filter.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Halved:\n    part: float = 0.5\n"
        "    def init(self, parameters):\n        return None\n"
        "    def transform(self, state, released):\n"
        "        return {name: self.part * value for name, value in released.gradient.items()}\n"
        "    def observe(self, state, released, parameters):\n        return None\n"
    )
    settings = ["--set", "update.kind=own_filter:Halved", "--set", "update.part=0.25"]
    code, out, _ = apportion("compare", *TRAINING, *BUDGET, *LENGTH, "--recipe", "abadi", *settings, "--json")
    assert code == 0
    (run,) = json.loads(out.strip().splitlines()[-1])["runs"]
    assert run["update"] == {"kind": "own_filter:Halved", "part": 0.25}
