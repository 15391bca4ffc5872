"""Private training behind scikit-learn's interface: each `fit` is one run of `apportion.train`, on what was declared of the records."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
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
    as_bounds,
    as_class_weights,
    as_classes,
    as_encoding,
    declared_width,
    encode_frame,
    lies_within,
    scale_to_bounds,
)
from apportion.sklearn.private_rows import Floats, as_features, as_labels, as_targets, find_places
from apportion.strategies.recipes import Recipe
from apportion.tables.schema import Schema
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
_PLAIN_CALLERS = ("sklearn.base", "sklearn.pipeline", "sklearn.utils")
"""Rooms of scikit-learn that hand records on as they are. The others fit on parts or copies of them, and read them besides."""


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: the declarations, the run, and the way from features to inputs."""

    def _read(self, X: Any) -> Floats:
        """The inputs of private records. A record that cannot be used has NaN, which lies outside of the domain."""
        self._require_declared()
        if self.schema is None:
            self.encoding_, features = None, as_features(self, X, declared_width(self.bounds))
            self.bounds_ = as_bounds("bounds", self.bounds, features.shape[1])
            inputs, usable = scale_to_bounds(features, *self.bounds_), lies_within(features, *self.bounds_)
        else:
            self.encoding_ = as_encoding(self.schema)
            inputs, usable = encode_frame(self.encoding_, X)
        validate_data(self, X if hasattr(X, "columns") else inputs, skip_check_array=True)  # names, number of features
        inputs[~usable] = np.nan
        return inputs

    def _fit(self, inputs: Floats, targets: Tensor, outputs: int, loss: Loss, classes: int | None = None) -> None:
        """One private run. Everything that can be refused is refused before it is charged."""
        budget = Budget(epsilon=self.epsilon, delta=self.delta, unit=Record())
        sizes = {"population": self.population, "batch_size": self._batch_size(), "steps": self.steps}
        planned = plan(self.recipe, budget=budget, **sizes, count_usable=self.count_usable)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31))
        run = train(
            self._new_model(inputs.shape[1], outputs, seed),
            loss,
            (torch.from_numpy(inputs.astype(np.float32)), targets),
            planned,
            lr=self.lr,
            optimizer=self.optimizer,
            seed=seed if self.public else None,  # private records get fresh noise, whatever else is repeated
            storage=Storage(ledger=self.ledger),
            domain=Domain(classes=classes, inputs=(-1, 1)),
            progress=False,
        )
        # Not the run itself: it holds the curator, and that the records.
        self.model_ = (run.averaged or run.model).eval()
        self.statement_, self.private_ = run.statement(), run.private
        self.epsilon_ = self.statement_["epsilon"] if run.private else math.inf

    def _require_declared(self) -> None:
        """What decides about people has no default; what would read records exactly is for public ones."""
        if self.schema is not None and self.bounds is not None:
            raise InvalidArgument(
                "bounds", validate.shown(self.bounds), "a schema declares them", "Leave one of the two out"
            )
        for name, example in (("epsilon", "3.0"), ("delta", "1e-6"), ("population", "10000"), ("bounds", "(0, 1)")):
            if getattr(self, name) is None and (name != "bounds" or self.schema is None):
                reason = "it must be declared: nothing of the kind is read from private records"
                raise InvalidArgument(name, None, reason, f"Pass {name}={example}")
        if self.unit not in ("record", Record()):
            fix = 'Use unit="record" for tables with one row a person; otherwise apportion.train, which takes ids'
            raise InvalidArgument("unit", self.unit, "an estimator is not told whose each record is", fix)
        if self.public and self.ledger is not None:
            reason = "the records are declared public, and a ledger is about private ones"
            raise InvalidArgument("ledger", str(self.ledger), reason, "Leave one of the two out")
        if not self.public and (room := _refitting_room()) is not None:
            raise InvalidArgument(
                "public",
                self.public,
                f"{room} fits on parts or copies of the records, each a private run, and reads them exactly besides, as for scores on "
                "held-out records",
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
        if self.encoding_ is None:
            features = as_features(self, X, self.n_features_in_)
            validate_data(self, X if hasattr(X, "columns") else features, reset=False, skip_check_array=True)
            inputs = scale_to_bounds(features, *self.bounds_)
        else:
            inputs, _ = encode_frame(self.encoding_, X)
        with torch.no_grad():
            outputs: Tensor = self.model_(torch.from_numpy(inputs.astype(np.float32)))
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
        schema: in place of bounds, the columns of a data frame: an `apportion.tables.Schema` without the target, or its TOML file.
        classes: every label that may occur. Declared, never read from y.
        unit: "record": the guarantee protects one row.
        recipe: how the budget is spent over the steps: a name from `apportion recipes`, or a `Recipe`.
        steps, batch_size: length of the run, and expected size of a batch (by default a tenth of the population, at least 256).
        lr, optimizer: as of `apportion.train`.
        model: "linear", "mlp" (64 tanh units), or a function of the numbers of inputs and outputs that builds a `torch.nn.Module`.
        class_weight: public weights, {label: weight} or one for each of `classes` in that order, as of `apportion.Loss`. "balanced"
            would count the private labels, and is refused.
        ledger: the ledger of the data set; each fit is charged there, and refused if it does not fit.
        public: you declare that records given to `fit` need no protection. Needed inside everything of scikit-learn that fits on parts
            or copies of them: cross-validation, searches, calibration, ensembles.
        count_usable: as of `apportion.plan`: a run in which most records contribute nothing stops.
        random_state: fixes the initial weights. The noise is fresh all the same, unless `public`: then the fit is repeatable, and not
            private.

    Attributes:
        classes_, n_features_in_, feature_names_in_: as in scikit-learn; the classes are the declared ones, sorted.
        model_: the `torch.nn.Module`, with averaged weights where the recipe keeps an average.
        statement_: the privacy statement as data; `epsilon_` is its ε, and infinite unless the noise was secret (`private_`).

    Guarantee: ε, δ as declared, for everything of the fitted estimator. Public are the types and shapes of X and y, and the names and
    types of columns. Everything else is a record's own, and raises nothing. A label that is not in `classes`, or a record without a
    feature within its bounds, contributes nothing. A list is read record by record, with as many features as `bounds` has; a row of
    another length contributes nothing, a cell that is no number is missing. `score` reads the rows that it is given exactly: give it
    public ones.

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
        schema: Schema | Path | str | None = None,
        classes: Sequence[Any] | None = None,
        unit: str = "record",
        recipe: str | Recipe = "default",
        steps: int = 100,
        batch_size: int | None = None,
        lr: float = 1.0,
        optimizer: str = "sgd",
        model: str | BuildModel | None = None,
        class_weight: Mapping[Any, float] | Sequence[float] | None = None,
        ledger: str | Path | None = None,
        public: bool = False,
        count_usable: bool = True,
        random_state: Any = None,
    ):
        self.epsilon, self.delta, self.population, self.bounds = epsilon, delta, population, bounds
        self.classes, self.unit, self.recipe, self.steps, self.batch_size = classes, unit, recipe, steps, batch_size
        self.schema, self.lr, self.optimizer, self.model, self.class_weight = schema, lr, optimizer, model, class_weight
        self.ledger, self.public, self.count_usable, self.random_state = ledger, public, count_usable, random_state

    def fit(self, X: Any, y: Any) -> PrivateClassifier:
        """Train on private records. Each call is a run of its own, with a budget of its own."""
        inputs, labels = self._read(X), as_labels(self, y)
        check_consistent_length(inputs, labels)
        self.classes_ = as_classes(self.classes, y)
        loss = Loss("cross-entropy", as_class_weights(self.class_weight, self.classes, self.classes_))
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        self._fit(inputs, torch.from_numpy(find_places(labels, places)), len(places), loss, classes=len(places))
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
        epsilon, delta, population, bounds, schema, unit, recipe, steps, batch_size, lr, optimizer, model, ledger, public, count_usable,
            random_state: as of `PrivateClassifier`.
        target_bounds: (low, high) of the target. Declared, never read from y. A record whose target lies outside contributes nothing.
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
        schema: Schema | Path | str | None = None,
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
        self.schema, self.target_bounds, self.unit, self.recipe = schema, target_bounds, unit, recipe
        self.steps, self.batch_size, self.lr, self.optimizer, self.model = steps, batch_size, lr, optimizer, model
        self.loss, self.ledger, self.public, self.count_usable = loss, ledger, public, count_usable
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PrivateRegressor:
        """Train on private records. Each call is a run of its own, with a budget of its own."""
        inputs, targets = self._read(X), as_targets(self, y).reshape(-1, 1)
        check_consistent_length(inputs, targets)
        if self.target_bounds is None:
            reason = "it must be declared: nothing of the kind is read from private records"
            raise InvalidArgument("target_bounds", None, reason, "Pass target_bounds=(0, 100)")
        low, high = as_bounds("target_bounds", self.target_bounds, 1)
        validate.one_of("mse", "huber")("loss", self.loss, "it is not a loss for numbers", "")
        inputs[~lies_within(targets, low, high)] = np.nan
        scaled = scale_to_bounds(targets, low, high).astype(np.float32)
        self._fit(inputs, torch.from_numpy(scaled), 1, Loss(self.loss))
        self.target_bounds_ = float(low[0]), float(high[0])
        return self

    def predict(self, X: Any) -> Floats:
        """The predicted number of each row, within the declared bounds."""
        outputs = self._outputs(X)[:, 0]
        low, high = self.target_bounds_
        return np.clip(low + (outputs + 1) / 2 * (high - low), low, high)


def _refitting_room() -> str | None:
    """The room of scikit-learn that called, at any depth, also in a worker process, if it is none that hands records on as they are."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("sklearn.") and not name.startswith(_PLAIN_CALLERS):
            return ".".join(name.split(".")[:2])
        frame = frame.f_back
    return None
