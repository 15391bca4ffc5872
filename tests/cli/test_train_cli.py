"""`apportion train`: its default recipe, its prices, its warning, and going on after a crash."""

import json
import subprocess
import sys

import pytest

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
    assert f"ε = {taken:.4f} of the steps taken; {reserved:.4f} reserved, with spare steps: the guarantee" in err
    (run,) = json.loads((tmp_path / "run" / "results.json").read_text())["runs"]
    assert (run["epsilon_spent"], run["epsilon"]) == (taken, reserved)
    _, out, _ = apportion("account", "run")
    rows = [line for line in out.splitlines() if "stated" in line]
    assert any("of the steps taken" in row and f"{taken:.4f}" in row for row in rows)
    assert any("reserved, with spare steps: the guarantee" in row and f"{reserved:.4f}" in row for row in rows)


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
