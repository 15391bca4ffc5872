"""One noisy score about records that were held out: what it counts, that it has noise, and that each record is scored alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.compare import held_out
from apportion.compare.held_out import HoldoutChoice, ask_score, make_key, split_subject
from apportion.compare.resolve import resolve
from apportion.compare.table_models import build_table_model, in_units
from apportion.compare.table_subject import TableChoice
from apportion.tables import Encoding
from apportion.training.metrics import as_metric

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))
from made_tables import SCHEMA, patients

HEADER = "patient,age,sex,dose,ill"
HALF = HoldoutChoice(fraction=0.5, epsilon=0.5)
RECORD, USER = ap.Record(), ap.User()


@pytest.fixture
def folder(tmp_path):
    """A run folder with a model that knows the rule of the made-up patients."""
    (tmp_path / "t.toml").write_text('unit = "patient"\n' + SCHEMA)
    (tmp_path / "t.csv").write_text(patients(300, header=HEADER))
    encoding = Encoding(tmp_path / "t.toml", "ill")
    encoding.save(tmp_path, model="linear")
    model = build_table_model("linear", encoding)
    with torch.no_grad():  # age: 72 years, dose: 10 units
        model[1].weight[:] = torch.tensor([[0.0, 0, 0, 0, 0], [7.2, 0, 0, -10.0, 0]])
        model[1].bias[:] = torch.tensor([0.0, (18 - 54) / 10 + 5])
    save_file(model.state_dict(), tmp_path / "public/weights.safetensors")
    make_key(tmp_path)
    return tmp_path


def subject_of(folder):
    choice = TableChoice(target="ill", schema=folder / "t.toml", path=folder / "t.csv")
    return resolve("t.csv", "linear", None, choice)


def observed(monkeypatch, folder, unit=RECORD, **terms):
    """The values that the score is asked about."""
    seen = []

    def watch(values, **terms):
        seen.append((np.array(values), terms))
        return ap.statistics.mean(values, **terms)

    with monkeypatch.context() as patch:
        patch.setattr(held_out, "mean", watch)
        _, held = split_subject(subject_of(folder), HALF, folder, unit)
        score = ask_score(held, HALF, folder, unit, None, **({"seed": 0} | terms))
    ((values, asked),) = seen
    return held, score, values, asked


def test_the_parts_are_disjoint_and_are_the_whole(folder):
    subject = subject_of(folder)
    for unit in (RECORD, USER):
        kept, held = split_subject(subject, HALF, folder, unit)
        assert len(kept.table.inputs) + len(held.inputs) == 300
        assert 100 < len(held.inputs) < 200
        assert len(kept.train[0]) == len(kept.table.inputs)
        assert not set(kept.table.names) & set(held.names)
    assert not set(kept.table.owners) & set(held.owners), "users stay together"


def test_a_record_has_one_number_and_a_user_too(folder, monkeypatch):
    held, score, values, asked = observed(monkeypatch, folder)
    assert len(values) == len(held.inputs)
    assert values.mean() > 0.97, "the model is right, but for rounded doses"
    assert set(values) <= {0.0, 1.0}
    assert asked["bounds"] == (0.0, 1.0)
    assert asked["budget"].epsilon == score["epsilon"] == 0.5
    assert asked["budget"].unit == RECORD


def test_of_a_user_the_mean_counts_as_one(folder, monkeypatch):
    held, _, values, asked = observed(monkeypatch, folder, USER)
    assert len(values) == len(set(held.owners)) < len(held.inputs)
    assert asked["budget"].unit == USER
    assert ((values >= 0) & (values <= 1)).all()


def test_the_score_has_the_noise_that_it_pays_for(folder, monkeypatch):
    """It is not the exact one, and differs from it about as much as it says. The model is right in half of the cases."""
    weights = folder / "public/weights.safetensors"
    save_file({name: 0 * value for name, value in load_file(weights).items()}, weights)
    _, _, values, _ = observed(monkeypatch, folder)
    found = []
    for seed in range(1, 9):
        for name in ("public/holdout.json", "secret/holdout.asked"):
            (folder / name).unlink()
        found.append(observed(monkeypatch, folder, seed=seed)[1])
    differences = np.array([(one["value"] - values.mean()) / one["standard_error"] for one in found])
    assert len({one["value"] for one in found}) > 4
    assert 0.2 < np.sqrt((differences**2).mean()) < 3


def test_a_record_without_a_target_is_nobody(folder, monkeypatch):
    lines = (folder / "t.csv").read_text().splitlines()
    (folder / "t.csv").write_text("\n".join(lines + ["p9,50,M,1,?"] * 5 + ["broken"] * 5))
    held, _, values, _ = observed(monkeypatch, folder)
    assert np.isnan(values).sum() == (~held.usable).sum()


def test_every_record_is_scored_alone(folder):
    predictor, sizes = ap.load(folder), []
    predictor.model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    predictor.predict(folder / "t.csv")
    assert set(sizes) == {1}


def test_the_charge_is_on_disk_and_the_score_is_asked_once(folder, monkeypatch):
    _, held = split_subject(subject_of(folder), HALF, folder, RECORD)
    score = ask_score(held, HALF, folder, RECORD, None, None)
    books = Ledger.open(folder / "secret/holdout.sqlite")
    assert [event.choices[0].epsilon for event in books.events()] == [0.5]
    books.close()
    monkeypatch.setattr(held_out, "mean", lambda *_, **__: pytest.fail("asked again"))
    assert (
        ask_score(held, HALF, folder, RECORD, None, None)
        == score
        == json.loads((folder / "public/holdout.json").read_text())
    )
    (folder / "public/holdout.json").unlink()
    assert ask_score(held, HALF, folder, RECORD, None, None) is None


def test_if_all_are_held_out_one_that_contributes_nothing_is_trained_on(folder):
    everybody = HoldoutChoice(fraction=1 - 1e-12, epsilon=0.5)
    kept, held = split_subject(subject_of(folder), everybody, folder, RECORD)
    assert len(held.inputs) == 300
    assert kept.train[1].tolist() == [-1]


def test_nobody_held_out_is_a_score_of_noise(folder):
    nobody = HoldoutChoice(fraction=1e-12, epsilon=0.5)
    _, held = split_subject(subject_of(folder), nobody, folder, RECORD)
    assert len(held.inputs) == 0
    assert ask_score(held, nobody, folder, RECORD, None, 0)["epsilon"] == 0.5


def test_without_its_key_a_run_cannot_go_on(folder):
    (folder / "secret/holdout.key").unlink()
    with pytest.raises(ap.InvalidArgument, match="key by which its records were split is gone"):
        split_subject(subject_of(folder), HALF, folder, RECORD)


def test_errors_of_a_number_have_its_unit():
    schema = ap.tables.Schema({"age": {"range": (0, 1)}, "cost": {"range": (100, 300)}, "ill": {"categories": [0, 1]}})
    outputs, targets = torch.tensor([[0.5], [0.5]]), torch.tensor([[0.0], [1.0]])
    numbers, classes = Encoding(schema, "cost"), Encoding(schema, "ill")
    assert in_units(as_metric("rmse", None), numbers).function(outputs, targets) == pytest.approx(100)
    assert in_units(as_metric("mae", None), numbers).function(outputs, targets) == pytest.approx(100)
    for metric, encoding in (("r2", numbers), ("mae", classes), ("mae", None)):
        assert in_units(as_metric(metric, None), encoding) == as_metric(metric, None)
