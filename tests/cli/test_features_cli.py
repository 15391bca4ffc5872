"""Features on the command line and in files: trained on, kept, sent along with the run; and what is refused."""

import importlib
import json
import stat
import sys

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.compare.defaults import explain_choices, with_features, with_training_defaults
from apportion.compare.feature_defaults import learning_rate
from apportion.compare.feature_prediction import ArrayEncoding

BUDGET = ("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437")
FAST = ("--steps", "3", "--sample-rate", "0.1")
MAP = """
from dataclasses import dataclass
from torch import nn

@dataclass(frozen=True)
class Halves:
    size: int = 2
    public: str = "averages of neighbours"
    def build(self, shape):
        return nn.AvgPool2d(self.size)

class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

def network():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())

def mixing():
    return Mixing()
"""


@pytest.fixture
def place(apportion, tmp_path, monkeypatch):
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path / "data"))
    (tmp_path / "own_maps.py").write_text(MAP)
    return tmp_path


def train(apportion, *more, out="run"):
    code, printed, err = apportion("train", "--data", "digits", *BUDGET, *FAST, "--json", "--out", out, *more)
    assert code == 0, err
    return json.loads(printed.splitlines()[-1])


def test_channels_are_normalised_by_a_question_that_is_paid_for(apportion, place):
    said = ("--features", "scatter norm=channel multiplier=12")
    code, out, err = apportion("plan", "--data", "digits", *BUDGET, *FAST, *said, "--out", "plan.json")
    assert code == 0, err
    assert "by one question about all records, with z = 12" in out
    run = train(apportion, "--features", "scatter norm=channel multiplier=12", "--recovery", "exact")
    assert 0.99 * 3 < run["epsilon"] <= 3
    kept = json.loads((place / "run" / "public" / "privacy.json").read_text(encoding="utf-8"))
    assert kept["norm"]["multiplier"] == 12
    assert kept["draws_charged"] == 4
    data = ap.data.load("digits").test.data
    predictor = ap.load("run")
    assert bool(predictor.model[1][0].known)
    assert float(predictor.model[1][0].mean.abs().max()) > 0
    accuracy = np.mean([int(one) == int(truth) for one, truth in zip(predictor.predict(data[0]), data[1], strict=True)])
    assert accuracy == pytest.approx(run["test_accuracy"])

    files = ("--data", "digits", "--plan", "plan.json", "--out", "other", "--json")
    code, _, err = apportion("train", *files, "--features", "scatter")
    assert code == 2
    assert "is a plan with the question" in err
    code, _, err = apportion("train", *files, *said)
    assert code == 0, err
    for text, words in (
        ("scatter norm", "is not name=value"),
        ("scatter bound=2", "asks none"),
        ("scatter norm=x", "x"),
    ):
        code, _, err = apportion("train", "--data", "digits", *BUDGET, *FAST, "--out", "refused", "--features", text)
        assert code == 2
        assert words in err


def test_a_comparison_normalises_channels_too(apportion, place):
    said = ("--features", "scatter norm=channel multiplier=12", "--recipe", "abadi", "--recipe", "non-private")
    code, _, err = apportion("compare", "--data", "digits", *BUDGET[:2], *FAST, *said, "--seed", "1", "--out", "both")
    assert code == 0, err
    found = json.loads((place / "both" / "results.json").read_text(encoding="utf-8"))
    runs = {one["recipe"]: one for one in found["runs"]}
    assert runs["abadi"]["epsilon"] <= 3
    assert runs["non-private"]["test_accuracy"] > 0.2


def test_from_images_to_predictions_in_one_call(apportion, place):
    run = train(apportion, "--features", "scatter")
    assert run["epsilon"] <= 3
    assert run["model"] == "scatter + linear"
    assert run["features"]["public"] == "a formula; nothing in it was learned; whitened by drawn images"
    data = ap.data.load("digits").test.data
    np.save("new.npy", data[0][:20].numpy())

    code, out, err = apportion("predict", "run", "new.npy", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["classes"] == [str(number) for number in range(10)]
    predictor = ap.load("run")
    assert predictor.predict(data[0][:20]) == found["predictions"]
    features, _ = ap.features.extract(predictor.model[0], (data[0][:20], data[1][:20]))
    torch.testing.assert_close(torch.from_numpy(predictor.outputs("new.npy")).float(), predictor.model[1](features))
    accuracy = np.mean([int(one) == int(truth) for one, truth in zip(predictor.predict(data[0]), data[1], strict=True)])
    assert accuracy == pytest.approx(run["test_accuracy"])  # of the averaged weights
    files = list((place / "data" / "features").iterdir())
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600, 0o600]  # beside the data, and secret
    assert not list((place / "run" / "public").rglob("*.features"))


