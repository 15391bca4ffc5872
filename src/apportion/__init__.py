"""Apportion: adaptive differentially private training on PyTorch.

Tier 1, we own the loop:       `plan` and `train`
Tier 2, your own loop:         `plan` and `make_private`
Tier 3, the parts:             `apportion.accounting`, `apportion.curator`, `apportion.strategies`

Names are imported when they are first used, so that `import apportion` and the command line's `--help` do not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion import (
        accounting,
        audit,
        data,
        distributed,
        features,
        federated,
        integrations,
        pipeline,
        sklearn,
        statistics,
        tables,
        teachers,
    )
    from apportion.accounting.accountant import PrivacyLossAccountant
    from apportion.accounting.ledger import Ledger
    from apportion.advice.epsilon_candidates import advise
    from apportion.budget import Budget, Group, Public, Record, User
    from apportion.compare.prediction import Predictor, load
    from apportion.curator.views import Flip, Shift, augment
    from apportion.domain import Domain
    from apportion.errors import (
        ApportionError,
        BudgetExhausted,
        DataNotFound,
        InvalidArgument,
        MissingExtra,
        PrivacyViolation,
        RankLost,
        UnsupportedModel,
        UnusableRecords,
        WrongOrder,
    )
    from apportion.event import Event, GroupFactors
    from apportion.execution import Execution
    from apportion.models.check import check
    from apportion.models.fix import fix
    from apportion.models.temper import TemperedSigmoid, temper
    from apportion.planning import Plan, plan
    from apportion.releases import (
        ClippedSum,
        FirstGain,
        Frame,
        Line,
        LowestLoss,
        NormHistogram,
        NormSum,
        UnclippedCount,
        UsableCount,
    )
    from apportion.reporting.documents import write_statement
    from apportion.reporting.write import report
    from apportion.request import Released, Request
    from apportion.strategies import clip, noise, people, recipes, update
    from apportion.strategies.citations import cite
    from apportion.strategies.clip.clip_schedule import ClipSchedule
    from apportion.strategies.context import Context
    from apportion.strategies.recipes import Recipe
    from apportion.strategies.roles import (
        AskGradient,
        AskingUpdate,
        Clip,
        FeedbackNoise,
        MultisetNoise,
        NoiseSchedule,
        People,
        SteeringUpdate,
        Update,
        ValidatedNoise,
    )
    from apportion.teachers.pate import pate
    from apportion.training.early_stopping import EarlyStopping
    from apportion.training.metrics import Metric
    from apportion.training.named_losses import Loss
    from apportion.training.private import make_private
    from apportion.training.run import Run
    from apportion.training.storage import Storage
    from apportion.training.train import train
    from apportion.tuning.tune import tune
    from apportion.tuning.tuned import Tuned

__version__ = "0.1.0"

__all__ = [
    "ApportionError",
    "AskGradient",
    "AskingUpdate",
    "Budget",
    "BudgetExhausted",
    "Clip",
    "ClipSchedule",
    "ClippedSum",
    "Context",
    "DataNotFound",
    "Domain",
    "EarlyStopping",
    "Event",
    "Execution",
    "FeedbackNoise",
    "FirstGain",
    "Flip",
    "Frame",
    "Group",
    "GroupFactors",
    "InvalidArgument",
    "Ledger",
    "Line",
    "Loss",
    "LowestLoss",
    "Metric",
    "MissingExtra",
    "MultisetNoise",
    "NoiseSchedule",
    "NormHistogram",
    "NormSum",
    "People",
    "Plan",
    "Predictor",
    "PrivacyLossAccountant",
    "PrivacyViolation",
    "Public",
    "RankLost",
    "Recipe",
    "Record",
    "Released",
    "Request",
    "Run",
    "Shift",
    "SteeringUpdate",
    "Storage",
    "TemperedSigmoid",
    "Tuned",
    "UnclippedCount",
    "UnsupportedModel",
    "UnusableRecords",
    "Update",
    "UsableCount",
    "User",
    "ValidatedNoise",
    "WrongOrder",
    "accounting",
    "advise",
    "audit",
    "augment",
    "check",
    "cite",
    "clip",
    "data",
    "distributed",
    "features",
    "federated",
    "fix",
    "integrations",
    "load",
    "make_private",
    "noise",
    "pate",
    "people",
    "pipeline",
    "plan",
    "recipes",
    "report",
    "sklearn",
    "statistics",
    "tables",
    "teachers",
    "temper",
    "train",
    "tune",
    "update",
    "write_statement",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "accounting": (".",),
        "accounting.accountant": ("PrivacyLossAccountant",),
        "accounting.ledger": ("Ledger",),
        "advice.epsilon_candidates": ("advise",),
        "audit": (".",),
        "budget": ("Budget", "Group", "Public", "Record", "User"),
        "compare.prediction": ("Predictor", "load"),
        "data": (".",),
        "errors": (
            "ApportionError",
            "BudgetExhausted",
            "DataNotFound",
            "InvalidArgument",
            "MissingExtra",
            "PrivacyViolation",
            "RankLost",
            "UnsupportedModel",
            "UnusableRecords",
            "WrongOrder",
        ),
        "curator.views": ("Flip", "Shift", "augment"),
        "distributed": (".",),
        "domain": ("Domain",),
        "event": ("Event", "GroupFactors"),
        "execution": ("Execution",),
        "features": (".",),
        "federated": (".",),
        "pipeline": (".",),
        "integrations": (".",),
        "models.check": ("check",),
        "models.fix": ("fix",),
        "models.temper": ("TemperedSigmoid", "temper"),
        "planning": ("Plan", "plan"),
        "reporting.documents": ("write_statement",),
        "reporting.write": ("report",),
        "releases": (
            *("ClippedSum", "FirstGain", "Frame", "Line", "LowestLoss", "NormHistogram", "NormSum", "UnclippedCount"),
            "UsableCount",
        ),
        "request": ("Released", "Request"),
        "sklearn": (".",),
        "statistics": (".",),
        "strategies.citations": ("cite",),
        "strategies.clip": (".",),
        "strategies.clip.clip_schedule": ("ClipSchedule",),
        "strategies.context": ("Context",),
        "strategies.noise": (".",),
        "strategies.people": (".",),
        "strategies.recipes": (".", "Recipe"),
        "strategies.roles": (
            *("AskGradient", "AskingUpdate", "Clip", "FeedbackNoise", "MultisetNoise", "NoiseSchedule"),
            *("People", "SteeringUpdate", "Update", "ValidatedNoise"),
        ),
        "strategies.update": (".",),
        "tables": (".",),
        "teachers": (".",),
        "teachers.pate": ("pate",),
        "training.early_stopping": ("EarlyStopping",),
        "training.named_losses": ("Loss",),
        "training.metrics": ("Metric",),
        "training.private": ("make_private",),
        "training.run": ("Run",),
        "training.storage": ("Storage",),
        "training.train": ("train",),
        "tuning.tune": ("tune",),
        "tuning.tuned": ("Tuned",),
    },
)
