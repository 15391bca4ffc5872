"""`apportion.sklearn`: what is declared is not read from records, no value changes an outcome, every fit is charged, no record is kept."""

import math
import pickle
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import apportion as ap
from apportion.accounting.run_filter import GaussianRuns
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.sklearn import PrivateClassifier, PrivateRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, size=(300, 3))
Y = np.where(X[:, 0] > 5, "high", "low")
COST = X @ [1.0, 2.0, 0.0]
DECLARED = {"epsilon": 3.0, "delta": 1e-5, "population": 300, "bounds": (0, 10)}


def classifier(**more):
    return PrivateClassifier(**DECLARED | {"classes": ["low", "high"], "steps": 4} | more)


def regressor(**more):
    return PrivateRegressor(**DECLARED | {"target_bounds": (0, 30), "steps": 4} | more)


def weights(estimator, features=X, targets=None):
    """Of a repeatable fit."""
    estimator = estimator.set_params(public=True, random_state=0, count_usable=False)
    fitted = estimator.fit(
        features, (Y if isinstance(estimator, PrivateClassifier) else COST) if targets is None else targets
    )
    return torch.cat([one.detach().flatten() for one in fitted.model_.parameters()])


def test_a_classifier_learns_and_says_what_it_costs():
    fitted = classifier(steps=60).fit(X, Y)
    assert fitted.score(X, Y) > 0.85
    assert fitted.classes_.tolist() == ["high", "low"]
    assert 0.99 * 3 <= fitted.epsilon_ <= 3
    assert fitted.private_
    chances = fitted.predict_proba(X)
    np.testing.assert_allclose(chances.sum(1), 1)
    assert (fitted.classes_[chances.argmax(1)] == fitted.predict(X)).all()
    np.testing.assert_allclose(fitted.decision_function(X), np.log(chances[:, 1] / chances[:, 0]), rtol=1e-4, atol=1e-5)