def test_defaults_of_their_own():
    said = {
        "data": "mnist",
        "features": "scatter",
        "epsilon": 1.0,
        "recipe": [{"name": "default"}, {"name": "abadi"}, {"name": "non-private"}],
    }
    found = with_training_defaults(said)
    assert (found["sample_rate"], found["steps"], found["lr"], found["momentum"]) == (0.2, 200, 0.45, 0.9)
    update = {"average": 0.98, "divide_by_clip": True}
    steadied = {"name": "default", "clip": {"start": 0.1, "ratio": 1.0}, "update": update}
    assert found["recipe"][:2] == [steadied, {"name": "abadi"}]
    assert (found["recipe"][2]["optimizer"], found["recipe"][2]["momentum"]) == ("adam", 0.0)
    steadied = {
        "name": "default",
        "clip": {"start": 2.0, "ratio": 2.0},
        "update": {"average": 0.5, "divide_by_clip": False},
    }
    own = {"lr": 0.2, "momentum": 0.5, "steps": 3, "batch_size": 9, "recipe": [steadied]}
    assert with_training_defaults(said | own) == said | own
    assert with_training_defaults(said | {"optimizer": "adam"}).get("momentum") is None
    assert "momentum" not in with_training_defaults(said | {"features": None})


@pytest.mark.parametrize(
    ("data", "features", "epsilon", "rate"),
    [
        ("fashion-mnist", "scatter", 1.0, 0.45),  # 0.3·60,000/(200·√39,690)
        ("fashion-mnist", {"kind": "scatter", "norm": "group"}, 1e-3, 0.1),
        ("fashion-mnist", "scatter", 3.0, 0.68),  # 0.3·60,000·3/(400·√39,690)
        ("fashion-mnist", "scatter", 8.0, 0.75),
        (
            "cifar10",
            {"kind": "scatter", "directions": 384},
            3.0,
            0.37,
        ),  # √3 in place of 3: 0.3·50,000·√3/(200·√122,880)
        ("cifar10", {"kind": "pretrained"}, 8.0, 1.5),
        ("cifar10", "scatter", 1.0, 0.19),
        ("cifar10", {"kind": "pretrained"}, 1.0, 0.66),
        ("imdb", "words", 1.0, 0.27),
        ("my:data", "scatter", 1.0, 1.0),  # of which no population was said
    ],
)
def test_a_layer_moves_as_far_as_noise_allows(data, features, epsilon, rate):
    assert learning_rate({"data": data, "features": features, "epsilon": epsilon}) == rate


def test_a_file_says_it_with_settings(apportion, place):
    text = 'data = "digits"\nsteps = 2\nsample_rate = 0.1\nepsilon = 3\nrecipe = ["non-private", "abadi"]\n'
    (place / "one.toml").write_text(text + '[features]\nkind = "scatter"\nscale = 1\nangles = 3\nnorm = "none"\n')
    code, out, err = apportion("compare", "one.toml", "--json")
    assert code == 0, err
    for run in json.loads(out.splitlines()[-1])["runs"]:
        assert run["features"]["map"] == {"kind": "scatter", "depth": 2, "angles": 3, "scale": 1}
        assert run["features"]["norm"] is None
        assert run["model"] == "scatter + linear"


@pytest.mark.slow
def test_maps_of_ones_own(apportion, place):
    assert train(apportion, "--features", "own_maps:Halves")["features"]["map"]["size"] == 2
    np.save("new.npy", np.zeros((2, 1, 8, 8), dtype=np.float32))
    assert len(ap.load("run").predict("new.npy")) == 2
    (place / "own_maps.py").write_text(MAP.replace("size: int = 2", "size: int = 4"))
    importlib.reload(sys.modules["own_maps"])
    with pytest.raises(ap.InvalidArgument, match="another way"):
        ap.load("run")


@pytest.mark.slow
def test_a_run_goes_on_with_its_features(apportion, place):
    train(apportion, "--features", "scatter")
    code, _, err = apportion("train", "--resume", "run")
    assert code == 0, err


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (("--features", "scater"), "Did you mean"),
        (("--features", "own_maps:network"), "build(shape)"),
        (("--features", "own_maps:nothing"), "cannot be imported"),
        (("--features", "os:system"), "build(shape)"),
        (("--features", "pretrained"), "features"),
        (("--features", "scatter", "--user-column", "3", "--unit", "user"), "user_column"),
    ],
)
def test_what_cannot_be_is_refused_in_words(apportion, place, said, word):
    code, _, err = apportion("train", "--data", "digits", *BUDGET, *FAST, *said, "--out", "run")
    assert code == 2
    assert word.lower() in err.lower()
    assert "Traceback" not in err
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ('{kind = "pretrained", source = "own_maps:network"}', "features.public"),
        ('{kind = "pretrained", source = "own_maps:mixing", public = "none"}', "mixes records"),
        ('{kind = "scatter", size = 3}', "settings"),
        ('{kind = "scatter", norm = "batch"}', "features.norm"),
        ("3", "features"),
    ],
)
def test_what_a_file_must_not_say(apportion, place, table, word):
    (place / "one.toml").write_text(f'data = "digits"\nepsilon = 3\nfeatures = {table}\n')
    code, _, err = apportion("compare", "one.toml")
    assert code == 2
    assert word in err


