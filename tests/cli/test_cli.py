"""The command line as a person and as a script use it."""

import json
import subprocess
import sys

import pytest
import typer

from apportion.cli.main import app
from apportion.cli.output import show_results
from apportion.reporting.result import Results, RunResult

BUDGET = ["--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437"]
DU = [
    *("--epsilon", "1.2", "--delta", str(1 / 600_000), "--unit", "record", "--population", "60000"),
    "--batch-size",
    "256",
]
QUICK = ["--data", "digits", "--model", "linear", "--sample-rate", "0.1", "--steps", "3", "--lr", "1"]


def test_train_prints_one_run_object_last(apportion, tmp_path):
    code, out, _ = apportion(
        "train", *QUICK, *BUDGET, "--recipe", "lin-decay", "--set", "clip.start=0.7", "--out", "r", "--json"
    )
    run = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert run["recipe"] == "lin-decay"
    assert run["clip"]["start"] == 0.7
    assert 0.998 * 3 <= run["epsilon"] <= run["target_epsilon"] == 3.0
    assert 0 <= run["test_accuracy"] <= 1
    assert run["seed"] is None
    assert run["private"] is True
    for file in (
        "public/privacy.md",
        "public/weights.safetensors",
        "secret/ledger.sqlite",
        "results.json",
        "report.html",
    ):
        assert (tmp_path / "r" / file).exists(), file


def test_train_without_privacy(apportion):
    code, out, _ = apportion("train", *QUICK, "--population", "1437", "--recipe", "non-private", "--json")
    run = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert run["epsilon"] is None


def test_compare_writes_results_and_report_and_says_what_to_try(apportion, tmp_path):
    code, out, err = apportion(
        "compare", *QUICK, "--epsilon", "3", "--seed", "0", "--seed", "1", "--out", "c", "--recipe", "abadi"
    )
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert code == 0
    assert [run["seed"] for run in results["runs"]] == [0, 1]
    assert len(results["cells"]) == 1
    assert "NOT private" in out
    assert "report.html" in out
    assert "Try next" in out
    assert "ε = 2.99" in err, "no word about the budget spent"
    (tmp_path / "c" / "report.html").unlink()
    assert apportion("report", "c")[0] == 0
    assert (tmp_path / "c" / "report.html").stat().st_size > 100_000


def test_compare_takes_a_file_and_options_override_it(apportion, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'data = "digits"\nmodel = "linear"\nepsilon = 3.0\ndelta = 1e-5\nunit = "record"\npopulation = 1437\n'
        'sample_rate = 0.1\nsteps = 3\nlr = 1.0\nseeds = [4]\n[[recipe]]\nname = "abadi"\nclip.threshold = 0.2\n'
    )
    code, out, _ = apportion("compare", "mine.toml", "--epsilon", "1", "--batch-size", "100", "--json")
    results = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert results["runs"][0]["target_epsilon"] == 1.0
    assert results["runs"][0]["expected_batch_size"] == pytest.approx(100)
    assert results["runs"][0]["clip"]["threshold"] == 0.2
    assert results["runs"][0]["seed"] == 4
    assert "history" not in results["runs"][0]


