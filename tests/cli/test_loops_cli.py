"""Own strategies and ledgers in comparisons, early stopping, logs of released values, and where accumulation is explained."""

import json

import pytest

import apportion as ap
from apportion.accounting.run_filter import SumOfRuns

STRATEGIES = """
from dataclasses import dataclass
import apportion as ap

@dataclass(frozen=True)
class Halved(ap.ClipSchedule):
    start: float = 0.4

    def threshold_at(self, context):
        return self.start / 2

@dataclass(frozen=True)
class Own:
    gain: float = 0.5

    def init(self, shapes):
        return None

    def transform(self, state, released, context):
        return {name: self.gain * value for name, value in released.gradient.items()}, state

    def observe(self, state, released, context):
        return state

class Hidden:
    def __init__(self, start=0.4):
        self.clip = Halved(start)
        self.init, self.propose, self.observe = self.clip.init, self.clip.propose, self.clip.observe

    init = propose = observe = None

def halved():
    return Halved(start=0.2)

def hidden():
    return Hidden(0.3)

def number():
    return 3

def records():
    import torch
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return (inputs, (inputs[:, 0] > 0).long()), None

def model():
    import torch
    return torch.nn.Linear(3, 2)
"""
QUICK = ("compare", "--data", "digits", "--model", "linear", "--steps", "2", "--sample-rate", "0.05", "--out", "out")
TRAIN = ("train", "--data", "digits", "--model", "linear", "--epsilon", "3", "--delta", "1e-5", "--unit", "record")
TRAIN += ("--population", "1437", "--sample-rate", "0.05", "--out", "run")


@pytest.fixture
def ours(tmp_path, monkeypatch):
    (tmp_path / "loops_strategies.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(tmp_path)


def found_in(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def clips(results):
    return {run["recipe"]: run["clip"] for run in results["runs"]}


@pytest.mark.usefixtures("ours")
def test_own_strategies_of_a_command_line(apportion, tmp_path):
    code, _, said = apportion(
        *QUICK, "--epsilon", "3", "--recipe", "abadi", "--clip", "loops_strategies:Halved", "--set", "clip.start=0.6"
    )
    assert code == 0, said
    shown = clips(found_in(tmp_path / "out"))
    own = shown["loops_strategies:Halved, clip.start=0.6"]
    assert (own["kind"], own["start"]) == ("loops_strategies:Halved", 0.6)
    assert shown["abadi"]["kind"] == "Fixed"


@pytest.mark.usefixtures("ours")
def test_own_strategies_of_a_file_and_a_function(apportion, tmp_path):
    (tmp_path / "own.toml").write_text(
        'data = "digits"\nmodel = "linear"\nepsilon = 3.0\nsteps = 2\nsample_rate = 0.05\n'
        '[[recipe]]\nname = "abadi"\nlabel = "short"\nclip = "loops_strategies:Halved"\n'
        '[[recipe]]\nname = "abadi"\nlabel = "long"\nclip = {kind = "loops_strategies:Halved", start = 0.8}\n'
    )
    code, _, said = apportion("compare", "own.toml", "--clip", "loops_strategies:halved", "--out", "out")
    assert code == 0, said
    assert {name: clip["start"] for name, clip in clips(found_in(tmp_path / "out")).items()} == {
        "short": 0.4,
        "long": 0.8,
        "loops_strategies:halved": 0.2,
    }


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("role", "name", "reason"),
    [
        ("clip", "loops_strategies:Own", "it is not a clip strategy"),
        ("update", "loops_strategies:Halved", "it is not an update strategy"),
        ("clip", "loops_strategies:number", "clip=3: it is not a clip strategy"),
        ("clip", "loops_strategies:hidden", "is another one when it is built again"),
        ("clip", "loops_strategies:Nothing", "it cannot be imported"),
        ("clip", "os:system", "calling it failed"),
        ("noise", "Nonsense", "there is no such strategy"),
    ],
)
def test_what_does_not_fill_the_role_is_refused(apportion, tmp_path, role, name, reason):
    code, _, said = apportion(*QUICK, "--epsilon", "3", "--recipe", "abadi", f"--{role}", name)
    assert code == 2, said
    assert reason in " ".join(said.split())
    assert not (tmp_path / "out").exists()


def test_a_clip_that_owns_the_noise_replaces_both():
    recipe = ap.recipes.abadi().with_settings({"clip.kind": "FixedDeviation"})
    assert type(recipe.clip).__name__ == "FixedDeviation"
    assert recipe.noise.clip is recipe.clip


def shared_ledger(path, epsilon):
    limit = ap.Budget(epsilon=epsilon, delta=1e-4, unit=ap.Record())
    ap.Ledger.create(path, name="digits", rule=SumOfRuns(limit)).close()
    return path


def test_runs_of_a_comparison_are_admitted_until_the_ledger_is_full(apportion, tmp_path):
    path = shared_ledger(tmp_path / "shared.sqlite", 2.5)
    three = ("--recipe", "abadi", "--recipe", "auto-s", "--recipe", "lin-decay")
    code, _, said = apportion(*QUICK, "--epsilon", "1", *three, "--ledger", str(path))
    assert code == 1, said
    assert "lin-decay" in next(line for line in said.splitlines() if "skipped:" in line)
    results = found_in(tmp_path / "out")
    assert [run["recipe"] for run in results["runs"]] == ["abadi", "auto-s"]
    assert [one["recipe"] for one in results["skipped"]] == ["lin-decay"]
    ledger = ap.Ledger.attach(path)
    assert len(ledger.runs()) == 2
    assert [len(list(ledger.events(run.number))) for run in ledger.runs()] == [2, 2]
    ledger.close()
    code, _, said = apportion(*QUICK[:-1], "again", "--epsilon", "1", "--recipe", "abadi", "--ledger", str(path))
    assert code == 2
    assert not (tmp_path / "again").exists()


@pytest.mark.usefixtures("ours")
def test_what_is_left_after_a_comparison_is_what_its_last_run_left(apportion, tmp_path):
    path = shared_ledger(tmp_path / "shared.sqlite", 2.5)
    own = ("compare", "--data", "loops_strategies:records", "--model", "loops_strategies:model", "--out", "out")
    own += ("--delta", "1e-5", "--unit", "record", "--population", "60", "--sample-rate", "0.5", "--steps", "2")
    code, output, said = apportion(
        *own, "--epsilon", "1", "--recipe", "abadi", "--recipe", "auto-s", "--ledger", str(path)
    )
    assert code == 0, said
    ledger = ap.Ledger.attach(path)
    left = f"Left: {ledger.rule.describe(ledger.left())}."
    ledger.close()
    assert left in " ".join((output + said).split())


def test_without_privacy_nothing_is_run_beside_a_ledger(apportion, tmp_path):
    path = shared_ledger(tmp_path / "shared.sqlite", 9.0)
    code, _, said = apportion(
        *QUICK, "--epsilon", "1", "--recipe", "abadi", "--recipe", "non-private", "--ledger", str(path)
    )
    assert (code, "reveals the records" in said) == (2, True)
    code, _, said = apportion(*QUICK, "--epsilon", "1", "--seed", "1", "--recipe", "abadi", "--ledger", str(path))
    assert (code, "a run with a seed is not private" in said) == (2, True)
    code, _, said = apportion(*TRAIN, "--recipe", "non-private", "--steps", "2", "--ledger", str(path))
    assert (code, "this recipe has no privacy" in said) == (2, True)
    assert not ap.Ledger.attach(path).runs()
    code, _, said = apportion(*QUICK, "--epsilon", "1", "--ledger", str(path))  # the short list without it
    assert code == 0, said
    assert sorted(clips(found_in(tmp_path / "out"))) == ["abadi", "default"]


def test_a_run_stops_early_and_is_logged(apportion, tmp_path):
    stopping = ("--patience", "1", "--min-delta", "1", "--evaluate-every", "2", "--log", "csv:steps.csv")
    code, _, said = apportion(*TRAIN, "--steps", "9", *stopping)
    assert code == 0, said
    assert "4 of 9 draws were made: --patience 1 ends a run early, and the guarantee is that of the whole plan" in said
    history = json.loads((tmp_path / "run" / "public" / "history.json").read_text())
    rows = (tmp_path / "steps.csv").read_text().splitlines()
    assert len(history) == len(rows) - 1 == 4
    statement = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())
    assert statement["epsilon"] > 2.9 > statement["epsilon_spent"]
    code, _, said = apportion("train", "--resume", "run")
    assert code == 0, said
    assert (tmp_path / "steps.csv").read_text().splitlines() == rows