def test_three_classes_and_a_network():
    fitted = classifier(classes=[1, 2, 3], model="mlp").fit(X, 1 + (X[:, 0] // 4).astype(int))
    assert fitted.decision_function(X).shape == fitted.predict_proba(X).shape == (300, 3)
    assert isinstance(fitted.model_, torch.nn.Sequential)
    own = classifier(model=lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)).fit(X, Y)
    assert own.model_.bias is None


def test_a_regressor_learns_and_stays_within_its_bounds():
    fitted = regressor(steps=60).fit(X, COST)
    assert fitted.score(X, COST) > 0.8
    assert ((fitted.predict(100 * X) >= 0) & (fitted.predict(100 * X) <= 30)).all()
    assert regressor(loss="huber").fit(X, list(COST)).predict(X).shape == (300,)


@pytest.mark.parametrize("name", ["epsilon", "delta", "population", "bounds", "classes", "target_bounds"])
def test_what_is_not_declared_is_not_read_from_the_records(name):
    estimator = regressor(**{name: None}) if name == "target_bounds" else classifier(**{name: None})
    with pytest.raises(InvalidArgument, match=f"^{name}=None: .*declared"):
        estimator.fit(X, COST if name == "target_bounds" else Y)


def test_the_classes_are_those_that_were_declared():
    fitted = classifier(classes=["low", "medium", "high"]).fit(X, Y)
    assert fitted.classes_.tolist() == ["high", "low", "medium"]
    assert fitted.predict_proba(X).shape == (300, 3)


def test_the_population_is_the_declared_one():
    facts = [classifier(population=290).fit(X[:size], Y[:size]).statement_ for size in (300, 280)]
    assert (
        facts[0] == facts[1] | {"written": facts[0].get("written")} if "written" in facts[0] else facts[0] == facts[1]
    )
    assert facts[0]["population"] == 290


def with_value(value, at=(7, 1)):
    changed = X.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize("kind", [classifier, regressor])
def test_a_feature_outside_its_bounds_is_the_closer_end_and_nan_the_middle(kind):
    ends = [weights(kind(), with_value(value)) for value in (10.0, 1e300, math.inf)]
    assert all(torch.equal(one, ends[0]) for one in ends)
    assert torch.equal(weights(kind(), with_value(-math.inf)), weights(kind(), with_value(0.0)))
    assert torch.equal(weights(kind(), with_value(math.nan)), weights(kind(), with_value(5.0)))
    assert not torch.equal(ends[0], weights(kind(), with_value(5.0)))


def test_a_label_that_nobody_declared_contributes_nothing_whatever_it_is():
    def labelled(value):
        return [value if place == 7 else label for place, label in enumerate(Y.tolist())]

    found = [weights(classifier(), targets=labelled(value)) for value in ("lowest", math.nan, None, [1])]
    assert all(torch.equal(one, found[0]) for one in found)
    for declared in ("low", "high"):
        assert not torch.equal(found[0], weights(classifier(), targets=labelled(declared)))


def test_a_text_among_the_labels_of_a_list_leaves_the_others_what_they_are():
    numbers = (Y == "high").astype(int).tolist()
    with_text, with_number = (weights(classifier(classes=[0, 1]), targets=[*numbers[:-1], odd]) for odd in ("?", 17))
    assert torch.equal(with_text, with_number)


def test_a_target_outside_its_bounds_is_the_closer_end_and_nan_contributes_nothing():
    def changed(value):
        targets = COST.copy()
        targets[7] = value
        return weights(regressor(), targets=targets)

    assert torch.equal(changed(math.inf), changed(30.0))
    assert torch.equal(changed(-5.0), changed(0.0))
    assert not any(torch.equal(changed(math.nan), changed(value)) for value in (0.0, 15.0, 30.0))


BAD = {
    "strings": (np.array([["a", "b"]] * 4), "X='array of <U1'"),
    "objects": (np.array([[1.0, 2.0]] * 4, dtype=object), "X='array of object'"),
    "dates": (np.array([["2020-01-01"]] * 4, dtype="datetime64[D]"), "X='array of datetime64"),
    "a frame with a column of texts": (pd.DataFrame({"age": [1.0] * 4, "sex": ["m"] * 4}), "X=\"column 'sex' of"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", [classifier, regressor])
def test_what_does_not_hold_numbers_is_one_sentence(case, kind):
    features, words = BAD[case]
    with pytest.raises(InvalidArgument, match=f"^{words}.*does not hold numbers"):
        kind().fit(features, Y[:4] if kind is classifier else COST[:4])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": (1, 0)}, "^bounds="),
        ({"bounds": ([0, 0], [1, 1])}, "^bounds=.*each of 3"),
        ({"bounds": (0, math.inf)}, "^bounds="),
        ({"bounds": 3}, "^bounds="),
        ({"classes": ["low"]}, "^classes="),
        ({"classes": "low"}, "^classes="),
        ({"unit": "user"}, "^unit="),
        ({"model": "forest"}, "^model="),
        ({"model": torch.nn.Linear(3, 2)}, "^model='Linear'.*new model"),
        ({"weights": [1, 2, 3]}, "loss.weights="),
        ({"public": True, "ledger": "x.sqlite"}, "^ledger="),
        ({"recipe": "nothing"}, "nothing"),
        ({"epsilon": -1.0}, "^epsilon="),
    ],
)
def test_arguments_that_cannot_be_right(options, words):
    with pytest.raises(ap.ApportionError, match=words):
        classifier(**options).fit(X, Y)


def test_missing_values_of_a_frame_are_the_middle_of_the_bounds():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=pd.Series([1, None] * 150, dtype="Int64"))
    fitted = classifier().fit(frame, pd.Series(Y))
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert fitted.predict(frame).shape == (300,)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["b", "a", "c", "d"]])
    assert torch.equal(weights(classifier(), frame), weights(classifier(), frame.fillna({"d": 5})))
    with_missing = pd.Series(COST.round(), dtype="Int64").where(X[:, 0] < 9)
    assert torch.isfinite(weights(regressor(), targets=with_missing)).all()


def test_every_fit_is_charged_and_one_too_many_is_refused(tmp_path):
    limit = ap.Budget(epsilon=3.5, delta=1e-5, unit=ap.Record())
    ledger = ap.Ledger.create(tmp_path / "books.sqlite", name="visits", rule=GaussianRuns(limit))
    ledger.close()
    estimator = classifier(ledger=tmp_path / "books.sqlite").fit(X, Y)
    with pytest.raises(BudgetExhausted):
        clone(estimator).fit(X, Y)


