"""A recipe calibrated to a budget: the whole schedule before any record is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from apportion.accounting.accountant import Accountant, count_events
from apportion.accounting.calibration import calibrate, longest_affordable
from apportion.accounting.rules import RULES
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.request import Event, Request
from apportion.sampling import Sampling
from apportion.strategies.clip import Clip
from apportion.strategies.context import Context
from apportion.strategies.noise import NoiseSchedule


@dataclass(frozen=True)
class Plan:
    """What will be asked of the private records, step by step, and what it costs.

    Args:
        multipliers: z_1..z_T. Thresholds are not here: they may follow released values.
        epsilon: the price of all tokens at the budget's δ; at most the budget's ε.
        accountant: the name of the rule that priced it.
        spare: tokens beyond the T steps. They have the smallest multiplier of the plan, so that each covers any step.
    """

    budget: Budget
    sampling: Sampling
    clip: Clip
    noise: NoiseSchedule
    multipliers: tuple[float, ...]
    epsilon: float
    accountant: str
    spare: int = 0

    @property
    def steps(self) -> int:
        return len(self.multipliers)

    @property
    def tokens(self) -> tuple[Event, ...]:
        """The events that are declared to the account: one for each step in order, then the spare ones."""
        multipliers = self.multipliers + (min(self.multipliers),) * self.spare
        return tuple(Event(self.sampling.sample_rate, multiplier) for multiplier in multipliers)

    def context(self, step: int, parameter_shapes: Mapping[str, tuple[int, ...]]) -> Context:
        """The public facts at a step (1-based)."""
        rate, size = self.sampling.sample_rate, self.sampling.expected_batch_size
        return Context(step, self.steps, rate, size, self.multipliers[step - 1], parameter_shapes)

    def request(self, context: Context, clip_state: Any) -> Request:
        """The roles' parts of one step, merged into the object that is both executed and priced."""
        return Request(
            sample_rate=self.sampling.sample_rate,
            noise_multiplier=context.noise_multiplier,
            expected_batch_size=self.sampling.expected_batch_size,
            releases=self.clip.propose(clip_state, context),
        )

    def rehearse(self, parameter_shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Ask the clip for its first request and for that of the noisiest step, so that it raises before anything is charged."""
        state = self.clip.init(self.context(1, parameter_shapes))
        noisiest = self.multipliers.index(max(self.multipliers)) + 1
        for step in (1, noisiest):
            self.request(self.context(step, parameter_shapes), state)


def make_plan(
    budget: Budget, sampling: Sampling, clip: Clip, noise: NoiseSchedule, accountant: Accountant, spare: int = 0
) -> Plan:
    """Solve the noise from the budget, or, for a given multiplier, keep as many of its steps as the budget affords.

    Args:
        spare: how many tokens to declare beyond the steps; they are paid for like any other.
    """
    _require_strategy("clip", clip, Clip, "apportion.clip.Fixed(threshold=1.0)")
    if hasattr(noise, "observe"):
        raise InvalidArgument(
            "noise",
            type(noise).__name__,
            "it chooses multipliers from released values and declares no rule that makes that valid",
            f"Rules that would cover it: {'; '.join(RULES)}",
        )
    _require_strategy("noise", noise, NoiseSchedule, "apportion.noise.Constant()")
    budget.warn_if_weak(sampling.population)
    rate = sampling.sample_rate
    contexts = [
        Context(step, sampling.steps, rate, sampling.expected_batch_size) for step in range(1, sampling.steps + 1)
    ]
    shape = [noise.relative(context) for context in contexts]
    spares = [min(shape)] * spare
    if noise.multiplier is None:
        scale = calibrate(accountant, spares + shape, sample_rate=rate, epsilon=budget.epsilon, delta=budget.delta)
    else:
        scale = noise.multiplier
    reserved = [Event(rate, scale * relative) for relative in spares]
    events = [Event(rate, scale * relative) for relative in shape]
    if noise.multiplier is not None:
        affordable = longest_affordable(accountant, reserved + events, epsilon=budget.epsilon, delta=budget.delta)
        affordable = max(0, affordable - spare)
        if affordable == 0:
            raise InvalidArgument(
                "noise.multiplier",
                noise.multiplier,
                f"a single step{f' beside {spare} spare ones' if spare else ''} costs more than epsilon={budget.epsilon:g}",
                "Use more noise, a smaller sampling rate or a larger budget; or leave it out to fit the budget",
            )
        events = events[:affordable]
    return Plan(
        budget=budget,
        sampling=sampling,
        clip=clip,
        noise=noise,
        multipliers=tuple(event.noise_multiplier for event in events),
        epsilon=accountant.epsilon(count_events(reserved + events), budget.delta),
        accountant=accountant.name,
        spare=spare,
    )


def describe(strategy: Any) -> dict[str, Any]:
    """A strategy as data: its kind and its public hyper-parameters."""
    parameters = asdict(strategy) if is_dataclass(strategy) and not isinstance(strategy, type) else {}
    return {"kind": type(strategy).__name__, **json.loads(json.dumps(parameters, default=str))}


def _require_strategy(argument: str, value: object, kind: Any, example: str) -> None:
    if isinstance(value, type) or not isinstance(value, kind):
        raise InvalidArgument(
            argument, value, f"it is not a {argument} strategy", f"Pass for example {argument}={example}"
        )
