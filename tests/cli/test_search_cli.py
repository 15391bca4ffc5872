"""`apportion search`, as a person and as a script use it."""

import json

import pytest

from apportion.strategies.clip import Decay, Sequence

QUICK = [
    *("search", "--data", "digits", "--model", "linear", "--batch-size", "256", "--noise-multiplier", "2", "--lr", "2"),
    *("--method", "fast", "--runs", "1", "--processes", "1"),
]


def test_a_search_ends_with_thresholds_that_transfer_and_decay_take(apportion, tmp_path):
    code, out, err = apportion(*QUICK, "--epochs", "3", "--maximum", "8", "--fit", "--out", "found/t.json", "--json")
    found = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert Sequence(file=tmp_path / "found" / "t.json").thresholds == tuple(found["thresholds"])
    assert len(found["thresholds"]) == 3
    assert found["start"] == found["first_thresholds"][0] == found["thresholds"][0]
    assert "no privacy guarantee, and public data needs none" in " ".join(err.split())
    assert f"C₀ = {found['fit']['start']:.4g} (fitted) and a = {found['fit']['power']:.4g}" in " ".join(err.split())
    assert f"As published   --recipe lin-decay --set clip.start={found['start']:.4g}" in err
    assert "candidate 10 of about 30" in err
    usable = (
        f"--recipe lin-decay --set clip.start={found['fit']['start']:.4g} --set clip.power={found['fit']['power']:.4g}"
    )
    if 0 < found["fit"]["power"] <= 1:
        assert usable in err
        Decay(**found["fit"])
    else:
        assert usable not in err
    code, out, err = apportion(*QUICK, "--epochs", "3", "--maximum", "8", "--out", "found/t.json", "--json")
    assert code == 0
    assert "going on with found/t.json: 30 candidates were tried already" in err
    assert json.loads(out.strip().splitlines()[-1]) == found


def test_the_thresholds_can_be_trained_with(apportion, tmp_path):
    apportion(*QUICK, "--maximum", "8", "--out", "t.json")
    code, out, _ = apportion(
        *("train", "--data", "digits", "--model", "linear", "--sample-rate", "0.1", "--steps", "3", "--lr", "1"),
        *("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437"),
        *("--recipe", "lin-transfer", "--set", "clip.file=t.json", "--json"),
    )
    assert code == 0
    found = json.loads((tmp_path / "t.json").read_text())
    assert json.loads(out.strip().splitlines()[-1])["clip"]["thresholds"] == found["thresholds"]


def test_private_data_is_refused_before_a_file_is_written(apportion, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, apportion\n"
        "pair = (torch.rand(40, 3), torch.zeros(40, dtype=torch.long))\n"
        "def data(): return pair, apportion.Public(pair)\n"
        "def model(): return torch.nn.Linear(3, 2)\n"
    )
    own = ("search", "--data", "mine:data", "--model", "mine:model", "--noise-multiplier", "1", "--batch-size", "20")
    code, _, err = apportion(*own, "--out", "found/t.json")
    assert code == 2
    assert "data='mine:data': a search on private records is not covered by any budget" in err
    assert "--public" in err
    assert not (tmp_path / "found").exists()
    code, *_ = apportion(
        *own, "--public", "--method", "fast", "--runs", "1", "--start", "0.5", "--maximum", "1", "--processes", "1"
    )
    assert code == 0
    assert json.loads((tmp_path / "runs" / "search-mine-data.json").read_text())["settings"]["public"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search"], "data=None: there is nothing to search on"),
        (["search", "--data", "digits"], "noise_multiplier=None: the best threshold depends on the noise"),
        ([*QUICK, "--fit"], "fit=True: a decay cannot be fitted to one threshold"),
        ([*QUICK, "--step", "0.1"], "step=0.1: the method fast has no such number"),
        ([*QUICK, "--method", "greddy"], "Did you mean 'greedy'"),
        ([*QUICK, "--batch-size", "2000"], "it exceeds population=1437"),
        ([*QUICK, "--processes", "0"], "processes=0"),
        ([*QUICK, "--activation", "relu"], "linear has none to choose"),
        ([*QUICK, "--data", "mnst"], "Did you mean 'mnist'"),
    ],
)
def test_bad_input_is_one_line(apportion, arguments, words):
    code, out, err = apportion(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_other_settings_do_not_overwrite_a_file(apportion, tmp_path):
    apportion(*QUICK, "--maximum", "8", "--out", "t.json")
    before = (tmp_path / "t.json").read_text()
    code, _, err = apportion(*QUICK, "--maximum", "8", "--seed", "1", "--out", "t.json")
    assert code == 2
    assert "the search in it has seed = 0, and now it is 1" in err
    assert (tmp_path / "t.json").read_text() == before