def test_nothing_is_charged_for_what_is_refused(tmp_path):
    limit = ap.Budget(epsilon=3.5, delta=1e-5, unit=ap.Record())
    ap.Ledger.create(tmp_path / "books.sqlite", name="visits", rule=GaussianRuns(limit)).close()
    before = (tmp_path / "books.sqlite").read_bytes()
    with pytest.raises(InvalidArgument):
        classifier(ledger=tmp_path / "books.sqlite").fit(X.astype(str), Y)
    with pytest.raises(ValueError, match="inconsistent"):
        classifier(ledger=tmp_path / "books.sqlite").fit(X, Y[:-1])
    assert (tmp_path / "books.sqlite").read_bytes() == before


def test_cross_validation_is_for_records_that_were_declared_public():
    with pytest.raises(ValueError, match="(?s)public=False.*held-out records"):
        cross_val_score(classifier(), X, Y, cv=2)
    pipeline = make_pipeline(FunctionTransformer(), classifier())
    with pytest.raises(ValueError, match="(?s)public=False.*held-out records"):
        GridSearchCV(pipeline, {"privateclassifier__lr": [1.0]}, cv=2).fit(X, Y)
    assert cross_val_score(classifier(public=True, population=150), X, Y, cv=2).shape == (2,)


def test_a_seed_makes_a_model_repeatable_and_says_that_it_is_not_private():
    with pytest.warns(UserWarning, match="random_state=3 .* NOT private"):
        fitted = classifier(random_state=3).fit(X, Y)
    assert not fitted.private_
    assert torch.equal(weights(classifier()), weights(classifier()))
    first, second = (classifier().fit(X, Y).model_.weight for _ in range(2))
    assert not torch.equal(first, second)


def test_the_generator_of_torch_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    classifier().fit(X, Y)
    assert torch.equal(torch.rand(1), expected)


def test_a_fitted_estimator_holds_no_record():
    """A run holds the curator, which holds the records: nothing of it may travel with a pickle."""
    for kind, targets in ((classifier, Y), (regressor, COST)):
        fitted = kind().fit(X, targets)
        kept = pickle.dumps(fitted)
        assert len(kept) < X.nbytes
        row = torch.from_numpy((X / 5 - 1).astype(np.float32))[0].numpy().tobytes()
        assert row not in kept
        np.testing.assert_array_equal(pickle.loads(kept).predict(X), fitted.predict(X))


def test_pipelines_clones_and_parameters():
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows / 10), classifier(bounds=(0, 1), steps=60))
    assert clone(pipeline).fit(X, Y).score(X, Y) > 0.8
    copied = clone(classifier(lr=0.3))
    assert copied.get_params() == classifier(lr=0.3).get_params()
    assert copied.set_params(lr=0.1).lr == 0.1


@pytest.mark.slow
def test_the_example_script_runs():
    path = Path(__file__).parents[1] / "examples" / "scikit_learn.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    example = runpy.run_path(str(path))
    accuracy, fitted = example["classify_digits"](3.0)
    assert accuracy > 0.8
    assert fitted.epsilon_ <= 3
    assert example["predict_progression"](3.0)[0] > 0.1


BY_TYPE = "arrays of objects are refused by their type: converting them would fail or not depending on values"
NO_ERROR = "an error for a value of y would reveal the record that has it"
OTHERS = "it fits labels that were not declared, and expects classes_ from y"
EXPECTED = {
    "PrivateClassifier": {
        "check_dtype_object": BY_TYPE,
        "check_supervised_y_no_nan": NO_ERROR,
        "check_classifiers_regression_target": NO_ERROR,
        "check_classifiers_classes": OTHERS,
        "check_classifiers_train": OTHERS,
    },
    "PrivateRegressor": {"check_dtype_object": BY_TYPE, "check_supervised_y_no_nan": NO_ERROR},
}
CHECKED = {"epsilon": 100.0, "delta": 1e-6, "population": 100, "bounds": (-5, 5), "public": True, "count_usable": False}


def test_the_page_names_every_check_that_does_not_hold():
    page = (Path(__file__).parents[1] / "docs" / "sklearn.md").read_text(encoding="utf-8")
    assert all(f"`{check}`" in page for checks in EXPECTED.values() for check in checks)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of data with one column too many, and of checks that do not apply
@parametrize_with_checks(
    [
        PrivateClassifier(**CHECKED, classes=(0, 1), steps=30),
        PrivateRegressor(**CHECKED, target_bounds=(-3, 3), steps=100, lr=1.0),
    ],
    expected_failed_checks=lambda estimator: EXPECTED[type(estimator).__name__],
    xfail_strict=True,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
