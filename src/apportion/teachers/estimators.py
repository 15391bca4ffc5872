"""Teachers and students by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from apportion.extras import require_extra


def logistic() -> Any:
    """Logistic regression, barely regularised: a teacher has few records."""
    require_extra("data", "sklearn")
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=200)


def svm() -> Any:
    """A support vector machine with a Gaussian kernel, which bears wrong labels well."""
    require_extra("data", "sklearn")
    from sklearn.svm import SVC

    return SVC(C=1.0)


ESTIMATORS: dict[str, Callable[[], Any]] = {"logistic": logistic, "svm": svm}


def by_name(argument: str, name: str, data: Any) -> Callable[[], Any]:
    """An estimator, a built-in network for `data`, or a person's own `module:function`.

    Args:
        data: a `DataSet` whose records are not needed: it says which inputs and classes a network has; `None` for data of one's own.
    """
    from apportion import validate
    from apportion.compare import networks
    from apportion.compare.resolve import call_own, is_own

    if is_own(name):
        return partial(call_own, argument, name)
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    known = [*ESTIMATORS, *(networks.MODELS if data is not None else ())]
    validate.known(argument, name, known, "there is no such model; module:function names one of your own")
    return partial(networks.build, name, data)
