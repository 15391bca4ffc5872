"""One trial: a fresh model, trained as its candidate says, and its score on data declared public."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from apportion.accounting.rules import Rule
from apportion.budget import Public
from apportion.curator.curator import LossFunction
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.check import copy_model
from apportion.models.temper import temper
from apportion.planning import Plan
from apportion.training.evaluation import accuracy, require_public
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Session, Setup
from apportion.training.storage import Storage
from apportion.tuning.space import Candidate


@dataclass(frozen=True, eq=False, repr=False)  # a printed task would be printed records
class Task:
    """What all trials of a search have in common.

    Args:
        make_model: builds a model with fresh weights; called with the candidate's options.
        loss_fn: as of `train`.
        data: the records to train on.
        evaluate: what trials are ranked by. There is no other way to rank them: a score on private records would be an exact read.
        execution: memory and speed.
    """

    make_model: Callable[..., nn.Module]
    loss_fn: LossFunction
    data: Any
    evaluate: Public
    execution: Execution

    def __post_init__(self) -> None:
        require_public(self.evaluate)

    def model(self, candidate: Candidate) -> nn.Module:
        """A fresh model, with the activations that the recipe trains."""
        try:
            model = self.make_model(**candidate.options)
        except TypeError as error:  # of an option that it does not take
            raise InvalidArgument(
                "make_model", str(error), "it was called with the space's model options", "Correct the names"
            ) from error
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                "make_model", type(model).__name__, "it did not return a model", "Return a torch.nn.Module"
            )
        tempering = candidate.plan.recipe.model
        return model if tempering is None else temper(model, **asdict(tempering))

    def open(
        self,
        candidate: Candidate,
        plan: Plan,
        records: Records,
        randomness: Randomness,
        *,
        rule: Rule | None = None,
        storage: Storage | None = None,
    ) -> Session:
        """A trial before its first step. Nothing was read or charged."""
        model = self.model(candidate)
        setup = Setup(
            model=model,
            optimizer=build_optimizer(model, candidate.optimizer, candidate.lr),
            records=records,
            plan=plan,
            choice=require_trainable(model, self.loss_fn, records, self.execution),
            execution=self.execution,
            randomness=randomness,
            storage=storage or Storage(),
            rule=rule,
        )
        return open_session(setup)

    def own_loss(self) -> LossFunction:
        """The loss for one trial: one that remembers what it saw must not carry it from trial to trial."""
        return copy_model(self.loss_fn) if isinstance(self.loss_fn, nn.Module) else self.loss_fn

    def rank(self, session: Session) -> float:
        """The score of the model as it is meant to be used; the higher the better."""
        return accuracy(session.evaluated, self.evaluate)

    def require_fresh_models(self, candidate: Candidate) -> None:
        """Refuse a function that hands out the same weights twice: trials would go on from each other's results."""
        first, second = self.model(candidate), self.model(candidate)
        places = {parameter.data_ptr() for parameter in first.parameters()}
        if any(parameter.data_ptr() in places for parameter in second.parameters()):
            raise InvalidArgument(
                "make_model",
                type(first).__name__,
                "it returns the same weights every time, so that a trial would go on from the result of the last one",
                "Build a new model in the function",
            )
