"""Metrics on public data: their values, when they are measured, and which data is refused before anything is charged."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import nn

import apportion as ap
from apportion.errors import InvalidArgument, MissingExtra
from apportion.sampling import Sampling
from apportion.training.evaluation import Evaluation, choose_evaluation, require_measurable
from apportion.training.metrics import METRICS, as_metric

GENERATOR = torch.Generator().manual_seed(0)
LOGITS, NUMBERS = torch.randn(50, 3, generator=GENERATOR), torch.randn(50, 2, generator=GENERATOR)
CLASSES, LABELS = torch.arange(50) % 3, (torch.randn(50, 3, generator=GENERATOR) > 0).float()
TWO, CHOSEN = LOGITS[:, :2].double(), LOGITS.argmax(1)


def score(name, outputs, targets):
    return METRICS[name].function(outputs, targets)


CASES = {
    "accuracy of classes": ("accuracy", LOGITS, CLASSES, lambda: reference.accuracy_score(CLASSES, CHOSEN)),
    "accuracy of a logit": (
        "accuracy",
        LOGITS[:, :1],
        LABELS[:, 0],
        lambda: reference.accuracy_score(LABELS[:, 0], LOGITS[:, 0] > 0),
    ),
    "accuracy of labels": ("accuracy", LOGITS, LABELS, lambda: float(((LOGITS > 0) == (LABELS > 0)).double().mean())),
    "auc of classes": (
        "auc",
        LOGITS,
        CLASSES,
        lambda: reference.roc_auc_score(CLASSES, LOGITS.double().softmax(1), multi_class="ovr"),
    ),
    "auc of two classes": (
        "auc",
        TWO,
        CLASSES.clamp(max=1),
        lambda: reference.roc_auc_score(CLASSES.clamp(max=1), TWO[:, 1] - TWO[:, 0]),
    ),
    "auc of a logit": (
        "auc",
        LOGITS[:, 0],
        LABELS[:, 0].long(),
        lambda: reference.roc_auc_score(LABELS[:, 0], LOGITS[:, 0]),
    ),
    "auc of labels": ("auc", LOGITS, LABELS, lambda: reference.roc_auc_score(LABELS, LOGITS)),
    "f1 of classes": ("f1", LOGITS, CLASSES, lambda: reference.f1_score(CLASSES, CHOSEN, average="macro")),
    "f1 of two classes": (
        "f1",
        TWO,
        CLASSES.clamp(max=1),
        lambda: reference.f1_score(CLASSES.clamp(max=1), TWO.argmax(1)),
    ),
    "f1 of labels": ("f1", LOGITS, LABELS, lambda: reference.f1_score(LABELS, LOGITS > 0, average="macro")),
    "mae": ("mae", NUMBERS, LABELS[:, :2], lambda: reference.mean_absolute_error(LABELS[:, :2], NUMBERS)),
    "rmse": (
        "rmse",
        NUMBERS[:, :1],
        LABELS[:, 0],
        lambda: reference.root_mean_squared_error(LABELS[:, 0], NUMBERS[:, 0]),
    ),
    "r2": ("r2", NUMBERS[:, 0], LABELS[:, :1], lambda: reference.r2_score(LABELS[:, 0], NUMBERS[:, 0])),
}


@pytest.mark.parametrize("case", CASES)
def test_the_value_is_that_of_scikit_learn(case):
    name, outputs, targets, expected = CASES[case]
    assert score(name, outputs, targets) == pytest.approx(expected(), rel=1e-6)


def test_errors_are_better_when_lower_and_all_else_when_higher():
    assert {name for name, metric in METRICS.items() if metric.better == "lower"} == {"mae", "rmse"}


def test_a_metric_that_fits_the_loss():
    assert as_metric(None, ap.Loss("huber")).name == as_metric(None, ap.Loss("mse")).name == "rmse"
    assert as_metric(None, ap.Loss("bce")).name == as_metric(None, nn.MSELoss()).name == "accuracy"
    for name in ("accuracy", "f1"):  # of outputs like the targets 0 and 1, nearly all are above 0
        with pytest.raises(InvalidArgument, match="as of a logit"):
            as_metric(name, ap.Loss("mse"))
    assert as_metric("auc", ap.Loss("mse")).name == "auc"
    own = ap.Metric("own", lambda outputs, targets: 1.0)
    assert as_metric(own) is own
    assert as_metric(score).name == "score"
    with pytest.raises(InvalidArgument, match="Did you mean 'rmse'"):
        as_metric("rmsd")


def test_what_is_missing_without_scikit_learn(monkeypatch):
    monkeypatch.setattr("apportion.extras.find_spec", lambda name: None)
    assert as_metric("rmse").name == "rmse"
    with pytest.raises(MissingExtra, match=r"apportion\[data\]"):
        as_metric("auc")


class Fixed(nn.Module):
    """Outputs that do not depend on the inputs."""

    def __init__(self, *row):
        super().__init__()
        self.row = nn.Parameter(torch.tensor(row))

    def forward(self, inputs):
        return self.row.expand(len(inputs), -1)


INPUTS = torch.zeros(4, 2)
BAD = {
    "labels from 1": ("accuracy", torch.tensor([1, 2, 3, 1]), "from 1 to 3.*classes go from 0 to 2"),
    "a negative label": ("f1", torch.tensor([0, -1, 2, 1]), "from -1 to 2"),
    "floating-point classes": ("accuracy", torch.tensor([0.0, 1.0, 2.0, 1.0]), "int64"),
    "NaN targets": ("rmse", torch.full((4, 3), math.nan), "NaN in its targets"),
    "a number for three outputs": ("rmse", torch.zeros(4), "as many targets"),
    "labels beside 0 and 1": ("auc", torch.full((4, 3), 2.0), "targets 0 and 1"),
    "only one class": ("auc", torch.tensor([0, 0, 1, 1]), "none of one kind"),
}


@pytest.mark.parametrize("argument", ["evaluate", "validation"])
@pytest.mark.parametrize("case", BAD)
def test_public_data_that_cannot_be_measured_is_refused_by_its_name(case, argument):
    metric, targets, reason = BAD[case]
    with pytest.raises(InvalidArgument, match=f"(?s)^{argument}=.*{reason}"):
        require_measurable(Fixed(0.1, 0.2, 0.3), ap.Public((INPUTS, targets)), argument, METRICS[metric])


def test_public_inputs_with_nan_are_refused_and_so_are_outputs():
    broken = INPUTS.clone()
    broken[3, 1] = math.nan
    with pytest.raises(InvalidArgument, match="NaN in its inputs"):
        require_measurable(Fixed(0.1, 0.2), ap.Public((broken, torch.tensor([0, 1, 0, 1]))))
    with pytest.raises(InvalidArgument, match="not finite"):
        require_measurable(Fixed(math.inf), ap.Public((INPUTS, torch.zeros(4))), metric=METRICS["mae"])


def test_nothing_is_charged_for_public_data_that_is_refused(budget, tmp_path):
    plan = ap.plan("abadi", budget=budget, population=4, sample_rate=0.5, steps=2)
    data = (torch.randn(4, 2), torch.tensor([0, 1, 2, 1]))
    public, storage = ap.Public((data[0], data[1] + 1)), ap.Storage(tmp_path / "run")
    with pytest.raises(InvalidArgument, match="^evaluate="):
        ap.train(nn.Linear(2, 3), "cross-entropy", data, plan, lr=0.1, evaluate=public, storage=storage)
    assert not (tmp_path / "run").exists()


def test_a_model_that_diverged_has_no_score_and_no_error():
    public = ap.Public((INPUTS, torch.tensor([0.0, 1.0, 0.0, 1.0])))
    for name in ("auc", "f1", "mae", "rmse", "r2"):
        assert Evaluation(public, METRICS[name]).measure(Fixed(math.nan)) is None
        assert Evaluation(public, METRICS[name]).measure(Fixed(math.inf)) is None
    assert Evaluation(public).measure(Fixed(math.nan)) == 0.5
    own = ap.Metric("own", lambda outputs, targets: math.inf)
    assert Evaluation(public, own).measure(Fixed(1.0)) is None


def test_a_metric_of_ones_own_that_fails_is_one_sentence():
    own = ap.Metric("own", lambda outputs: 1.0)
    with pytest.raises(InvalidArgument, match="^metric='own': it failed with TypeError"):
        Evaluation(ap.Public((INPUTS, torch.zeros(4))), own).measure(Fixed(1.0))


def due(size, sampling, every=None):
    public = ap.Public((np.zeros((size, 1), dtype="float32"), np.zeros(size)))
    evaluation = choose_evaluation(public, METRICS["mae"], every, sampling)
    return [step for step in range(1, sampling.steps + 1) if evaluation.is_due(step, sampling)]


def test_how_often_a_model_is_measured():
    short = Sampling.declare(population=1000, batch_size=100, steps=20)
    assert due(100, short) == list(range(1, 21))
    assert due(3000, short) == [1, 10, 20], "3000 records take as long as 10 steps of 100"
    assert due(10**5, short) == [1, 20]
    assert due(100, short, 8) == due(100, short, "8") == [8, 16, 20]
    assert due(100, short, "1 epoch") == [10, 20]
    assert due(100, short, "2 epochs") == [20]
    long = Sampling.declare(population=1000, batch_size=100, steps=1000)
    assert due(100, long) == [1, *range(40, 1001, 40)]


@pytest.mark.parametrize("every", [0, -1, 1.5, "", "epoch", "1 step", "0 epochs", "99999999999999"])
def test_an_interval_that_cannot_be_right(every):
    with pytest.raises(InvalidArgument, match="^evaluate_every="):
        due(10, Sampling.declare(population=10, batch_size=5, steps=4), every)


def test_a_run_carries_the_score_under_the_name_of_its_metric(budget, tmp_path):
    inputs = torch.randn(60, 4)
    targets = inputs.sum(1) / 4
    plan = ap.plan("abadi", budget=budget, population=60, sample_rate=0.5, steps=6)
    public, model = ap.Public((inputs, targets)), nn.Linear(4, 1)
    run = ap.train(model, "mse", (inputs, targets), plan, lr=0.3, evaluate=public, evaluate_every=4)
    measured = {entry.step: entry.score for entry in run.history if entry.metric is not None}
    assert list(measured) == [4, 6]
    errors = model(inputs).detach().squeeze(1) - targets
    assert measured[6] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-6)
    assert run.history[-1].as_json()["test_rmse"] == measured[6]
    assert run.history[-1].test_accuracy is None
    assert "test_accuracy" not in run.history[-1].as_json()
    assert all(entry.epsilon is not None for entry in run.history if entry.metric is not None)
    page = run.report(tmp_path / "run.html").read_text()
    assert "Test rmse against" in page
    assert "lower is better" in page
    assert "Test accuracy" not in page
    run.save(tmp_path / "kept")
    again = ap.report(tmp_path / "kept", tmp_path / "again.html").read_text()
    assert f"rmse {measured[6]:.4g}" in again


def test_without_public_data_nothing_is_measured(budget):
    """Also where a metric was named: a score on the private records would be an exact read of them."""
    plan = ap.plan("abadi", budget=budget, population=20, sample_rate=0.5, steps=3)
    data = (torch.randn(20, 2), torch.zeros(20, dtype=torch.long))
    run = ap.train(nn.Linear(2, 2), "cross-entropy", data, plan, lr=0.1, metric="f1", evaluate_every=1)
    assert {(entry.metric, entry.score) for entry in run.history} == {(None, None)}
    assert "metric" not in run.configuration()
