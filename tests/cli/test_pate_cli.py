"""`apportion pate`, as a person and as a script use it."""

import json
import sys

import pytest

QUICK = ["--data", "digits", "--queries", "40", "--teachers", "10", "--processes", "1"]


def test_digits_as_a_script_runs_it(apportion, tmp_path):
    code, out, err = apportion("pate", *QUICK, "--sigma", "30", "--out", "r", "--json")
    found = json.loads(out.strip().splitlines()[-1])
    assert code == 0, err
    assert found["queries_answered"] == 40
    assert 0 <= found["student_accuracy"] <= 1
    assert found["private"] is True
    assert [(one["name"], one["budget"]) for one in found["groups"]] == [("strict", 5), ("medium", 8), ("loose", 12)]
    assert all(0 < one["epsilon"] <= one["budget"] for one in found["groups"])
    assert "teachers 10/10" in err
    assert "strict  ε = " in err
    for file in ("public/answers.jsonl", "public/privacy.md", "secret/ledger.sqlite", "secret/votes.npy"):
        assert (tmp_path / "r" / file).exists(), file
    code, out, err = apportion("account", "r", "--json")
    assert code == 0, err
    checked = json.loads(out.strip().splitlines()[-1])
    assert checked["guarantee"] == 12
    assert checked["stated"] == pytest.approx(max(one["epsilon"] for one in found["groups"]))
    again = apportion("pate", *QUICK, "--sigma", "30", "--out", "r", "--json", "--resume")
    assert json.loads(again[1].strip().splitlines()[-1]) == found


@pytest.mark.parametrize(
    "chosen",
    [
        ["--variant", "upsampling", "--most-copies", "2", "--by", "mu"],
        [
            "--variant",
            "vanishing",
            "--aggregation",
            "confident",
            "--threshold",
            "4",
            "--check-sigma",
            "20",
            "--answers",
            "20",
        ],
        ["--variant", "weighting", "--size-weighted", "--teacher", "linear", "--epochs", "2", "--student", "logistic"],
        ["--group", "3:1", "--delta", "1e-6", "--unit", "record"],
    ],
)
def test_variants_and_models_by_name(apportion, chosen):
    code, out, err = apportion("pate", *QUICK, *chosen, "--seed", "0", "--json", "--out", "r")
    assert apportion("account", "r")[0] == 0, "the statement and the ledger do not agree"
    found = json.loads(out.strip().splitlines()[-1])
    assert code == 0, err
    assert found["private"] is False
    assert "NOT private" in err
    assert all(0 < one["epsilon"] <= one["budget"] for one in found["groups"])


def test_labels_come_from_a_file(apportion, tmp_path):
    (tmp_path / "labels.txt").write_text("\n".join(["near", "far"] * 718 + ["far"]), encoding="utf-8")
    groups = ["--group", "near:2:0.5", "--group", "far:4:0.5", "--group-labels", "labels.txt"]
    code, out, _ = apportion("pate", *QUICK, *groups)
    assert code == 0
    assert "near  ε = " in out
    (tmp_path / "labels.txt").write_text("near\n", encoding="utf-8")
    code, _, err = apportion("pate", *QUICK, *groups)
    assert code == 2
    assert "labels=" in err


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["--data", "digits", "--threshold", "51", "--aggregation", "confident"], "no class can have more votes"),
        (["--data", "digits", "--sigma", "0"], "aggregation.sigma=0.0"),
        (["--data", "digits", "--teachers", "2"], "each needs a teacher"),
        (["--data", "digits", "--group", "0:1"], "group.epsilon=0.0"),
        (["--data", "digits", "--group", "five:1"], "NAME:EPSILON:SHARE"),
        (["--data", "digits", "--group", "5"], "NAME:EPSILON:SHARE"),
        (["--data", "digits", "--group", "5:0.3"], "add up to 0.3"),
        (["--data", "digits", "--queries", "360"], "left to test the student"),
        (["--data", "digits", "--variant", "weighing"], "Did you mean 'weighting'"),
        (["--data", "digits", "--aggregation", "lnmax"], "aggregation"),
        (["--data", "digits", "--teacher", "tree"], "there is no such model"),
        (["--data", "digits", "--unit", "person"], "unit"),
        (["--data", "digits", "--unit", "user"], "unit.ids=None"),
        (["--data", "digits", "--group-labels", "none.txt"], "it cannot be read"),
        (["--data", "digits", "--resume"], "it must say where the run is"),
        (["--data", "mine:records"], "a decision about people"),
        ([], "there is nothing to learn from"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(apportion, tmp_path, chosen, message):
    code, _, err = apportion("pate", *chosen)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_own_data_and_models(apportion, tmp_path, monkeypatch):
    (tmp_path / "my_people.py").write_text(
        "import torch, apportion as ap\n"
        "def data():\n"
        "    x = torch.randn(120, 3)\n"
        "    return (x[:60], (x[:60, 0] > 0).long()), ap.Public((x[60:], (x[60:, 0] > 0).long()))\n"
        "def network():\n"
        "    return torch.nn.Linear(3, 2)\n"
    )
    monkeypatch.delitem(sys.modules, "my_people", raising=False)
    mine = [
        "--data",
        "my_people:data",
        "--classes",
        "2",
        "--queries",
        "30",
        "--teachers",
        "5",
        "--teacher",
        "my_people:network",
    ]
    declared = ["--group", "4:1", "--delta", "1e-5", "--unit", "record", "--epochs", "2", "--processes", "1"]
    code, out, err = apportion("pate", *mine, *declared, "--out", "mine", "--json")
    assert code == 0, err
    assert json.loads(out.strip().splitlines()[-1])["groups"][0]["name"] == "4"
    assert apportion("pate", *mine, *declared[2:])[0] == 2


def test_the_help_teaches(apportion):
    code, out, _ = apportion("pate", "--help")
    assert code == 0
    for word in ("noisy winner", "--group", "EPSILON:SHARE", "--variant", "upsampling", "secret/", "Example"):
        assert word in out
