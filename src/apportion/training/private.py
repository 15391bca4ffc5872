"""Tier 2: `make_private` for a training loop of one's own.

    private = make_private(model, optimizer, data, plan)
    for x, y in private.batches():
        private.optimizer.zero_grad()
        loss_fn(private.model(x), y).backward()
        private.optimizer.step()

The loop sees real records, so it stands inside the trust boundary: look, but publish nothing that was not released. What is
left to the person: a loss that is a sum or mean of terms of single records, and silence about what the loop sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion import validate
from apportion.budget import Public
from apportion.curator.curator import Curator, Draw
from apportion.curator.gradients.engine import Engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import Batch, as_records
from apportion.curator.tree import batch_size as size_of
from apportion.curator.tree import map_tensors, tensor_leaves
from apportion.domain import Domain
from apportion.errors import BudgetExhausted, InvalidArgument, WrongOrder
from apportion.execution import ACCUMULATION, Execution
from apportion.planning import Plan, require_plan
from apportion.strategies.context import epoch_length
from apportion.training.evaluation import require_measurable, require_public
from apportion.training.fabric import without_fabric
from apportion.training.history import Entry
from apportion.training.opening import open_session, require_trainable
from apportion.training.preflight import expected_domain, require_callable, require_known_processes
from apportion.training.progress import Show
from apportion.training.record_loss import Reduction, per_record_scale, require_separable
from apportion.training.run import Run
from apportion.training.session import Session, Setup
from apportion.training.sharded_runs import find_processes
from apportion.training.storage import Storage

SEPARABILITY_CHECKS = 8
"""In so many of the first micro-batches the loss is differentiated twice, to see whether it mixes records."""


class _MicroBatch:
    """One piece of an open draw, and how far the loop has come with it."""

    def __init__(self, draw: Draw, members: Tensor, *, last: bool, number: int):
        self.draw, self.members, self.last, self.number = draw, members, last, number
        self.size = len(members)
        self.outputs: list[Tensor] = []
        self.stage: Literal["drawn", "forwarded", "differentiated", "stepped"] = "drawn"

    def advance(self, before: str, after: Any, complaint: str) -> None:
        if self.stage != before:
            raise WrongOrder(complaint)
        self.stage = after


class PrivateModel(nn.Module):
    """The model as the loop calls it: in training it keeps the gradient of every record apart.

    In `eval()` mode or under `torch.no_grad()` it is the plain model, for evaluation on public data.
    """

    def __init__(self, engine: Engine, reduction: Reduction):
        super().__init__()
        self.module = engine.model
        self._engine, self._reduction = engine, reduction
        self.current: _MicroBatch | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return self.module(*inputs, **named)
        current = self.current
        if current is None:
            raise WrongOrder(
                "no batch is open: call private.model inside `for batch in private.batches()`, or in eval() mode for evaluation"
            )
        if inputs and named:
            raise InvalidArgument(
                "model", sorted(named), "some arguments were passed by name and others were not", "Pass all in one way"
            )
        structure: Any = named or (inputs[0] if len(inputs) == 1 else inputs)
        if size_of(structure) != current.size:
            raise WrongOrder(
                f"the model was given {size_of(structure)} records, but the batch has {current.size}: pass the batch as it came"
            )
        current.advance(
            "drawn", "forwarded", "the model was called twice on one batch: one forward pass a batch is counted"
        )
        kind = self._tracked(current)
        with current.draw.secret_dropout():
            outputs = self._engine.forward(structure)
        current.outputs = tensor_leaves(outputs)
        return map_tensors(lambda tensor: tensor.as_subclass(kind), outputs)

    def _tracked(self, current: _MicroBatch) -> type[Tensor]:
        """Tensors that remember where they came from, so that `loss.backward()` can be given its per-record scale."""
        engine, reduction, model = self._engine, self._reduction, self

        class RecordOutput(Tensor):
            def backward(self, *arguments: Any, **options: Any) -> None:
                if model.current is not current:
                    raise WrongOrder(
                        "this loss is of a batch that is over: its records would be added to those of another draw"
                    )
                current.advance(
                    "forwarded",
                    "differentiated",
                    "backward was called twice on one batch: its gradients would count double",
                )
                loss = self.as_subclass(Tensor)
                scaled = (loss * per_record_scale(loss, current.size, reduction)).sum()
                engine.require_own_parameters(scaled)
                if current.number <= SEPARABILITY_CHECKS:
                    require_separable(scaled, current.outputs)
                scaled.backward(*arguments, **options)

        return RecordOutput


class PrivateOptimizer:
    """The optimiser as the loop calls it: a step waits until the logical batch is complete."""

    def __init__(self, private: Private, original: Optimizer):
        self._private, self.original = private, original

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The original's, e.g. to change a learning rate between two calls of `batches(epochs=1)`."""
        return self.original.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. What was summed of the open batch is kept elsewhere and stays."""
        self.original.zero_grad(set_to_none=set_to_none)

    def step(self, closure: None = None) -> None:
        """Add the micro-batch to the sum; after the last one add noise once, and update."""
        if closure is not None:
            raise InvalidArgument(
                "closure",
                validate.shown(closure),
                "to evaluate the loss again would be another question to the records, which nobody has paid for",
                "Call loss.backward() yourself, and step() without one",
            )
        self._private.complete_micro_batch()

    def state_dict(self) -> dict[str, Any]:
        return self.original.state_dict()


class Private:
    """A private run whose loop is the person's own: `batches`, `model`, `optimizer`, and what every `Run` offers."""

    def __init__(self, session: Session, reduction: Reduction, log: Show | None = None):
        self._session, self._log = session, log
        self.run = Run(session)
        self.model = PrivateModel(session.engine, reduction)
        self.optimizer = PrivateOptimizer(self, session.optimizer)
        self._micro_batches = 0
        self._settings: list[dict[str, Any]] | None = None
        self._open = False

    @property
    def history(self) -> Sequence[Entry]:
        """One entry a step: released values and public facts."""
        return self.run.history

    @property
    def steps(self) -> int:
        """Logical steps taken so far."""
        return self.run.steps

    def epsilon(self, delta: float | None = None, *, group: str | int | None = None) -> float:
        """ε of the steps charged so far at `delta` (the budget's by default), an upper bound, as `Run.epsilon`."""
        return self.run.epsilon(delta, group=group)

    def statement(self) -> dict[str, Any]:
        """The privacy statement as data."""
        return self.run.statement()

    def save(self, folder: str | Path) -> Path:
        """Write the run folder."""
        return self.run.save(folder)

    def report(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one HTML page about the run so far."""
        return self.run.report(path, title=title)

    def __repr__(self) -> str:
        return f"Private({self.run!r})"

    @property
    def steps_left(self) -> int:
        """Logical steps that the plan still holds; 0 when the next one would not fit into a filter."""
        return self._session.left

    def batches(self, *, epochs: float | None = None, steps: int | None = None) -> Iterator[Batch]:
        """The micro-batches of the next logical steps, each drawn afresh: of all that are left, or of so many epochs or steps.

        An empty draw is completed here: noise, charge and update, with nothing for the loop to do. When the plan is spent, the
        iteration ends, and a run with a folder is saved.

        One iteration is open at a time. A draw that is left in its middle, by a `break` or an exception, is spent: nothing of it is
        released, and nothing reaches another draw.
        """
        if epochs is not None:
            steps = max(1, round(epochs * epoch_length(self._session.plan.sampling.sample_rate)))
        if steps is not None:
            validate.whole("steps", steps, "it is a number of updates", "Leave it out to run the whole plan")
        if not self.steps_left:
            raise BudgetExhausted(
                f"{self.steps} steps are spent, all that the plan affords: one call of batches() runs all of them. In a loop over epochs "
                "call batches(epochs=1); to train longer, plan more steps from the start."
            )
        return self._batches(self.steps_left if steps is None else min(steps, self.steps_left))

    def _batches(self, steps: int) -> Iterator[Batch]:
        if self._open:
            raise WrongOrder(
                "another batches() is open: rows of its draw would be added to this one. Finish it, or close() it, before the next"
            )
        self._open = True
        try:
            yield from self._draws(steps)
        finally:
            self._open, self.model.current, self._settings = False, None, None
        if not self.steps_left:
            self._session.gather_problems()
            self._session.complete()
            self._session.curator.end_workers()
            if (folder := self._session.storage.folder) is not None:
                self.save(folder)

    def _draws(self, steps: int) -> Iterator[Batch]:
        self._settings = _settings_of(self._session.optimizer)
        for _ in range(steps):
            if not self.steps_left:  # a resumed run lost steps that no spare token paid for, or a filter is exhausted
                break
            curator = self._session.curator
            assert isinstance(curator, Curator)  # draws that are repeated bit for bit are offered to `train` alone
            draw = curator.open(self._session.next_request())
            try:
                yield from self._pieces(draw)
            finally:
                if not draw.released:  # the loop was left in the middle: other ranks need not wait
                    self._session.ranks.give_up()

    def _pieces(self, draw: Draw) -> Iterator[Batch]:
        """The micro-batches of one draw. Without any, it is completed here."""
        pieces = draw.micro_batches()
        piece = next(pieces, None)
        if piece is None:
            self._update(draw)
        while piece is not None:
            following = next(pieces, None)
            self._micro_batches += 1
            current = _MicroBatch(draw, piece.members, last=following is None, number=self._micro_batches)
            self.model.current = current
            yield piece.batch
            if current.stage != "stepped":
                raise WrongOrder(
                    f"a batch was left without private.optimizer.step(): its records would be missing from the sum. {ACCUMULATION}"
                )
            piece = following

    def complete_micro_batch(self) -> None:
        """What `optimizer.step()` does: add the micro-batch to the sum, and after the last one release and update."""
        current = self.model.current
        if current is None:
            raise WrongOrder("no batch is open: step inside `for batch in private.batches()`")
        current.advance(
            "differentiated",
            "stepped",
            "call loss.backward() once, on a loss computed from private.model's output in train() mode, before each "
            "private.optimizer.step()",
        )
        current.draw.add(self._session.engine.gradients(), current.members)
        if current.last:
            self._update(current.draw)

    def _update(self, draw: Draw) -> None:
        if self._settings is not None and _settings_of(self._session.optimizer) != self._settings:
            raise WrongOrder(
                "the optimizer's settings changed inside the loop, once a micro-batch or not at all for an empty draw: that follows "
                "the private batch size. Pass the scheduler to make_private(scheduler=...), or change settings between two calls of "
                "batches(epochs=1)"
            )
        entry = self._session.apply(draw.release())
        if self._session.report_is_due:
            entry = self._session.report(None)
        self._session.write_checkpoint_if_due()
        if self._log is not None:
            self._log(entry)
        self._session.require_usable()
        if self._settings is not None:
            self._settings = _settings_of(self._session.optimizer)


def _settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Any,
    plan: Plan,
    *,
    loss_reduction: Reduction = "mean",
    scheduler: LRScheduler | None = None,
    validation: Public | None = None,
    execution: Execution | None = None,
    seed: int | None = None,
    storage: Storage | None = None,
    domain: Domain | None = None,
    log: Show | None = None,
) -> Private:
    """Make a training loop of one's own private. Arguments as in `train`, and:

    Args:
        model, optimizer: a module and a torch optimiser over its parameters, as they are or as `fabric.setup` returns them. Settings of
            their own for parts of the model are parameter groups of that optimiser.
        loss_reduction: how the loop's loss turns records into one number: "mean" or "sum". A loss with one value a record
            (reduction="none") needs no declaration and is the safest. A contradiction that can be seen is refused.
        scheduler: a learning-rate scheduler of `optimizer`, stepped once a logical step, also after empty draws.
        validation: as in `train`, for recipes that choose by it.
        log: is called with the `Entry` of each logical step, as in `train`. What the loop itself sees must not be logged.
        domain: as in `train`; batches do not hold records outside of it. The loss is not known here, so classes must be declared.

    Returns:
        A `Private` with `batches()`, `model`, `optimizer`, `epsilon()`, `history`, `statement()`, `save()`, and the `run` itself.
    """
    validate.known("loss_reduction", loss_reduction, ("mean", "sum"))
    require_plan(plan)
    model, optimizer = without_fabric(model), without_fabric(optimizer)
    execution = execution or Execution()
    model, shards, ranks = find_processes(model, execution)
    with ranks.joined():
        require_known_processes(model)
        require_callable("log", log)
        records = as_records(data)
        setup = Setup(
            model=model,
            optimizer=optimizer,
            records=records,
            plan=plan,
            choice=require_trainable(model, None, records, execution),
            execution=execution,
            randomness=Randomness.choose(seed, ranks.rank),
            scheduler=scheduler,
            validation=None if validation is None else require_public(validation, "validation"),
            storage=storage or Storage(),
            domain=expected_domain(domain, model, None, records),
            own_loop=True,
            ranks=ranks,
            shards=shards,
        )
        if validation is not None:
            # Not at the first step that asks, when something was charged.
            require_measurable(model, validation, "validation", domain=domain)
    return Private(open_session(setup), loss_reduction, log if ranks.rank == 0 else None)
