"""`apportion train`: its default recipe, its prices, its warning, and going on after a crash."""

import json
import subprocess
import sys

import pytest

from apportion.training.statement import show_epsilon

BUDGET = ["--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437"]
QUICK = ["--data", "digits", "--model", "linear", "--sample-rate", "0.1", "--steps", "3", "--lr", "1"]


def test_without_a_word_the_recipe_is_the_one_called_default(apportion, tmp_path):
    code, out, _ = apportion("train", *QUICK, *BUDGET, "--json")
    assert code == 0
    assert json.loads(out.strip().splitlines()[-1])["recipe"] == "default"
    assert (tmp_path / "runs" / "default-digits" / "public").is_dir()
    code, out, _ = apportion("plan", *BUDGET, *QUICK[4:8], "--json")
    assert code == 0
    assert json.loads(out)["recipe"] == "default"
    for command in ("train", "plan"):
        shown = apportion(command, "--help")[1].replace("│", " ")
        assert "the one called default; `apportion recipes default` explains it" in " ".join(shown.split())


def test_both_prices_of_a_run_are_named_alike(apportion, tmp_path):
    """Spare steps are reserved and not taken: `train` and `account` say both prices, and which is the guarantee."""
    code, out, err = apportion("train", *QUICK, *BUDGET, "--spare", "2", "--out", "run")
    assert code == 0
    assert "ε reserved" in out
    facts = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())
    taken, reserved = facts["epsilon_spent"], facts["epsilon"]
    assert taken < reserved
    assert (
        f"ε = {show_epsilon(taken)} of the steps taken; {show_epsilon(reserved)} reserved, with spare steps: the guarantee"
        in err
    )
    (run,) = json.loads((tmp_path / "run" / "results.json").read_text())["runs"]
    assert (run["epsilon_spent"], run["epsilon"]) == (taken, reserved)
    _, out, _ = apportion("account", "run")
    rows = [line for line in out.splitlines() if "stated" in line]
    assert any("of the steps taken" in row and show_epsilon(taken) in row for row in rows)
    assert any("reserved, with spare steps: the guarantee" in row and show_epsilon(reserved) in row for row in rows)


def test_without_spare_steps_what_is_reserved_is_spent(apportion):
    assert "ε spent" in apportion("train", *QUICK, *BUDGET, "--spare", "0")[1]


