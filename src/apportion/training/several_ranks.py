"""What a run of several processes must fulfil, and how the records are divided between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from apportion.budget import User
from apportion.curator.owners import Owners
from apportion.curator.shard import ShardOwners
from apportion.errors import InvalidArgument
from apportion.ranks import Ranks
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.training.checkpoint import first_difference
from apportion.training.session import Setup
from apportion.training.versions import package_versions


def require_ranks_fit(setup: Setup) -> None:
    """Refuse what was built for one process."""
    if setup.ranks.count == 1:
        return
    people = setup.plan.recipe.people
    if isinstance(people, (IndividualEstimate, IndividualFilter)):
        reason = "it keeps an account of every single person, which one process does"
        raise InvalidArgument("plan", type(people).__name__, reason, "Run it in one process")
    if setup.storage.recovery == "exact":
        reason = "draws that are repeated bit for bit are those of one process"
        raise InvalidArgument("recovery", "exact", reason, 'Use recovery="fresh", or one process')
    if setup.records.local and isinstance(setup.plan.budget.unit, User):
        reason = "records of one user could be with two ranks, and would be clipped as two vectors"
        fix = "Give every rank all records, without LocalShard: the library divides them by users"
        raise InvalidArgument("data", "LocalShard", reason, fix)


def divided(owners: Owners, setup: Setup) -> Owners:
    """Of whom this rank draws: of its part of the units, or of all that it has."""
    alone = not setup.ranks.divides_records or setup.records.local
    return owners if alone else ShardOwners(owners, setup.ranks.rank, setup.ranks.count)


def facts_of_ranks(setup: Setup) -> dict[str, Any]:
    """What must be the same on all ranks, besides what must be the same when a run goes on."""
    if setup.ranks.count == 1:
        return {}
    sharded = {} if setup.shards is None else {"folder": str(setup.storage.folder)}  # all ranks write there
    return {
        **sharded,
        "lr": [group["lr"] for group in setup.optimizer.param_groups],
        "execution": asdict(setup.execution),
        "resume": setup.storage.resume,
        "data": "the shard of each rank" if setup.records.local else f"{len(setup.records)} records on every rank",
        "versions": package_versions(),
    }


def require_same_settings(ranks: Ranks, settings: Mapping[str, Any]) -> None:
    """Refuse ranks that were started with different settings, and name the first that differs."""
    for rank, other in enumerate(found := ranks.gather(dict(settings))):
        if difference := first_difference(found[0], other):
            name, first, its = difference
            raise InvalidArgument(
                name,
                first,
                f"rank {rank} has {its!r}: all ranks must be started with the same settings, and nothing was charged",
                "Pass the same arguments on every rank; a rank with records of its own says so: apportion.distributed.LocalShard(data)",
            )
