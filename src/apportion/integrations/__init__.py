"""Other people's tools: logs of released values for TensorBoard, MLflow and CSV files.

run = ap.train(model, loss_fn, data, plan, lr=0.5, log=ap.integrations.CsvLog("steps.csv"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.integrations.released_logs import CsvLog, MlflowLog, TensorBoardLog

__all__ = ["CsvLog", "MlflowLog", "TensorBoardLog"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "released_logs": ("CsvLog", "MlflowLog", "TensorBoardLog"),
    },
)