def test_own_data_and_model(apportion, tmp_path, monkeypatch):
    (tmp_path / "my_project.py").write_text(
        "import torch, apportion as ap\n"
        "def data():\n"
        "    x = torch.randn(60, 4)\n"
        "    return (x, (x.sum(1) > 0).long()), ap.Public((x, (x.sum(1) > 0).long()))\n"
        "def unprotected():\n"
        "    x = torch.randn(60, 4)\n"
        "    return (x, x.sum(1).long()), (x, x.sum(1).long())\n"
        "def model():\n"
        "    return torch.nn.Linear(4, 2)\n"
        "def mixing():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))\n"
    )
    monkeypatch.delitem(sys.modules, "my_project", raising=False)
    own = ["--data", "my_project:data", "--sample-rate", "0.2", "--steps", "3", "--lr", "1", "--json"]
    code, out, _ = apportion("train", *own, "--model", "my_project:model", *BUDGET[:-1], "60")
    assert code == 0
    assert json.loads(out.strip().splitlines()[-1])["data"] == "my_project:data"
    (tmp_path / "mine").mkdir()
    for folder in ("new/mixed", "mine"):
        code, _, err = apportion("train", *own, "--model", "my_project:mixing", *BUDGET[:-1], "60", "--out", folder)
        assert code == 2
        assert "BatchNorm1d" in err
    assert not (tmp_path / "new").exists(), "something was left of a refused run"
    assert not list((tmp_path / "mine").iterdir()), "a person's own folder stays, and stays empty"
    code, _, err = apportion("compare", *own, "--model", "my_project:model", "--recipe", "abadi", "--epsilon", "3")
    assert code == 2
    assert "population" in err or "delta" in err
    own[1] = "my_project:unprotected"
    code, _, err = apportion("train", *own, "--model", "my_project:model", *BUDGET[:-1], "60")
    assert code == 2
    assert "declared public" in err
    code, out, _ = apportion("check", "--model", "my_project:mixing", "--fix")
    assert code == 1
    assert "BatchNorm1d" in out
    assert "GroupNorm" in out
    code, out, _ = apportion("check", "--model", "mlp", "--data", "digits", "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", *QUICK, *BUDGET, "--epsilon", "0"], "epsilon=0.0"),
        (["train", *QUICK, *BUDGET, "--epsilon", "-2"], "epsilon=-2.0"),
        (["train", *QUICK, *BUDGET, "--epsilon", "nan"], "epsilon=nan"),
        (["train", *QUICK, *BUDGET, "--epsilon", "three"], "--epsilon"),
        (["train", *QUICK, *BUDGET, "--delta", "1"], "delta=1.0"),
        (["train", *QUICK, *BUDGET, "--delta", "0"], "delta=0.0"),
        (["train", *QUICK, *BUDGET, "--unit", "person"], "unit='person'"),
        (["train", *QUICK, *BUDGET[2:]], "epsilon=None"),
        (["train", *QUICK, *BUDGET[:2], *BUDGET[4:]], "delta=None"),
        (["train", *QUICK, *BUDGET[:4], *BUDGET[6:]], "unit=None"),
        (["train", *QUICK, *BUDGET[:6]], "population=None.*1437"),
        (["train", *QUICK, *BUDGET, "--recipe", "abadi", "--set", "clip.threshold=0"], "clip.threshold=0"),
        (["train", *QUICK, *BUDGET, "--recipe", "abadi", "--set", "clip.threshold=NaN"], "clip.threshold=nan"),
        (["train", *QUICK, *BUDGET, "--recipe", "abadi", "--set", "clip.treshold=1"], "Did you mean 'threshold'"),
        (["train", *QUICK, *BUDGET, "--set", "threshold"], "ROLE.PARAMETER=VALUE"),
        (["train", *QUICK, *BUDGET, "--recipe", "lin-dekay"], "Did you mean 'lin-decay'"),
        (["train", *QUICK, *BUDGET, "--sample-rate", "2"], "sample_rate=2.0"),
        (["train", *QUICK, *BUDGET, "--batch-size", "10"], "both were given"),
        (["train", *QUICK, *BUDGET, "--optimizer", "sdg"], "Did you mean 'sgd'"),
        (["train", *QUICK, *BUDGET, "--data", "digit"], "Did you mean 'digits'"),
        (["train", *QUICK, *BUDGET, "--model", "cnm"], "Did you mean 'cnn'"),
        (["train", *QUICK, *BUDGET, "--model", "no_such:model"], "cannot be imported"),
        (["train", *QUICK, *BUDGET, "--poisson", "no"], "--poisson"),
        (["train", *BUDGET], "data=None"),
        (["compare", "nothing.toml"], "nothing.toml"),
        (["compare", "--data", "digits"], "epsilon=None"),
        (["report", "nowhere"], "nowhere"),
        (["train", *QUICK, *BUDGET, "--out", "/proc/nothing"], "out='/proc/nothing'.*cannot be written"),
        (["compare", *QUICK, "--epsilon", "3", "--out", "/dev/null/folder"], "cannot be written"),
        (["plan", "--recipe", "non-private", *DU, "--steps", "5"], "no privacy to plan"),
        (["plan", *DU, "--steps", "5", "--calibrate", "cltt"], "Did you mean 'clt'"),
        (["plan", *DU, "--steps", "0"], "steps=0"),
        (["data", "fetch", "mnst"], "Did you mean 'mnist'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(apportion, tmp_path, arguments, words):
    import re

    code, out, err = apportion(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert re.search(words, err), err
    assert "Traceback" not in out + err
    assert not list(tmp_path.rglob("ledger.sqlite")), "something was charged"


def test_a_plan_for_scripts(apportion):
    code, out, _ = apportion(
        "plan", "--recipe", "du-growing", "--set", f"noise.ratio={1 / 0.3}", *DU, "--steps", "40", "--json"
    )
    plan = json.loads(out)
    assert code == 0
    assert {"epsilon", "target_epsilon", "delta", "steps", "sample_rate", "noise_multiplier", "clip"} <= set(plan)
    assert "claims" not in plan, "nobody asked for them, and they take seconds"
    assert plan["noise_multiplier"][0] == pytest.approx(plan["noise_multiplier"][-1] / 0.3, rel=0.05)
    assert len(plan["noise_multiplier"]) == len(plan["clip"]) == plan["steps"] == 40
    assert 0.998 * 1.2 <= plan["epsilon"] <= 1.2
    spent = [price for _, price in plan["spent"]]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(plan["epsilon"], rel=2e-3)


def test_a_plan_by_the_central_limit_says_what_it_really_costs(apportion):
    code, out, _ = apportion(
        "plan",
        "--recipe",
        "du-growing",
        "--set",
        f"noise.ratio={1 / 0.3}",
        *DU,
        "--steps",
        "5000",
        "--calibrate",
        "clt",
        "--claims",
        "--json",
    )
    plan = json.loads(out)
    assert code == 0
    assert plan["epsilon"] == pytest.approx(1.387, rel=3e-3), "the paper claims 1.2"
    assert any("not an upper bound" in name for name in plan["not_upper_bounds"])


def test_plans_laid_over_each_other(apportion, tmp_path):
    code, out, _ = apportion(
        "plan", "--recipe", "abadi", "--recipe", "lin-decay", *DU, "--steps", "200", "--claims", "--html", "plans.html"
    )
    assert code == 0
    assert "abadi" in out
    assert "lin-decay" in out
    assert "▅" in out
    assert "not an upper bound" in out
    assert (tmp_path / "plans.html").stat().st_size > 1_000_000


def test_help_teaches_and_imports_nothing_heavy():
    program = (
        "import sys; from apportion.cli.main import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'plotly', 'sklearn', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("--epsilon", "--population", "Example: apportion train", "have no default"):
        assert words in done.stdout


def test_without_a_command_the_help_is_shown(apportion):
    code, out, err = apportion()
    assert code == 2
    assert "Usage" in out + err
    assert "error:" not in err


def test_version(apportion):
    from apportion import __version__

    assert apportion("--version")[1].strip() == __version__


OWN = (
    "from dataclasses import dataclass\nimport apportion as ap\n\n"
    "@dataclass(frozen=True)\nclass WarmUp(ap.ClipSchedule):\n    threshold: float = 1.0\n    length: int = 10\n"
    "    def threshold_at(self, context):\n        return self.threshold * min(1.0, context.step / self.length)\n"
)


def test_a_plan_with_a_strategy_of_ones_own(apportion, tmp_path, monkeypatch):
    (tmp_path / "own_clips.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kind = ["--set", "clip.length=4", "--set", "clip.kind=own_clips:WarmUp"]  # in any order
    code, out, err = apportion("plan", "--recipe", "abadi", *kind, *DU, "--steps", "8", "--json")
    assert code == 0, err
    assert json.loads(out)["clip"][:4] == [0.25, 0.5, 0.75, 1.0]
    code, _, err = apportion("plan", "--recipe", "abadi", *kind, "--set", "clip.lenght=4", *DU, "--steps", "8")
    assert code == 2
    assert "Did you mean 'length'" in err


def test_a_plan_by_the_central_limit_is_not_written_to_be_executed(apportion, tmp_path):
    out = tmp_path / "plan.json"
    code, _, err = apportion("plan", *DU, "--steps", "5", "--calibrate", "clt", "--out", str(out))
    assert code == 2
    assert "costs more than the ε that was asked for" in err
    assert not out.exists()


def test_a_file_that_is_no_plan_is_named(apportion, tmp_path):
    (tmp_path / "notes.txt").write_text("not a plan")
    code, _, err = apportion("train", "--data", "digits", "--plan", str(tmp_path / "notes.txt"))
    assert code == 2
    assert "notes.txt': it is not valid JSON" in err.replace("\n", "")


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "apportion", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def commands_of(group):
    for command in group.commands.values():
        yield from commands_of(command) if hasattr(command, "commands") else [command]


@pytest.mark.parametrize("command", list(commands_of(typer.main.get_command(app))), ids=lambda command: command.name)
def test_help_fits_any_terminal_and_names_options_that_exist(command):
    """A paragraph is one line, which a terminal wraps; and no option speaks of --schema where there is none."""
    assert command.help
    assert all("\n" not in part for part in command.help.split("\n\n"))
    known = {name for one in command.params for name in one.opts}
    assert "--schema" in known or not any("--schema" in (getattr(one, "help", None) or "") for one in command.params)


def test_a_table_shows_no_epsilon_below_the_true_one_and_no_empty_column(tmp_path, capsys):
    spent = RunResult(
        data="mine:data", recipe="abadi", epsilon=2.9954, target_epsilon=3.0, delta=1e-5, steps=20, private=True
    )
    show_results(Results([spent]), tmp_path, as_json=False)
    out = capsys.readouterr().out
    assert "2.996 of 3" in out
    assert "seconds" not in out
    assert "accuracy" not in out
