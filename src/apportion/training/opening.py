"""Opening a run, new or resumed: what it must fulfil, its books, its curator. A refused run leaves no file and no folder behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.budget import User
from apportion.curator.curator import Curator, LossFunction
from apportion.curator.gradients.engine import Engine, EngineChoice
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.owners import Owners, owners_of
from apportion.curator.problems import Problems
from apportion.curator.records import Records
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.channel_scaling import find_scaling
from apportion.models.check import check
from apportion.models.engine_choice import choose_engine
from apportion.models.memory import resolve_micro_batch
from apportion.models.probe import probe_batch_sizes, probe_loss, probe_records
from apportion.models.temper import require_tempered
from apportion.models.vetting import VettedEngine
from apportion.planning import require_plan
from apportion.ranks import Ranks
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.strategies.roles import AskingUpdate, SteeringUpdate, ValidatedNoise, is_optimizing
from apportion.strategies.update.update_chain import parts_of
from apportion.training.checkpoint import Checkpoints, restored
from apportion.training.exact import ExactCurator
from apportion.training.folders import missing_folders, remove_empty
from apportion.training.individual_runs import individual_bounds, require_individual_fits
from apportion.training.normalising import Normaliser, require_scaling
from apportion.training.optimizers import (
    require_momentum_free,
    require_plain_scheduler,
    require_plain_sgd,
    require_plain_step,
    require_same_parameters,
)
from apportion.training.session import Session, Setup
from apportion.training.several_ranks import (
    divided,
    facts_of_ranks,
    require_ranks_fit,
    require_same_records,
    require_same_settings,
)
from apportion.training.sharded_checkpoint import ShardedCheckpoints
from apportion.training.sharded_runs import require_shards_fit
from apportion.training.storage import CHECKPOINT, DRAWS, KEY, LEDGER, PROBLEMS, Storage


def open_session(setup: Setup) -> Session:
    """Account, curator and state of a run, new or resumed; of several ranks the first keeps the books and the checkpoints."""
    ranks = setup.ranks
    with ranks.joined():
        _require_valid(setup)
        require_ranks_fit(setup)
        require_shards_fit(setup)
        execution = resolve_micro_batch(
            setup.execution,
            setup.model,
            setup.choice,
            setup.records.example[0],
            setup.plan.expected_batch_size,
        )
        owners = setup.owners or owners_of(setup.records, setup.plan.budget)
        whole = setup.shards is not None  # a copy that nobody else has
        engine = setup.engine or VettedEngine(setup.model, setup.choice, *setup.records.example, lent=whole)
    require_same_settings(ranks, configuration(setup) | facts_of_ranks(setup))
    require_same_records(setup, owners)
    kept_spare = _kept_spare(setup)
    resumed = setup.storage.resume
    with ranks.joined():
        checkpoints = _make_checkpoints(setup)
    if ranks.rank:
        setup = replace(setup, storage=Storage())
    with ranks.joined():
        earlier = checkpoints.read() if checkpoints is not None and setup.storage.resume else None
    earlier = ranks.agree(earlier)
    if resumed and isinstance(checkpoints, ShardedCheckpoints):
        with ranks.joined():
            earlier = checkpoints.fill(earlier or {})
    with ExitStack() as kept:
        with ranks.joined():
            books = kept.enter_context(_opened_books(setup, earlier)) if ranks.rank == 0 else None
        books = _with_copies(ranks, books, earlier)
        ranks.copy_first((*(setup.model.parameters() if setup.shards is None else ()), *setup.model.buffers()))
        with ranks.joined():
            known = {"identifier": earlier["account"]["identifier"], "position": earlier["step"]} if earlier else {}
            rule = setup.rule or setup.plan.rule()
            account = Account(setup.plan.budget, rule, books, kept_spare=kept_spare, **known)

            def build_curator(session: Session) -> Curator | ExactCurator:
                return _build_curator(setup, session, engine, execution, divided(owners, setup))

            session = Session(setup, engine, account, build_curator, checkpoints)
            _add_normaliser(setup, session, divided(owners, setup), new=earlier is None)
            if earlier is not None:
                restored(Path(setup.storage.folder or "") / CHECKPOINT, lambda: session.restore(earlier))
                session.warn_if_unusable()
            else:
                _require_a_first_step(session)
        session.checkpoint_every = ranks.agree(session.checkpoint_every)
        if setup.shards is not None:
            setup.shards.gather()
        if earlier is None:
            session.write_checkpoint()
    if isinstance(session.curator, ExactCurator):
        session.curator.begin(ended=not session.left)
    session.close()  # of a run that had ended, and died before it could tidy up
    setup.model.train()
    return session


def _kept_spare(setup: Setup) -> int | None:
    """Spare tokens that a crash may need: one for each step since the last checkpoint. Nothing is charged in advance if the disk is not
    waited for, if every draw is noted there anyway, or if single people have accounts, which count charges as they are executed."""
    individual = isinstance(setup.plan.recipe.people, (IndividualEstimate, IndividualFilter))
    if setup.storage.folder is None or setup.storage.recovery == "exact" or individual:
        return None
    return setup.storage.interval(setup.plan.steps)


def _with_copies(ranks: Ranks, books: Ledger | None, earlier: dict[str, Any] | None) -> Ledger:
    """The ledger of the run on the first rank, and a copy in memory on the others."""
    run = books.find(earlier["account"]["identifier"]) if books is not None and earlier is not None else None
    rows = ranks.agree([] if books is None else books.rows_of(run))
    return Ledger.copy_of(rows) if books is None else books


def _add_normaliser(setup: Setup, session: Session, owners: Owners, *, new: bool) -> None:
    """What asks for the normalisation of features. A new run forgets constants of an earlier one: it pays for its own."""
    layer, norm = find_scaling(setup.model), setup.plan.norm
    if layer is None or norm is None:
        return
    if new:
        layer.forget()
    session.normaliser = Normaliser(setup, layer, norm, session.account, owners)


def _require_a_first_step(session: Session) -> None:
    """Refuse a run that its filter would end before it began."""
    if not session.left:
        raise InvalidArgument(
            "plan",
            session.plan.recipe.name,
            f"its first draw does not fit into epsilon={session.plan.budget.epsilon:g} under the {session.account.rule.name}",
            "Let its strategies begin with more noise, or use a larger budget",
        )


def require_trainable(
    model: nn.Module, loss_fn: LossFunction | None, records: Records, execution: Execution | None = None
) -> EngineChoice:
    """Refuse a model or loss that mixes records; say how per-record gradients will be computed. Uses synthetic values only."""
    check(model).require()
    inputs, target = records.example
    probe_records(model, inputs)
    if loss_fn is not None:
        probe_loss(model, loss_fn, inputs, target)
    choice = choose_engine(model, loss_fn, inputs, target, (execution or Execution()).engine)
    if not choice.proves_any_size:
        probe_batch_sizes(model, inputs)
    return choice


def _require_valid(setup: Setup) -> None:
    """Refuse what can be seen to be wrong before any file is made."""
    plan, storage = require_plan(setup.plan), setup.storage
    if not isinstance(storage, Storage):
        raise InvalidArgument("storage", storage, "it is not a Storage", 'Pass apportion.Storage("runs/one")')
    require_tempered(setup.model, plan.recipe.model)
    require_scaling(setup.model, plan, setup.records.example[0])
    require_plain_step(setup.optimizer)
    if setup.scheduler is not None:
        require_plain_scheduler(setup.scheduler, setup.optimizer)
    updated = setup.model if setup.shards is None else setup.shards.model
    require_same_parameters(trained_parameters(updated), setup.optimizer)
    _require_roles_fit(setup)
    require_individual_fits(setup)
    if not setup.randomness.private and (storage.resume or storage.recovery == "exact"):
        raise InvalidArgument(
            "seed",
            "a number",
            "a run with a seed can be repeated from its beginning, and is not private",
            "Start it again, or leave the seed out",
        )
    if setup.own_loop and setup.records.views is not None:
        reason = "a loop of your own would average the views of a record, and those of others with them"
        raise InvalidArgument(
            "data", "views of records", reason, "Use apportion.train, or a Dataset that augments each record"
        )
    if setup.own_loop and plan.norm is not None:
        reason = "what is asked before the first step is asked by apportion.train"
        raise InvalidArgument("plan", "with norm", reason, "Use apportion.train, or plan without norm=")
    if storage.recovery == "exact" and setup.own_loop:
        raise InvalidArgument(
            "recovery",
            "exact",
            "a draw can only be repeated bit for bit in a run of `train`",
            'Use recovery="fresh"',
        )


def _require_roles_fit(setup: Setup) -> None:
    """Refuse what the strategies of the plan cannot work with: an optimiser that they replace, a loop of one's own, no public data."""
    update, noise = setup.plan.recipe.update, setup.plan.noise
    if isinstance(update, AskingUpdate) and isinstance(setup.plan.budget.unit, User):
        raise InvalidArgument(
            "plan",
            setup.plan.recipe.name,
            f"{type(update).__name__} also asks for losses, which are clipped for each record and not for a user",
            "Use unit=apportion.Record(), or a recipe that asks for gradients only",
        )
    if isinstance(update, SteeringUpdate):
        require_momentum_free(setup.optimizer, setup.scheduler, type(update).__name__)
    for part in parts_of(update):
        if is_optimizing(part):
            require_plain_sgd(setup.optimizer, type(part).__name__)
    if isinstance(update, AskingUpdate) and setup.own_loop:
        raise InvalidArgument(
            "plan",
            setup.plan.recipe.name,
            f"{type(update).__name__} also asks for losses at other weights, which a loop of your own does not compute",
            "Use apportion.train, or a recipe that asks for gradients only, such as adadp",
        )
    if isinstance(noise, ValidatedNoise) and setup.validation is None:
        raise InvalidArgument(
            "validation",
            None,
            f"{type(noise).__name__} chooses the noise by the accuracy on public data, and there is none",
            "Pass validation=apportion.Public((inputs, targets)) with data that needs no protection",
        )


