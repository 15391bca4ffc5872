"""What every strategy must keep to, checked on a small model. All built-in ones pass; run it on your own before you trust it.

    apportion.audit.check_strategy(MyClip(start=0.5)).require()

| check                         | why                                                                                              |
|-------------------------------|--------------------------------------------------------------------------------------------------|
| the same answers twice        | a strategy that tosses coins of its own cannot be replayed or resumed                            |
| its state survives a file     | a resumed run must go on exactly where it stopped                                                |
| any released value is borne   | noise may be huge: thresholds stay positive, finite and inside [minimum, maximum]                |
| empty batches and NaN records | neither may stop a run, and neither may be seen                                                  |
| no raw value is touched       | the run is done by a curator whose raw tensors raise when somebody looks                         |
| micro-batches change nothing  | memory must not change the mechanism                                                             |
| neighbours look the same      | the replay audit of a short run (`replay`)                                                       |
| the price is right            | the events in the ledger, priced by `dp_accounting`, cost what the run says                      |
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apportion import validate
from apportion.accounting.accountant import count_events
from apportion.accounting.rules import fits
from apportion.accounting.verification import independent_price
from apportion.audit.replay import replay, replayed_optimizer
from apportion.audit.sealed import SealedAccess, sealed
from apportion.budget import Budget, Public, Record
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument, PrivacyViolation
from apportion.execution import Execution, Mode
from apportion.models.engine_choice import choose_engine
from apportion.planning import Plan
from apportion.planning import plan as make_plan
from apportion.request import Released, Request
from apportion.strategies.recipes import ROLES, Recipe
from apportion.strategies.roles import Clip, FeedbackNoise, NoiseSchedule, SteeringUpdate, Update
from apportion.training.loop import take_steps
from apportion.training.opening import open_session
from apportion.training.optimizers import build_optimizer
from apportion.training.packing import digest, pack, unpack
from apportion.training.recipe_state import RecipeState
from apportion.training.session import Session, Setup

STEPS, RATE, RECORDS, LEARNING_RATE = 8, 0.5, 400, 0.1
BUDGET = Budget(epsilon=4.0, delta=1e-5, unit=Record())
_EXTREMES = (0.0, 1.0, -1.0, 1e-30, 1e6, -1e6, 1e30, -1e30)


@dataclass(frozen=True)
class Check:
    """One line of the report: `problem` is `None` if it passed."""

    name: str
    problem: str | None


@dataclass(frozen=True)
class StrategyReport:
    """The result of `check_strategy`."""

    strategy: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.problem is None for check in self.checks)

    def require(self) -> None:
        """Raise `PrivacyViolation` with the first problem; do nothing if there is none."""
        for check in self.checks:
            if check.problem is not None:
                raise PrivacyViolation(f"{self.strategy}, {check.name}: {check.problem.rstrip('.')}.")

    def __str__(self) -> str:
        lines = [self.strategy]
        for check in self.checks:
            lines.append(f"{'passed' if check.problem is None else 'FAILED':<8}{check.name}")
            lines += [] if check.problem is None else [f"        {check.problem}"]
        return "\n".join(lines)


def check_strategy(strategy: Clip | NoiseSchedule | FeedbackNoise | Update | SteeringUpdate) -> StrategyReport:
    """Check a strategy of the clip, the noise or the update role, or a clip that owns the noise too.

    An exception of the strategy counts as a problem of the check in which it was raised.
    """
    role = next((role for role, (kinds, _) in ROLES.items() if isinstance(strategy, kinds)), None)
    if isinstance(strategy, type) or role is None:
        raise InvalidArgument(
            "strategy",
            validate.shown(strategy),
            "it fills no role: a clip has init, propose and observe, a noise schedule has multiplier and relative, one that follows "
            "released values init, choose and observe, an update has init, transform and observe, or init and move",
            "Pass an instance of your strategy, for example apportion.clip.Fixed() or apportion.noise.Constant()",
        )
    plan = make_plan(Recipe(**{role: strategy}), budget=BUDGET, population=RECORDS, sample_rate=RATE, steps=STEPS)  # type: ignore[arg-type]
    bench = _Bench(plan)
    checks: dict[str, Callable[[_Bench], str | None]] = {
        "the same answers twice": _repeats,
        "its state survives a file": _survives,
        "any released value is borne": _stays_inside,
        "empty batches and NaN records": _runs_on_bad_data,
        "no raw value is touched": _runs_sealed,
        "micro-batches change nothing": _ignores_micro_batches,
        "neighbours look the same": _replays,
        "the price is right": _is_priced,
    }
    return StrategyReport(
        f"{type(strategy).__name__}", tuple(Check(name, _problem(check, bench)) for name, check in checks.items())
    )


def _problem(check: Callable[[_Bench], str | None], bench: _Bench) -> str | None:
    try:
        return check(bench)
    except (Exception, SealedAccess) as error:
        return f"it raised {type(error).__name__}: {error}"


@dataclass(frozen=True)
class _Bench:
    """The strategies of all roles, and what they are tried on."""

    plan: Plan

    @staticmethod
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    @staticmethod
    def records() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(RECORDS, 5, generator=generator) * torch.logspace(-2, 2, RECORDS)[:, None]
        return inputs, torch.randint(0, 3, (RECORDS,), generator=generator)

    def steps(self, values: Sequence[float], states: Any = None, first: int = 1) -> Iterator[_Step]:
        """What the strategies do, step by step, if every released number of step t is `values[t − first]`."""
        parameters = dict(self.model().named_parameters())
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        strategies = RecipeState(self.plan, parameters, LEARNING_RATE)
        if states is not None:
            strategies.restore(states)
        for step, value in enumerate(values, start=first):
            request = strategies.request((step - 1) % self.plan.steps + 1)
            gradient = {name: torch.full(shape, value) for name, shape in shapes.items()} if request.noised else {}
            chosen = tuple(step % len(release.line.step_sizes) for release in request.selections)
            released = Released(request, gradient, (value,) * request.statistic_numbers, chosen)
            answer = dict(strategies.receive(released, parameters) or {})
            with torch.no_grad():
                for parameter in parameters.values():  # a state that is a view of the weights shows
                    parameter.add_(0.01)
            strategies.settle(released, parameters)
            if strategies.wants_validation(request_step := (step - 1) % self.plan.steps + 1):
                strategies.validate(abs(math.sin(request_step)))
            yield _Step(request, answer, strategies.state())

    def run(self, records: Any, micro_batch: int = 64, *, behind_seals: bool = False) -> Session:
        """A finished run."""
        model = self.model()
        setup = Setup(
            model=model,
            optimizer=build_optimizer(model, replayed_optimizer(self.plan.recipe), LEARNING_RATE),
            records=as_records(records),
            plan=copy.deepcopy(self.plan),
            choice=_choice("vmap" if behind_seals else "one-pass"),
            execution=Execution(micro_batch),
            randomness=Randomness.seeded(0),
            validation=Public(self.records()),
        )
        session = open_session(sealed(setup) if behind_seals else setup)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By a noisy count", UserWarning)  # of records that are broken on purpose
            take_steps(session, nn.CrossEntropyLoss())
        return session


@dataclass(frozen=True, eq=False)
class _Step:
    """What was asked, what the optimiser was given, and the states of the strategies afterwards."""

    request: Request
    answer: dict[str, torch.Tensor]
    states: dict[str, Any]

    def same_as(self, other: _Step) -> bool:
        return self.request == other.request and digest(self.answer) == digest(other.answer)


@functools.cache
def _choice(mode: Mode) -> EngineChoice:
    """The engine of this name for the model of the bench, proved once for all runs."""
    model, (inputs, targets) = _Bench.model(), _Bench.records()
    return choose_engine(model, nn.functional.cross_entropy, inputs[0], targets[0], mode)


def _repeats(bench: _Bench) -> str | None:
    values = [0.1, -0.2, 0.3, 0.0, 0.05, -0.4, 0.2, 0.1]
    once, again = list(bench.steps(values)), list(copy.deepcopy(bench).steps(values))
    if not all(one.same_as(other) for one, other in zip(once, again, strict=True)):
        return "asked twice with the same released values, it did something else"
    return None


def _survives(bench: _Bench) -> str | None:
    values = [0.1, -0.2, 0.3, 0.0]
    *_, last = bench.steps(values)
    states = copy.deepcopy(last.states)
    restored = unpack(pack({"states": states}))["states"]
    if digest(restored) != digest(states):
        return "its state is not the same after it was written and read"
    there, here = bench.steps(values, states, first=5), bench.steps(values, restored, first=5)
    if not all(one.same_as(other) for one, other in zip(there, here, strict=True)):
        return "it goes on differently with a state that was written and read"
    return None


def _stays_inside(bench: _Bench) -> str | None:
    low, high = getattr(bench.plan.clip, "minimum", 0.0), getattr(bench.plan.clip, "maximum", math.inf)
    shapes = {name: parameter.shape for name, parameter in bench.model().named_parameters()}
    for value in _EXTREMES:
        for step in bench.steps([value] * 100):
            if step.answer and {name: tensor.shape for name, tensor in step.answer.items()} != shapes:
                return "what it hands to the optimiser does not have the names and shapes of the released gradient"
            groups = len(step.request.sums)
            for release in step.request.sums:
                # with groups a schedule divides its overall threshold by √K
                if (
                    not low / math.sqrt(groups) * (1 - 1e-9) <= release.threshold <= high
                    or release.threshold == math.inf
                ):
                    return f"after released values of {value:g} it proposed the threshold {release.threshold:g}"
    return None


def _runs_on_bad_data(bench: _Bench) -> str | None:
    inputs, targets = bench.records()
    inputs[::3] = math.nan
    for few in (
        (inputs, targets),
        (inputs[:1] * math.nan, targets[:1]),
    ):  # the second: hardly anyone, and nobody finite
        session = bench.run(few)
        ended = session.step if bench.plan.filtered else bench.plan.steps
        if not session.step == ended > 0 or not all(p.isfinite().all() for p in session.model.parameters()):
            return "the run did not end with finite weights"
    return None


def _runs_sealed(bench: _Bench) -> str | None:
    bench.run(bench.records(), behind_seals=True)
    return None


def _ignores_micro_batches(bench: _Bench) -> str | None:
    runs = [bench.run(bench.records(), size) for size in (RECORDS, RECORDS // 8)]
    whole, pieces = ([entry.clip for entry in run.entries] for run in runs)
    for step, (one, other) in enumerate(zip(whole, pieces, strict=True), start=1):
        if any(not math.isclose(a, b, rel_tol=1e-4) for a, b in zip(one, other, strict=True)):
            return f"with other micro-batches the thresholds of step {step} are {other} instead of {one}"
    return None


def _replays(bench: _Bench) -> str | None:
    inputs, targets = bench.records()
    report = replay(bench.model(), nn.CrossEntropyLoss(), (inputs, targets), bench.plan)
    return None if report.ok else str(report.findings[0])


def _is_priced(bench: _Bench) -> str | None:
    session = bench.run(bench.records())
    account = session.account
    events = [] if account.run is None else list(account.ledger.events(account.run))
    if len(events) != session.step or not (bench.plan.filtered or session.step == bench.plan.steps):
        return f"{len(events)} events were charged for {session.step} steps of {bench.plan.steps}"
    if bench.plan.filtered:  # its promise is the budget; what was spent must be inside of it
        inside = fits(bench.plan.rule(), count_events(events))
        return None if inside and account.epsilon() == BUDGET.epsilon else "more was spent than its filter allows"
    independent, stated = independent_price(count_events(events), BUDGET.delta), account.epsilon()
    if not independent.agrees(stated) or stated > BUDGET.epsilon:
        return f"the run says ε = {stated:.4f}, dp_accounting says {independent.highest:.4f}"
    return None