def test_a_comparison_stops_early_with_and_without_privacy(apportion, tmp_path):
    stopping = (
        "--patience",
        "1",
        "--min-delta",
        "1",
        "--evaluate-every",
        "1",
        "--recipe",
        "non-private",
        "--recipe",
        "abadi",
    )
    code, _, said = apportion(*QUICK[:5], "--steps", "6", *QUICK[7:], "--epsilon", "3", *stopping)
    assert code == 0, said
    assert [run["steps"] for run in found_in(tmp_path / "out")["runs"]] == [2, 2]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--accumulate", "4"), "Gradients are accumulated already"),
        (("--gradient-accumulation-steps", "4"), "Gradients are accumulated already"),
        (("--patience", "0"), "stop.patience"),
        (("--min-delta", "0.1"), "it belongs to a patience"),
        (("--log", "csv"), "does not say where to"),
        (("--log", "paper:a"), "no such kind of log"),
        (("--log", "csv:a.csv", "--recipe", "non-private"), "this recipe has no privacy"),
    ],
)
def test_what_is_refused_leaves_nothing(apportion, tmp_path, more, reason):
    code, _, said = apportion(*TRAIN, "--steps", "2", *more)
    assert code == 2
    assert reason in " ".join(said.split())
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_accumulation_in_a_file_is_explained(apportion, tmp_path):
    (tmp_path / "own.toml").write_text('data = "digits"\nepsilon = 3.0\nrecipe = ["abadi"]\naccumulate = 4\n')
    code, _, said = apportion("compare", "own.toml")
    assert (code, "accumulate=4: Gradients are accumulated already" in said) == (2, True)