def _make_checkpoints(setup: Setup) -> Checkpoints | ShardedCheckpoints | None:
    if setup.storage.folder is None or (setup.ranks.rank and setup.shards is None):
        return None
    plain = Checkpoints(Path(setup.storage.folder), setup.storage.interval(setup.plan.steps), configuration(setup))
    return plain if setup.shards is None else ShardedCheckpoints(plain, setup.shards, setup.ranks)


def configuration(setup: Setup) -> dict[str, Any]:
    """What must be the same when a run goes on: otherwise the tokens would pay for another run than the one that was declared."""
    optimizer = setup.optimizer
    return {
        "plan": setup.plan.describe(),
        "optimizer": {"kind": type(optimizer).__name__, **json.loads(json.dumps(optimizer.defaults, default=str))},
        "scheduler": type(setup.scheduler).__name__,
        "recovery": setup.storage.recovery,
        "ledger": "the run's own" if setup.storage.ledger is None else "that of the data set",
        "own_loop": setup.own_loop,
        **({} if setup.records.views is None else setup.records.views.describe()),
        "private": setup.randomness.private,
        **({} if setup.shards is None else {"sharded": True}),
        "model": {
            name: {"shape": list(value.shape), "dtype": str(value.dtype), "trained": value.requires_grad}
            for name, value in setup.model.named_parameters()
        },
    }