@pytest.mark.slow
def test_public_weights_by_name(apportion, place):
    text = 'data = "digits"\nepsilon = 3\nsteps = 2\nsample_rate = 0.1\nrecipe = ["abadi"]\n'
    stated = 'features = {kind = "pretrained", source = "own_maps:network", public = "none were trained"}\n'
    (place / "one.toml").write_text(text + stated)
    code, _, err = apportion("compare", "one.toml")
    assert code == 0, err
    (folder,) = (place / "runs" / "one" / "runs").iterdir()
    assert len(ap.load(folder).predict(np.zeros((3, 1, 8, 8), dtype=np.float32))) == 3


@pytest.mark.parametrize(
    "new", [np.zeros((2, 1, 9, 8), np.float32), np.zeros((2, 1, 8, 8), np.uint8), np.array(["a"], dtype=object)]
)
def test_new_inputs_of_another_form_are_refused(tmp_path, new):
    np.save(tmp_path / "new.npy", new)
    with pytest.raises(ap.InvalidArgument, match="data"):
        ArrayEncoding((1, 8, 8), torch.float32, 10).read_inputs(tmp_path / "new.npy")


def test_views_on_the_command_line_and_in_results(apportion):
    assert train(apportion, "--views", "3 shift=1")["views"] == {"count": 3, "by": ["shift=1"]}


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ("flip", "begins with the number of views"),
        ("2 mixup", "one record of two"),
        ("2 turn", "there is no such augmentation"),
        ("2 shift=x", "not a number"),
        ("0 flip", "at least 1"),
        ("2", "without an augmentation"),
        ("2 nowhere:function", "cannot be imported"),
    ],
)
def test_views_that_cannot_be_made_are_refused(apportion, tmp_path, views, message):
    code, _, err = apportion("train", "--data", "digits", *BUDGET, *FAST, "--views", views, "--out", "run")
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "run").exists()


IMAGES = {"data": "mnist", "recipe": [{"name": "default"}]}


def test_large_images_go_through_a_scattering_transform_unless_something_was_said():
    assert with_features(IMAGES)["features"] == "scatter"
    for other in (
        {"data": "digits"},
        {"data": "names"},
        {"data": "mnist", "population": 2_000},
        {"data": "mnist", "model": "cnn"},
        {"data": "mnist", "views": "2 flip"},
        {"data": "mnist", "recipe": [{"name": "abadi"}]},
        {"data": "your data"},
    ):
        assert with_features(IMAGES | other).get("features") is None
    none = with_training_defaults(with_features(IMAGES | {"features": "none"}))
    assert none["features"] is None
    assert "batch_size" in none


def test_photographs_get_colours_mirrors_and_a_random_layer_unless_something_was_said():
    photographs = IMAGES | {"data": "cifar10", "epsilon": 3.0}
    for said in (photographs, photographs | {"features": "scatter"}, photographs | {"features": {"kind": "scatter"}}):
        filled = with_training_defaults(with_features(said))
        assert filled["features"] == {"kind": "scatter", "colours": "opponent", "mirror": True, "directions": 384}
        assert (filled["steps"], filled["lr"]) == (200, 0.37)
        assert filled["recipe"][0]["clip"] == {"start": 20.0, "ratio": 1.0}
        assert any("directions=384: for colour photographs" in line for line in explain_choices(said, filled))
    own = {"kind": "scatter", "mirror": False}
    kept = with_training_defaults(photographs | {"features": own})
    assert kept["features"] == own
    assert not any("directions" in line for line in explain_choices(photographs | {"features": own}, kept))
    grey = with_training_defaults(with_features(IMAGES | {"epsilon": 3.0}))
    assert (grey["features"], grey["steps"], grey["lr"]) == ("scatter", 400, 0.68)


def test_what_was_chosen_is_said_with_its_reason(apportion):
    filled = with_training_defaults(with_features(IMAGES))
    first, second = explain_choices(IMAGES, filled)
    assert first.startswith("features scatter: for images of 16 pixels or more")
    assert second.startswith(
        "sample_rate 0.2, steps 200, lr 1, momentum 0.9: one layer on a scattering transform moves by"
    )
    assert (
        explain_choices(
            IMAGES | {"features": "scatter", "lr": 1, "momentum": 0, "steps": 3, "sample_rate": 0.1}, filled
        )
        == []
    )
    code, _, err = apportion("train", "--data", "digits", *BUDGET, "--steps", "2")
    assert code == 0
    assert "Chosen, as nothing was said: sample_rate 0.2, lr 2: measured on digits." in " ".join(err.split())


def test_a_run_predicts_with_whitened_features(apportion, tmp_path):
    toml = tmp_path / "one.toml"
    toml.write_text(
        'data = "digits"\nfeatures = {kind = "scatter", norm = "whiten"}\nepsilon = 3\ndelta = 1e-5\nunit = "record"\n'
        'population = 1437\nsample_rate = 0.2\nsteps = 4\nlr = 1.0\nrecipe = ["abadi"]\n',
        encoding="utf-8",
    )
    code, _, err = apportion("compare", str(toml), "--out", str(tmp_path / "out"))
    assert code == 0, err
    folder = next((tmp_path / "out" / "runs").iterdir())
    predictor = ap.load(folder)
    images = ap.data.load("digits").test.data[0][:5]
    assert len(predictor.predict(images)) == 5
