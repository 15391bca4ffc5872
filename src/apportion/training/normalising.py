"""The question that a plan asks before its first step: mean and variance of every channel of the features, written into the model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from apportion.accounting.account import Account
from apportion.channel_norm import ChannelNorm
from apportion.curator.curator import Curator
from apportion.curator.owners import Owners
from apportion.curator.problems import Problems
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.models.channel_scaling import ChannelMoments, ChannelScaling, find_scaling, moment_loss
from apportion.models.engine_choice import choose_engine
from apportion.models.memory import resolve_micro_batch
from apportion.models.vetting import VettedEngine
from apportion.planning import Plan
from apportion.request import Request
from apportion.training.session import Setup


def require_scaling(model: nn.Module, plan: Plan, example: object) -> None:
    """Refuse a plan that pays for constants which the model does not take, and a model that waits for some that nobody pays for."""
    layer = find_scaling(model)
    if plan.norm is None:
        if layer is not None and not layer.known:
            reason = "its ChannelScaling waits for constants, and the plan does not ask for them"
            fix = "Plan with norm=apportion.features.ChannelNorm(), or leave the layer out"
            raise InvalidArgument("model", type(model).__name__, reason, fix)
        return
    if layer is None:
        reason = "the plan pays for the normalisation of channels, and the model has no layer that takes it"
        fix = "Begin it with apportion.features.ChannelScaling(extractor.channels, extractor.positions)"
        raise InvalidArgument("model", type(model).__name__, reason, fix)
    shape = tuple(getattr(example, "shape", ()))
    if shape != (layer.width,):
        reason = f"its records have inputs of shape {shape}"
        fix = "Pass features of apportion.features.extract, and their channels and positions"
        raise InvalidArgument("model", repr(layer), reason, fix)


@dataclass(frozen=True)
class _BeforeTheFirstStep:
    """Charges the question, and nothing but it."""

    account: Account

    def charge(self, event: Event) -> None:
        self.account.charge_first(event)


class Normaliser:
    """Asks, once in a run, and writes the answer into the model's `ChannelScaling`.

    The curator answers as it answers for gradients (`ChannelMoments`): charge, read, clip, sum, noise, division by the declared
    population. Noise is fresh in every process, also with recovery "exact": an answer that was lost is not asked for again.

    Args:
        setup: what the run was opened with.
        layer: of the model that is trained.
        norm: what is asked.
        account: pays.
        owners: whose the records are.
    """

    def __init__(self, setup: Setup, layer: ChannelScaling, norm: ChannelNorm, account: Account, owners: Owners):
        self._layer, self._account = layer, account
        population, unit = setup.plan.sampling.population, setup.plan.budget.unit
        self.request: Request = norm.request(layer.channels, population, unit.coins_per_unit)
        self._smallest = norm.smallest_variance(layer.channels, population)
        moments, (example, target) = ChannelMoments(layer).to(layer.mean.device), setup.records.example
        choice = choose_engine(moments, moment_loss, example, target, setup.execution.engine)
        self._curator: Curator = setup.build_curator(
            setup.records,
            VettedEngine(moments, choice, example, target),
            _BeforeTheFirstStep(account),
            setup.randomness,
            resolve_micro_batch(setup.execution, moments, choice, example, population),
            owners=owners,
            domain=setup.domain,
            problems=Problems(),  # steps meet the same records, and count them
            ranks=setup.ranks,
        )

    @property
    def due(self) -> bool:
        """Whether the answer is still to be asked for."""
        return not bool(self._layer.known)

    def ask(self) -> None:
        """Charge, ask and write down; refused if it was charged before and the answer did not live to be kept."""
        if self._account.spent:
            reason = "the normalisation of features was charged, and its answer was lost in a crash; asking again would cost again"
            raise InvalidArgument("resume", self._account.identifier, reason, "Start anew, in another folder")
        released = self._curator.answer(self.request, moment_loss)
        (answer,) = released.gradient.values()
        mean, square = answer.flatten().split(self._layer.channels)
        self._layer.write(mean, (square - mean.square()).clamp(min=self._smallest))
