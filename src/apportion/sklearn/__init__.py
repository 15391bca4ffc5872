"""Estimators of scikit-learn that train privately."""

from apportion.extras import require_extra

require_extra("data", "sklearn")
from apportion.sklearn.private_estimators import PrivateClassifier, PrivateRegressor  # noqa: E402

__all__ = ["PrivateClassifier", "PrivateRegressor"]
