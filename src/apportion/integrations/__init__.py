"""Other people's tools: `fine_tune` for the models of Hugging Face's transformers and the adapters of peft; logs of released values for
TensorBoard, MLflow and CSV files.

run = ap.integrations.fine_tune(model, dataset, plan, lr=1e-3)
run = ap.train(model, loss_fn, data, plan, lr=0.5, log=ap.integrations.CsvLog("steps.csv"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.integrations.hugging_face import fine_tune
    from apportion.integrations.model_loss import ModelLoss
    from apportion.integrations.released_logs import CsvLog, MlflowLog, TensorBoardLog
    from apportion.integrations.token_losses import causal_lm_loss, token_loss

__all__ = ["CsvLog", "MlflowLog", "ModelLoss", "TensorBoardLog", "causal_lm_loss", "fine_tune", "token_loss"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hugging_face": ("fine_tune",),
        "model_loss": ("ModelLoss",),
        "token_losses": ("causal_lm_loss", "token_loss"),
        "released_logs": ("CsvLog", "MlflowLog", "TensorBoardLog"),
    },
)