@pytest.mark.filterwarnings("default")  # the suite turns warnings into errors
def test_a_weak_delta_is_a_warning_of_one_line(apportion):
    code, _, err = apportion("train", *QUICK, *BUDGET, "--delta", "0.01")
    assert code == 0
    warned = [line for line in err.splitlines() if "warning" in line.lower()]
    assert len(warned) == 1
    assert warned[0].startswith("warning: delta=0.01 is larger than 1/population=0.0007, with population=1437: ")
    assert warned[0].endswith("Use a tenth of 1/population or less: delta=7e-05.")


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(tmp_path, apportion):
    """The process of a run dies by SIGKILL; --resume needs nothing but the folder."""
    folder = tmp_path / "run"
    program = (
        "import os, sys\n"
        "from apportion.curator import mechanisms\n"
        "from apportion.cli.main import main\n"
        "right, calls = mechanisms.add_gaussian_noise, []\n"
        "def deadly(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 4: os.kill(os.getpid(), 9)\n"
        "    return right(*arguments)\n"
        "mechanisms.add_gaussian_noise = deadly\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["train", *QUICK, *BUDGET, "--spare", "1", "--checkpoint-every", "1", "--out", str(folder)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == -9, done.stderr
    assert not (folder / "public").exists()
    code, _, err = apportion("train", "--resume", str(folder), "--epsilon", "9")
    assert code == 2
    assert "error: epsilon=9.0: a resumed run keeps the settings it was started with" in err
    code, out, _ = apportion("train", "--resume", str(folder), "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["steps"] == 3
    assert (folder / "public" / "weights.safetensors").exists()
    code, _, err = apportion("train", "--resume", str(tmp_path / "nothing"))
    assert code == 2
    assert "settings.json cannot be read there" in err


def test_a_run_that_its_filter_ends_early_says_so(apportion):
    """With a little less noise than three equal steps have, the second one does not fit."""
    fay = ["--recipe", "fay-adaptive", "--set", "noise.least=0.95", "--set", "noise.most=0.95"]
    code, _, err = apportion("train", *QUICK, *BUDGET, *fay)
    assert code == 0
    assert "The weighted Rényi filter ended the run after 1 of 3 draws" in " ".join(err.split())


OWN = """
import torch
import apportion as ap

def numbers():
    inputs = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    targets = inputs.sum(1)
    return (inputs[:60], targets[:60]), ap.Public((inputs[60:], targets[60:]))

def line():
    return torch.nn.Linear(3, 1)

def absolute(outputs, targets):
    return (outputs.squeeze(1) - targets).abs()

def worst(outputs, targets):
    return float((outputs.squeeze(1) - targets).abs().max())

HERE = 3
WORST = ap.Metric("worst", worst, better="lower")
"""
SMALL = ["--model", "own_task:line", "--sample-rate", "0.5", "--steps", "4", "--lr", "0.1", *BUDGET[:-1], "60"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_task:numbers"
    sys.modules.pop("own_task", None)


def test_a_regression_ends_with_the_name_of_its_metric(apportion, own, tmp_path):
    code, out, err = apportion("train", "--data", own, *SMALL, "--loss", "mse", "--json", "--out", "run")
    assert code == 0
    run = json.loads(out.strip().splitlines()[-1])
    assert run["metric"] == "rmse"
    assert run["better"] == "lower"
    assert run["test_rmse"] > 0
    assert run["test_accuracy"] is None
    assert "test rmse" in err
    history = json.loads((tmp_path / "run" / "public" / "history.json").read_text())
    assert history[-1]["test_rmse"] == run["test_rmse"]
    assert "Test rmse" in (tmp_path / "run" / "report.html").read_text()


def test_losses_and_metrics_of_ones_own_and_a_file(apportion, own, tmp_path):
    lines = ['data = "own_task:numbers"', 'model = "own_task:line"', 'loss = "own_task:absolute"']
    lines += ['metric = "own_task:WORST"', "evaluate_every = 2", 'recipe = ["abadi", "non-private"]', "lr = 0.1"]
    lines += ["epsilon = 3", "delta = 1e-5", 'unit = "record"', "population = 60", "sample_rate = 0.5", "steps = 4"]
    (tmp_path / "task.toml").write_text("\n".join(lines))
    code, _, err = apportion("compare", "task.toml", "--out", "both")
    assert code == 0, err
    results = json.loads((tmp_path / "both" / "results.json").read_text())
    for run in results["runs"]:
        assert run["loss"] == "own_task:absolute"
        assert [entry["step"] for entry in run["history"] if entry.get("test_worst") is not None] == [2, 4]
        assert run["history"][-1]["test_worst"] == run["test_worst"]
    assert {cell["recipe"]: cell["test_worst"] for cell in results["cells"]}.keys() == {"abadi", "non-private"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--loss", "mze"], "loss='mze'"),
        (["--loss", "own_task:nothing"], "loss='own_task:nothing'"),
        (["--loss", "own_task:HERE", "--metric", "mae"], "loss='own_task:HERE'"),
        (["--metric", "map"], "metric='map'"),
        (["--evaluate-every", "often"], "evaluate_every='often'"),
        (["--loss", "mse", "--set", "loss.weights=[1,2]"], "loss.weights=(1.0, 2.0)"),
        (["--set", "loss.weigths=[1,2]"], "loss.weigths"),
        (["--metric", "auc", "--loss", "mse"], "evaluate="),
    ],
)
def test_what_is_wrong_with_a_loss_or_metric_is_one_line(apportion, own, tmp_path, options, named):
    code, _, err = apportion("train", "--data", own, *SMALL, "--out", "run", *options)
    assert code == 2
    assert err.strip().splitlines()[-1].startswith(f"error: {named}")
    assert not (tmp_path / "run").exists()
