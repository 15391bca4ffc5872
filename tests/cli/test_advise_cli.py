"""`apportion advise`."""

import json

SMALL = ("advise", "--population", "4000", "--sample-rate", "0.05", "--steps", "10", "--recipe", "abadi")


def test_it_shows_noise_attacker_and_delta(apportion):
    code, out, _ = apportion(*SMALL, "--epsilon", "1", "--epsilon", "2")
    assert code == 0
    assert "abadi: 4,000 records, 10 steps with q = 0.05 (batches of 200)" in out
    assert "publishing one record of 4,000 in full would satisfy δ = 1/4,000" in out
    assert "--runs 5 shows what each of five may spend" in out
    assert out.count("≤") == 4


def test_equal_runs_name_the_rule_with_less_noise(apportion):
    code, out, _ = apportion(*SMALL, "--epsilon", "2", "--delta", "1e-6", "--runs", "5")
    assert code == 0
    assert "5 equal runs under ε = 2, δ = 1e-06: ε = 0.70" in out
    assert "0.4 each at δ = 2e-07 with the rule sum" in out
    assert "Less noise: gaussian." in out


def test_json_dry_run_and_page(apportion, tmp_path):
    more = (
        "--epsilon",
        "8",
        "--dry-run",
        "synthetic",
        "--model",
        "linear",
        "--lr",
        "4",
        "--runs",
        "2",
        "--out",
        "advice.html",
    )
    code, out, err = apportion(*SMALL, *more, "--json")
    assert code == 0
    content = json.loads(out.splitlines()[-1])
    (one,) = content["candidates"]
    assert 0.1 < one["accuracy"] <= 1
    assert content["dry_run_data"] == "synthetic"
    assert content["delta"] == 1e-5
    assert {kept["recipe"] for kept in content["kept_results"]} == {"default"}
    assert "which is taken to be public" in err
    page = (tmp_path / "advice.html").read_text(encoding="utf-8")
    assert "buys: 4,000 records" in page
    assert "dry run on synthetic" in page
    assert "each of 2 runs" in page
    assert (
        '"ticktext":["0.25","0.5","1","2","4","8"]' in page
    )  # kept results lie at all of them, whatever was asked about


def test_the_unit_is_said(apportion):
    code, out, _ = apportion(*SMALL, "--unit", "user", "--epsilon", "1")
    assert code == 0
    assert "4,000 users" in out


def test_what_is_wrong_is_one_sentence_and_nothing_is_written(apportion, tmp_path):
    for wrong, words in (
        (("--out", "advice.pdf"), "cannot be written"),
        (("--epsilon", "-1"), "epsilon"),
        (("--population", "0"), "population"),
        (("--runs", "0"), "runs"),
        (("--model", "cnn"), "only a dry run trains a model"),
        (("--lr", "2"), "only a dry run trains a model"),
        (("--recipe", "defualt"), "default"),
        (("--dry-run", "nonsense"), "nonsense"),
        (("--dry-run", "digits", "--population", "100000", "--epsilon", "1"), "public records"),
    ):
        code, out, err = apportion(*SMALL, *wrong)
        assert (code, out) == (2, ""), wrong
        assert words in err
        assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1
    assert not list(tmp_path.iterdir())