def _build_curator(
    setup: Setup, session: Session, engine: Engine, execution: Execution, owners: Owners
) -> Curator | ExactCurator:
    """What answers the session: a curator, or one that repeats draws bit for bit."""
    individual = individual_bounds(setup.plan, len(setup.records))
    problems = Problems(setup.records.found)
    if setup.storage.resume and (earlier := setup.storage.path(PROBLEMS)) is not None:
        problems.restore(earlier)

    def curator(charges: Any, source: Any) -> Curator:
        return setup.build_curator(
            setup.records,
            engine,
            charges,
            source,
            execution,
            owners=owners,
            individual=individual,
            domain=setup.domain,
            problems=problems,
            ranks=setup.ranks,
        )

    folder, account = setup.storage.folder, session.account
    if setup.storage.recovery == "fresh" or folder is None:
        return curator(account, setup.randomness)
    facts = {"micro_batch": execution.micro_batch, "mode": str(setup.choice)}
    return ExactCurator(
        lambda source: curator(source, source),
        account,
        Path(folder),
        lambda: {**session.state(), "execution": facts},
        session.next_request,
    )


@contextmanager
def _opened_books(setup: Setup, earlier: dict[str, Any] | None) -> Iterator[Ledger]:
    """The ledger of the run. If the body raises, nothing is left of what was made for it."""
    storage = setup.storage
    own = storage.path(LEDGER)
    made = missing_folders(None if own is None else own.parent)
    books = _open_ledger(setup) if earlier is None else _continue_ledger(storage, earlier)
    try:
        yield books
    except BaseException:
        books.close()
        if earlier is None and books.path is not None and storage.ledger is None:
            books.path.unlink()  # ours, and nothing was ever charged to it
        remove_empty(made)
        raise


def _open_ledger(setup: Setup) -> Ledger:
    """The data set's ledger if one was named, otherwise a new one in the run folder or in memory."""
    own, shared = setup.storage.path(LEDGER), setup.storage.ledger
    parts = [setup.storage.path(part) for part in (CHECKPOINT, KEY, DRAWS)]
    leftovers = [path for path in parts if path is not None and path.exists()]
    if leftovers:
        raise InvalidArgument(
            "folder", str(leftovers[0]), "there is an earlier run already", "Choose a new folder, or go on with resume"
        )
    if shared is None:
        return Ledger.create(own)
    if not setup.randomness.private:
        raise InvalidArgument(
            "ledger",
            str(shared),
            "a run with a seed is not private, and would make the promise of the whole data set untrue",
            "Leave the seed out, or experiment on public data without a ledger",
        )
    if own is not None and own.exists():  # a copy of this run's charges is to be saved there
        raise InvalidArgument(
            "folder", str(own), "there is the ledger of an earlier run already", "Choose a new folder"
        )
    return Ledger.attach(Path(shared))


def _continue_ledger(storage: Storage, earlier: dict[str, Any]) -> Ledger:
    """The ledger that the run was charged to. It must hold all that it held when the checkpoint was written."""
    own = storage.path(LEDGER)
    assert own is not None
    ledger = Ledger.attach(Path(storage.ledger or own))
    if damage := ledger.verify(earlier["account"]["head"]):
        ledger.close()
        raise InvalidArgument(
            "ledger",
            str(ledger.path),
            f"it is not the one that this run was charged to, or an older copy of it ({damage})",
            "Use the ledger as it was when the run stopped",
        )
    return ledger
