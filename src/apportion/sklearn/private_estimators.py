"""Private training behind scikit-learn's interface: each `fit` is one run of `apportion.train`, on what was declared of the records."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from apportion import validate
from apportion.budget import Budget, Record
from apportion.domain import Domain
from apportion.errors import InvalidArgument
from apportion.planning import plan
from apportion.sklearn.declared_values import (
    Floats,
    as_bounds,
    as_classes,
    as_column,
    as_features,
    place_of,
    require_numbers,
    scale_to_bounds,
)
from apportion.strategies.recipes import Recipe
from apportion.training.named_losses import Loss
from apportion.training.storage import Storage
from apportion.training.train import train

BuildModel = Callable[[int, int], nn.Module]
"""Makes a model from the numbers of inputs and outputs."""


def _linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


def _mlp(inputs: int, outputs: int) -> nn.Module:
    """tanh, because bounded activations keep the gradients of single records small."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))


MODELS: dict[str, BuildModel] = {"linear": _linear, "mlp": _mlp}
_CROSS_VALIDATION = "sklearn.model_selection"


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: the declarations, the run, and the way from features to inputs."""

    def _fit(self, X: Any, targets: Tensor, features: Floats, outputs: int, loss: Loss, domain: Domain) -> None:
        """One private run. Everything that can be refused is refused before it is charged."""
        validate_data(self, X, skip_check_array=True)  # names and number of features
        self._require_declared()
        low, high = as_bounds("bounds", self.bounds, features.shape[1])
        budget = Budget(epsilon=self.epsilon, delta=self.delta, unit=Record())
        sizes = {"population": self.population, "batch_size": self._batch_size(), "steps": self.steps}
        planned = plan(self.recipe, budget=budget, **sizes, count_usable=self.count_usable)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31))
        inputs = torch.from_numpy(scale_to_bounds(features, low, high).astype(np.float32))
        run = train(
            self._new_model(features.shape[1], outputs, seed),
            loss,
            (inputs, targets),
            planned,
            lr=self.lr,
            optimizer=self.optimizer,
            seed=seed,
            storage=Storage(ledger=self.ledger),
            domain=domain,
            progress=False,
        )
        # Not the run itself: it holds the curator, and that the records.
        self.bounds_, self.model_ = (low, high), (run.averaged or run.model).eval()
        self.statement_ = run.statement()
        self.epsilon_, self.private_ = self.statement_["epsilon"], run.private
        if not self.private_ and not self.public:
            warnings.warn(
                f"random_state={self.random_state!r} makes the noise repeatable: this model is NOT private. Leave random_state "
                "out, or declare public=True if the records need no protection",
                UserWarning,
                stacklevel=3,
            )

    def _require_declared(self) -> None:
        """What decides about people has no default; what would read records exactly is for public ones."""
        for name, example in (("epsilon", "3.0"), ("delta", "1e-6"), ("population", "10000"), ("bounds", "(0, 1)")):
            if getattr(self, name) is None:
                reason = "it must be declared: nothing of the kind is read from private records"
                raise InvalidArgument(name, None, reason, f"Pass {name}={example}")
        if self.unit not in ("record", Record()):
            fix = 'Use unit="record" for tables with one row a person; otherwise apportion.train, which takes ids'
            raise InvalidArgument("unit", self.unit, "an estimator is not told whose each record is", fix)
        if self.public and self.ledger is not None:
            reason = "the records are declared public, and a ledger is about private ones"
            raise InvalidArgument("ledger", str(self.ledger), reason, "Leave one of the two out")
        if not self.public and _is_cross_validated():
            raise InvalidArgument(
                "public",
                self.public,
                "cross-validation fits many times, each a private run, and scores on held-out records are exact reads of them",
                "On public data pass public=True; on private data search with apportion.tune, which charges for it",
            )

    def _batch_size(self) -> int:
        """A tenth of the population, at least 256 where there are as many: large batches suffer least from noise."""
        if self.batch_size is not None:
            size: int = self.batch_size
            return size
        population = validate.whole("population", self.population, "it is a number of records", "Use a public figure")
        return min(population, max(256, population // 10))

    def _new_model(self, inputs: int, outputs: int, seed: int | None) -> nn.Module:
        """The initial weights are public. The global generator is left as it was."""
        named = isinstance(self.model, str) or self.model is None
        build = MODELS[validate.known("model", self.model or "linear", MODELS)] if named else self.model
        if not callable(build) or isinstance(build, nn.Module):
            fix = "Pass a function that builds one from the numbers of inputs and outputs: lambda i, o: nn.Linear(i, o)"
            raise InvalidArgument("model", type(build).__name__, "each fit needs a new model", fix)
        with torch.random.fork_rng(devices=[]):
            torch.seed() if seed is None else torch.manual_seed(seed)
            model: nn.Module = build(inputs, outputs)
        return model

    def _outputs(self, X: Any) -> Floats:
        """What the model says of each row."""
        check_is_fitted(self)
        features = as_features(self, X)
        validate_data(self, X, reset=False, skip_check_array=True)
        with torch.no_grad():
            outputs: Tensor = self.model_(torch.from_numpy(scale_to_bounds(features, *self.bounds_).astype(np.float32)))
        return outputs.double().numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A classifier whose `fit` is one private run: softmax regression or a small network, trained as `apportion.train` does.

    In every step each record joins the batch with probability q; its gradient g_i is clipped to C_t; the update is fed with
    (Σ_i g_i·min(1, C_t/‖g_i‖) + N(0, (z_t·C_t)²)) / (q·population). A feature x becomes 2·(x − low)/(high − low) − 1.

    Args:
        epsilon, delta: the budget of one fit. δ below 1/population.
        population: the declared number of records, a public figure that need not be exact.
        bounds: (low, high) of all features, or a pair of sequences with a value for each. Declared, never read from X.
        classes: every label that may occur. Declared, never read from y.
        unit: "record": the guarantee protects one row.
        recipe: how the budget is spent over the steps: a name from `apportion recipes`, or a `Recipe`.
        steps, batch_size: length of the run, and expected size of a batch (by default a tenth of the population, at least 256).
        lr, optimizer: as of `apportion.train`.
        model: "linear", "mlp" (64 tanh units), or a function of the numbers of inputs and outputs that builds a `torch.nn.Module`.
        weights: public weights of the classes, in their order, as of `apportion.Loss`.
        ledger: the ledger of the data set; each fit is charged there, and refused if it does not fit.
        public: you declare that records given to `fit` need no protection. Needed for cross-validation.
        count_usable: as of `apportion.plan`: a run in which most records contribute nothing stops.
        random_state: for tests and public data only. The model is then reproducible and *not private*.

    Attributes:
        classes_, n_features_in_, feature_names_in_: as in scikit-learn; the classes are the declared ones, sorted.
        model_: the `torch.nn.Module`, with averaged weights where the recipe keeps an average.
        statement_: the privacy statement as data; `epsilon_` is its ε, `private_` whether the noise was secret.

    Guarantee: ε, δ as declared, for everything of the fitted estimator. `score` reads the rows that it is given exactly: give it public
    ones.

    Examples:
        >>> import numpy as np
        >>> from apportion.sklearn import PrivateClassifier
        >>> X = np.random.default_rng(0).uniform(size=(1000, 4))
        >>> y = np.where(X[:, 0] > 0.5, "high", "low")
        >>> kind = PrivateClassifier(epsilon=3, delta=1e-6, population=1000, bounds=(0, 1), classes=["low", "high"], steps=20)
        >>> fitted = kind.fit(X, y)
        >>> fitted.epsilon_ <= 3
        True
        >>> fitted.predict_proba(X).shape
        (1000, 2)
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        population: int | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        classes: Sequence[Any] | None = None,
        unit: str = "record",
        recipe: str | Recipe = "default",
        steps: int = 100,
        batch_size: int | None = None,
        lr: float = 1.0,
        optimizer: str = "sgd",
        model: str | BuildModel | None = None,
        weights: Sequence[float] | None = None,
        ledger: str | Path | None = None,
        public: bool = False,
        count_usable: bool = True,
        random_state: Any = None,
    ):
        self.epsilon, self.delta, self.population, self.bounds = epsilon, delta, population, bounds
        self.classes, self.unit, self.recipe, self.steps, self.batch_size = classes, unit, recipe, steps, batch_size
        self.lr, self.optimizer, self.model, self.weights = lr, optimizer, model, weights
        self.ledger, self.public, self.count_usable, self.random_state = ledger, public, count_usable, random_state

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Train on private records. Each call is a run of its own, with a budget of its own."""
        features, labels = as_features(self, X), as_column(self, y, labels=True)
        check_consistent_length(features, labels)
        self.classes_ = as_classes(self.classes)
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        targets = torch.tensor([place_of(label, places) for label in labels.tolist()])
        self._fit(X, targets, features, len(places), Loss("cross-entropy", self.weights), Domain(classes=len(places)))
        return self

    def decision_function(self, X: Any) -> Floats:
        """The logit of each class, (n, classes); of two classes that of the second against the first, (n,)."""
        logits = self._outputs(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class, in the order of `classes_`."""
        logits = self._outputs(X)
        found: Floats = softmax(logits, axis=1)
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        chosen = self._outputs(X).argmax(1)
        found: NDArray[Any] = self.classes_[chosen]
        return found


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A regressor whose `fit` is one private run: linear regression or a small network, as `PrivateClassifier`.

    A target t becomes 2·(t − low)/(high − low) − 1, and the loss of a record is (output − target)².

    Args:
        epsilon, delta, population, bounds, unit, recipe, steps, batch_size, lr, optimizer, model, ledger, public, count_usable,
            random_state: as of `PrivateClassifier`.
        target_bounds: (low, high) of the target. Declared, never read from y.
        loss: "mse", or "huber", which follows far-off targets less.

    Attributes:
        n_features_in_, feature_names_in_, model_, statement_, epsilon_, private_: as of `PrivateClassifier`.

    Guarantee: ε, δ as declared, for everything of the fitted estimator. `score` (R²) reads the rows that it is given exactly.

    Examples:
        >>> import numpy as np
        >>> from apportion.sklearn import PrivateRegressor
        >>> X = np.random.default_rng(0).uniform(size=(1000, 3))
        >>> kind = PrivateRegressor(epsilon=3, delta=1e-6, population=1000, bounds=(0, 1), target_bounds=(0, 3), steps=20)
        >>> kind.fit(X, X.sum(1)).predict(X[:2]).shape
        (2,)
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        population: int | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        target_bounds: tuple[float, float] | None = None,
        unit: str = "record",
        recipe: str | Recipe = "default",
        steps: int = 100,
        batch_size: int | None = None,
        lr: float = 0.2,
        optimizer: str = "sgd",
        model: str | BuildModel | None = None,
        loss: str = "mse",
        ledger: str | Path | None = None,
        public: bool = False,
        count_usable: bool = True,
        random_state: Any = None,
    ):
        self.epsilon, self.delta, self.population, self.bounds = epsilon, delta, population, bounds
        self.target_bounds, self.unit, self.recipe = target_bounds, unit, recipe
        self.steps, self.batch_size, self.lr, self.optimizer, self.model = steps, batch_size, lr, optimizer, model
        self.loss, self.ledger, self.public, self.count_usable = loss, ledger, public, count_usable
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        """Train on private records. Each call is a run of its own, with a budget of its own."""
        features, column = as_features(self, X), require_numbers("y", as_column(self, y))
        check_consistent_length(features, column)
        if self.target_bounds is None:
            reason = "it must be declared: nothing of the kind is read from private records"
            raise InvalidArgument("target_bounds", None, reason, "Pass target_bounds=(0, 100)")
        low, high = as_bounds("target_bounds", self.target_bounds, 1)
        scaled = scale_to_bounds(
            column.reshape(-1, 1), low, high, missing=np.nan
        )  # a record whose loss is NaN contributes nothing
        validate.one_of("mse", "huber")("loss", self.loss, "it is not a loss for numbers", "")
        self._fit(X, torch.from_numpy(scaled.astype(np.float32)), features, 1, Loss(self.loss), Domain())
        self.target_bounds_ = float(low[0]), float(high[0])
        return self

    def predict(self, X: Any) -> Floats:
        """The predicted number of each row, within the declared bounds."""
        outputs = self._outputs(X)[:, 0]
        low, high = self.target_bounds_
        return np.clip(low + (outputs + 1) / 2 * (high - low), low, high)


def _is_cross_validated() -> bool:
    """Whether a function of scikit-learn that fits on parts of the records called, at any depth, also in a worker process."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_CROSS_VALIDATION):
        frame = frame.f_back
    return frame is not None
