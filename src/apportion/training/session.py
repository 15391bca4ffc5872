"""The state of one private run, shared by `train` and `make_private`: which request is next, what an answer changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.accounting.account import Account
from apportion.accounting.rules import Rule
from apportion.budget import Public
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import Engine, EngineChoice
from apportion.curator.gradients.model_walk import ModelWalk, trained_parameters
from apportion.curator.owners import Owners
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.distributed.sharded_model import ShardedModel
from apportion.domain import Domain
from apportion.errors import WrongOrder
from apportion.execution import Execution
from apportion.planning import Plan
from apportion.ranks import ALONE, Ranks
from apportion.request import Released, Request
from apportion.strategies.context import epoch_length
from apportion.strategies.roles import FeedbackNoise
from apportion.training.checkpoint import Checkpoints, explained
from apportion.training.evaluation import Evaluation, accuracy
from apportion.training.exact import ExactCurator
from apportion.training.history import Entry, as_columns, from_columns, is_report_step
from apportion.training.metrics import Metric
from apportion.training.optimizers import clear_gradients, require_same_parameters
from apportion.training.recipe_state import RecipeState
from apportion.training.sharded_checkpoint import ShardedCheckpoints
from apportion.training.storage import PROBLEMS, Storage
from apportion.training.weights import ShardedWeights, Weights, WholeWeights
from apportion.usable import UsableTally

if TYPE_CHECKING:
    from apportion.training.normalising import Normaliser

REHEARSED = 8
"""Steps in which the strategies are answered with zeros before anything is charged."""
Score = TypeVar("Score")
BuildCurator = Callable[..., Curator]
"""Called like `Curator` itself."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that a run is opened with. `train` and `make_private` make one, and so do audits and searches.

    Args:
        model, optimizer, scheduler: what learns; the scheduler is stepped once a step.
        records: the private records.
        plan: what is executed.
        validation: public data for strategies that ask for the model's accuracy during the run.
        choice: how per-record gradients are computed (`models/engine_choice.py`).
        execution: memory and speed.
        randomness: where random bits come from.
        storage: where the run is kept.
        domain: which values records may have.
        own_loop: whether the loop is a person's own, as in `make_private`.
        owners: whose the records are, instead of what the plan's budget says of them, for audits.
        rule: under which it spends, instead of the plan's own: that of a search of which it is a trial.
        engine: instead of the chosen one, for audits.
        build_curator: makes the curator, for audits that look over its shoulder.
        ranks: the processes that make this run together.
        shards: how the model is divided between them; `model` is then its whole copy, and the optimiser has the divided parameters.
    """

    model: nn.Module
    optimizer: Optimizer
    records: Records
    plan: Plan
    choice: EngineChoice
    execution: Execution
    randomness: Randomness
    scheduler: LRScheduler | None = None
    validation: Public | None = None
    storage: Storage = field(default_factory=Storage)
    domain: Domain = field(default_factory=Domain)
    own_loop: bool = False
    owners: Owners | None = None
    rule: Rule | None = None
    engine: Engine | None = None
    build_curator: BuildCurator = Curator
    ranks: Ranks = ALONE
    shards: ShardedModel | None = None


class Session:
    """Couples model, optimiser, strategies, curator and account. Nothing is charged until the first request is executed.

    Args:
        setup: what the run was opened with.
        engine: per-record gradients of the model.
        account: pays.
        build_curator: given this session, makes what answers its requests.
        checkpoints: writes its state; `None` for a run that lives in memory.
    """

    federated = False
    """Whether its units are clients that train by themselves, for the statement."""

    def __init__(
        self,
        setup: Setup,
        engine: Engine,
        account: Account,
        build_curator: Callable[[Session], Curator | ExactCurator],
        checkpoints: Checkpoints | ShardedCheckpoints | None = None,
    ):
        # Not the set-up itself: it holds the records, and only the curator may reach them.
        self.engine, self.account, self.checkpoints = engine, account, checkpoints
        self.checkpoint_every = None if checkpoints is None else checkpoints.every
        """Of all ranks the same, although only the first one writes."""
        self.plan, self.optimizer, self.randomness = setup.plan, setup.optimizer, setup.randomness
        self.storage, self.own_loop, self._scheduler = setup.storage, setup.own_loop, setup.scheduler
        self._validation, self.ranks = setup.validation, setup.ranks
        self.weights: Weights = WholeWeights(engine.model) if setup.shards is None else ShardedWeights(setup.shards)
        self._walk = ModelWalk(self.weights.model)
        self.initial_learning_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.entries: list[Entry] = []
        self.usable, self._judged = UsableTally(), self.plan.usable is None
        self.metric: Metric | None = None
        self._applying = False
        self.optimizer.register_step_pre_hook(self._only_released_gradients)
        self._rehearse()
        self._strategies = self._begin()
        self.curator = build_curator(self)
        self.normaliser: Normaliser | None = None
        """What asks for the normalisation of features, where the plan pays for it."""

    def normalise(self) -> None:
        """Ask what the plan asks before its first step, if that was not done yet; durable before a step rests on it."""
        if self.normaliser is not None and self.normaliser.due:
            self.normaliser.ask()
            self.write_checkpoint()

    def _begin(self) -> RecipeState:
        return RecipeState(self.plan, self.weights.own(), self.initial_learning_rates[0], self.weights.shapes)

    def _rehearse(self) -> None:
        """Let the strategies meet requests and answers of zeros, so that they raise before anything is charged."""
        parameters = self.weights.own()
        strategies = self._begin()
        for step in range(1, min(REHEARSED, self.plan.steps) + 1):
            _answer_with_zeros(strategies, step, parameters)
        strategies.rate(self.plan.steps)
        if not isinstance(self.plan.noise, FeedbackNoise):
            noisiest = self.plan.multipliers.index(max(self.plan.multipliers)) + 1
            _answer_with_zeros(self._begin(), noisiest, parameters)

    @property
    def model(self) -> nn.Module:
        return self.engine.model

    @property
    def averaged(self) -> nn.Module | None:
        """A copy of the model with averaged weights; `None` if the update keeps no average, or before the first step. Of a sharded model
        the first rank has it, as it was when the model was last measured, or at the end."""
        return self.weights.averaged(self._strategies.averaged)

    @property
    def evaluated(self) -> nn.Module:
        """The model as it is meant to be used: with averaged weights, where they are kept."""
        averaged = self.averaged
        return self.model if averaged is None else averaged

    @property
    def repeatable(self) -> bool:
        """Whether a key can still repeat the draws of this run."""
        return self.storage.recovery == "exact" and self.left > 0

    @property
    def step(self) -> int:
        """The step of the plan that was taken last."""
        return self.account.position

    def next_request(self) -> Request:
        """What the strategies ask for at the next step. Also defined after the last one: the account refuses it then."""
        self.weights.require_settled()
        return self._strategies.request(min(self.account.next_step, self.plan.steps))

    def affords(self, request: Request) -> bool:
        """Whether the run goes on with `request`. Under a rule that lets prices follow released values, its end is that one does not fit;
        otherwise a request that the plan does not cover is a mistake, which the account refuses. A draw that can be repeated is paid."""
        account = self.account
        return not account.rule.adaptive or account.next_step in account.repeatable or account.covers(request.event())

    @property
    def left(self) -> int:
        """How many steps can still be taken, at most; 0 if the next one does not fit."""
        left = self.account.left
        ended = left and self.account.rule.adaptive and not self.affords(self.next_request())
        return 0 if ended else left

    def apply(self, released: Released) -> Entry:
        """Move the weights by what was released, let the strategies learn from it, write it down."""
        trained = trained_parameters(self._walk)
        require_same_parameters(trained, self.optimizer)
        clear_gradients(self.optimizer)  # whatever was there before was not released
        answer = self._strategies.receive(released, self.weights.own())
        learning_rate = self._steer(answer) if self._strategies.steering else self._optimize(answer or {}, trained)
        self._strategies.settle(released, self.weights.own())
        self.weights.settle()
        self._count_usable(released)
        entry = Entry(
            step=self.step,
            epoch=(self.step - 1) // epoch_length(self.plan.sampling.sample_rate) + 1,
            clip=self._shared("clip", tuple(release.threshold for release in released.request.sums)),
            noise_multiplier=released.request.noise_multiplier if released.request.noised else None,
            learning_rate=self._shared("learning_rate", learning_rate),
            selected=_selected_step(released),
        )
        self.entries.append(entry)
        if self._strategies.wants_validation(self.step):
            assert self._validation is not None  # `opening.py` has seen to it
            public = self._validation
            self._strategies.validate(self._measured(lambda: accuracy(self.evaluated, public)))
        return entry

    def _count_usable(self, released: Released) -> None:
        request, (_, answer) = released.request, released.split_usable()
        if answer is not None:
            weight, deviation = request.expected_weight, request.standard_deviation(request.statistics[-1])
            self.usable.add(answer * weight, deviation, weight, max(request.clips))

    def require_usable(self) -> None:
        """Stop a run, once, after the steps that decide it, if by their noisy counts fewer than half of the records contribute. The state
        is kept, and the run can be resumed."""
        check = self.plan.usable
        if self._judged or check is None or self.step < check.steps:
            return
        self._judged = True
        if self.usable.too_few:
            self.gather_problems()
            self.write_checkpoint()
            raise self.usable.refusal(check.steps, self.left, self.plan.epsilon, self._place_of_problems)
        self.warn_if_unusable()

    def warn_if_unusable(self) -> None:
        """Say that many records do not contribute, also when a run goes on that was stopped for it."""
        if self._judged and self.usable.rather_few:
            warnings.warn(self.usable.warning(self._place_of_problems), stacklevel=3)

    @property
    def _place_of_problems(self) -> str | None:
        path = self.storage.path(PROBLEMS)
        return None if path is None else str(path)

    def _optimize(self, gradients: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[float, ...]:
        """Hand a released gradient to the optimiser of these parameters. Returns the learning rates."""
        for name, gradient in gradients.items():
            parameters[name].grad = self.weights.as_gradient(name, gradient)
        groups, rate = self.optimizer.param_groups, self._strategies.rate(self.step)
        declared = [group["lr"] for group in groups]
        for group, full in zip(groups, declared, strict=True):
            group["lr"] = full * rate
        learning_rate = tuple(float(group["lr"]) for group in groups)
        self._applying = True
        try:
            self.optimizer.step()
        finally:
            self._applying = False
            for group, full in zip(groups, declared, strict=True):  # what schedulers and checkpoints go on with
                group["lr"] = full
        clear_gradients(self.optimizer)
        if self._scheduler is not None:
            self._scheduler.step()
        return learning_rate

    def _steer(self, weights: Mapping[str, Tensor] | None) -> tuple[float, ...]:
        """Set the weights, if they are to move. Returns the step size."""
        if weights is not None:
            with torch.no_grad():
                for name, parameter in trained_parameters(self.model).items():
                    parameter.copy_(weights[name])
        return (self._strategies.learning_rate,)

    def _shared(self, name: str, values: tuple[float, ...]) -> tuple[float, ...]:
        """The last entry's tuple if it is equal: a long run with a constant schedule keeps one instead of thousands."""
        last: tuple[float, ...] | None = getattr(self.entries[-1], name) if self.entries else None
        return values if last is None or last != values else last

    def state(self) -> dict[str, Any]:
        """All that moves, except the records and the random generators. Of a sharded model all tensors like parameters are divided."""
        return {
            "step": self.step,
            "model": self.weights.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "usable": {**asdict(self.usable), "judged": self._judged},
            **self.weights.kept(self._strategies.state()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned. The weights of a sharded model have to be gathered afterwards."""
        self.weights.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._strategies.restore({**state, "update": self.weights.taken_up(state["update"])})
        counted = dict(state.get("usable", {}))  # older checkpoints have no count
        self._judged = counted.pop("judged", True)
        self.usable = UsableTally(**counted)
        self.entries = from_columns(state["history"])
        if isinstance(self.curator, Curator) and "individual" in state:
            self.curator.restore_secret(state["individual"], self.account.charged_after(state["individual"]["charges"]))

    def write_checkpoint(self) -> None:
        """Make the state durable, with the history and what the ledger said by then."""
        if self.checkpoints is not None:
            books = {
                "identifier": self.account.identifier,
                "spent": self.account.spent,
                "head": self.account.ledger.head(),
            }
            content = {**self.state(), "history": as_columns(self.entries), "account": books}
            if isinstance(self.curator, Curator) and (secret := self.curator.secret_state()) is not None:
                content["individual"] = secret
            self.checkpoints.write(content)
            if self.ranks.rank == 0:
                self.write_problems(self.checkpoints.folder)

    def write_problems(self, folder: Path) -> None:
        """What did not contribute, for the owner of the data: always, so that the file itself tells nothing. No run rests on it."""
        path = folder / PROBLEMS
        with explained(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            # What an error says may hold half a character, which UTF-8 has no form for: JSON has.
            path.write_text(self.curator.problems(), encoding="utf-8", errors="backslashreplace")

    def write_checkpoint_if_due(self) -> None:
        if self.checkpoint_every is not None and self.step % self.checkpoint_every == 0:
            self.gather_problems()
            self.write_checkpoint()

    def gather_problems(self) -> None:
        """Learn what did not contribute on other ranks. All of them come here at the same step."""
        if self.ranks.count > 1 and isinstance(self.curator, Curator):
            self.curator.gather_problems()

    def _only_released_gradients(self, *_: Any) -> None:
        """Runs before every step of the optimiser, also one that is called past this session."""
        if not self._applying:
            raise WrongOrder(
                "this optimizer belongs to a private run: call private.optimizer.step(), which adds clipping and noise"
            )

    def report(self, evaluation: Evaluation | None) -> Entry:
        """Add what is known of the last step: the budget spent so far and, if it is to be evaluated, how good the model is."""
        names = [group.name for group in self.plan.budget.groups]
        entry = replace(
            self.entries[-1],
            epsilon=self.account.epsilon(),
            metric=None if evaluation is None else evaluation.metric.name,
            score=None if evaluation is None else self._measured(lambda: evaluation.measure(self.evaluated)),
            group_epsilon={name: self.account.epsilon(group=name) for name in names} or None,
        )
        self.entries[-1] = entry
        return entry

    def _measured(self, measure: Callable[[], Score]) -> Score:
        """What the first rank measures. The others wait for it: what follows from a score must be the same for all."""
        self.weights.gather_average(self._strategies.averaged)
        return self.ranks.agree(measure()) if self.ranks.rank == 0 else self.ranks.agree(cast(Score, None))

    @property
    def report_is_due(self) -> bool:
        return is_report_step(self.step, self.plan.steps)

    def complete(self) -> None:
        """What all ranks of a sharded model do together after the last step: one alone could not bring the parts together."""
        if isinstance(self.weights, ShardedWeights) and self.entries:
            self.weights.gather_average(self._strategies.averaged)
            self.write_checkpoint()

    def close(self) -> None:
        """What is left to do when a run has ended: a key that could repeat its draws is deleted."""
        if isinstance(self.curator, ExactCurator) and not self.left:
            self.curator.close()


def _answer_with_zeros(strategies: RecipeState, step: int, parameters: Mapping[str, Tensor]) -> None:
    request = strategies.request(step)
    zeros = {name: torch.zeros_like(value) for name, value in parameters.items()} if request.noised else {}
    released = Released(request, zeros, (0.0,) * request.statistic_numbers, (0,) * len(request.selections))
    strategies.receive(released, parameters)
    strategies.rate(step)
    strategies.settle(released, parameters)


def _selected_step(released: Released) -> float | None:
    """The step size that a selection chose; 0 if a search found none. `None` if nothing was selected."""
    for release, index in zip(released.request.selections, released.selected, strict=True):
        return 0.0 if index is None else release.line.step_sizes[index]
    return None
