"""Whether and how a model can be trained privately, decided on public facts and synthetic records before anything is charged.

`check.py` judges layers by their type and `fix.py` replaces those that cannot be used; `probe.py` runs a model on `synthetic.py` records;
`engine_choice.py` chooses the engine, by a proof (`proof.py`, `record_tracer.py`, `record_rules.py`) and by comparing gradients
(`gradient_probe.py`); `vetting.py` renews the proof for micro-batches of another kind; `memory.py` and `inspection.py` say what a step
takes; `temper.py` bounds activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.models.check import LayerCheck, ModelCheck
    from apportion.models.fix import Repaired
    from apportion.models.temper import TemperedSigmoid

__all__ = ["LayerCheck", "ModelCheck", "Repaired", "TemperedSigmoid"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "check": ("LayerCheck", "ModelCheck"),
        "fix": ("Repaired",),
        "temper": ("TemperedSigmoid",),
    },
)
