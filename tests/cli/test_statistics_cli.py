"""`apportion statistics`: one column, one question, one charge."""

import json

import pytest

LIMIT = ["--name", "patients", "--epsilon", "20", "--delta", "1e-5", "--unit", "record", "--rule", "sum"]
CSV = 'age, "income"\n' + "".join(f"{age},{10 * age}\n" for age in range(100)) + '\n"open,1\nnonsense,\n7\n'


@pytest.fixture
def ask(apportion, tmp_path):
    (tmp_path / "patients.csv").write_text("\ufeff" + CSV.replace("\n", "\r\n"), encoding="utf-8", newline="")

    def run(*words, epsilon="5"):
        code, out, err = apportion("statistics", "--data", "patients.csv", "--epsilon", epsilon, "--json", *words)
        return json.loads(out.splitlines()[-1]) if code == 0 else err

    return run


def test_questions_about_a_file(ask):
    assert ask("--column", "age", "--of", "count")["value"] == pytest.approx(101, abs=6)  # 7 has an age and no income
    assert ask("--column", "income", "--of", "count")["value"] == pytest.approx(100, abs=6)
    assert ask("--column", "age", "--of", "count", "--bounds", "0", "9")["value"] == pytest.approx(11, abs=6)
    mean = ask("--column", "income", "--of", "mean", "--bounds", "0", "1000")
    assert mean["value"] == pytest.approx(495, abs=25)
    assert {"epsilon": 5.0, "unit": "record", "private": True, "left": None}.items() <= mean.items()
    median = ask("--column", "age", "--of", "quantile", "--bounds", "0", "100", "--level", "0.25")
    assert median["value"] == pytest.approx(25, abs=8)
    bins = ask("--column", "age", "--of", "histogram", "--bounds", "0", "100", "--bins", "4")["value"]
    assert bins == pytest.approx([26, 25, 25, 25], abs=8)


@pytest.mark.slow
def test_charges_add_up_and_end(apportion, ask):
    apportion("ledger", "limit", "patients.sqlite", *LIMIT)
    question = ["--column", "age", "--of", "count", "--ledger", "patients.sqlite"]
    assert [ask(*question)["left"] for _ in range(4)] == pytest.approx([15, 10, 5, 0])
    assert "does not cover" in ask(*question)
    shown = json.loads(apportion("ledger", "show", "patients.sqlite", "--json")[1])
    assert [run["charged"] for run in shown["runs"]] == [1, 1, 1, 1]
    assert apportion("ledger", "verify", "patients.sqlite")[0] == 0


def test_class_counts_of_built_in_data(apportion):
    words = ["--data", "digits", "--of", "histogram", "--classes", "10", "--epsilon", "2"]
    code, out, _ = apportion("statistics", *words)
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith("histogram of label: ")
    assert first.count(",") == 9
    assert "ε = 2" in second


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--column", "agee", "--of", "count"], "Did you mean 'age'?"),
        (["--column", "age", "--of", "mean"], "needs a declared range"),
        (["--column", "age", "--of", "mean", "--bounds", "3", "3"], "empty"),
        (["--column", "age", "--of", "histogram", "--bounds", "0", "3", "--bins", "0"], "number of bins"),
        (["--column", "age", "--of", "median"], "--of"),
        (["--column", "age", "--of", "count", "--ledger", "nothing.sqlite"], "nothing.sqlite"),
        (["--data", "nothing.csv", "--of", "count"], "there is no such file"),
        (["--data", "digits", "--column", "age", "--of", "count"], "'label' only"),
        (["--data", "digitz", "--of", "count"], "digits"),
    ],
)
def test_mistakes_are_one_line(ask, words, reason):
    error = ask(*words)
    assert reason in error
    assert error.count("\n") == 1


def test_no_epsilon_of_zero(ask):
    assert "epsilon" in ask("--column", "age", "--of", "count", epsilon="0")
