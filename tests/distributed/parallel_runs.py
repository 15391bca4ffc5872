"""What the ranks of the tests do; imported by their processes."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator.curator import Curator, SumLost
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness, poisson_sample
from apportion.curator.records import as_records
from apportion.curator.shard import ShardOwners
from apportion.distributed import find_ranks
from apportion.errors import BudgetExhausted
from apportion.execution import Execution
from apportion.releases import ClippedSum, Frame, NormSum, UnclippedCount
from apportion.request import Request

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
WIDE = (400, 250)


class Silent:
    """Mechanisms that add nothing, and choose without noise."""

    @staticmethod
    def add_gaussian_noise(exact_sum, standard_deviation, noise, divisor):
        return exact_sum / divisor

    @staticmethod
    def noisy_argmin(totals, release, noise):
        return int(totals.argmin())

    above_threshold = staticmethod(mechanisms.above_threshold)


class Books:
    """Notes what is charged, and affords so many charges."""

    def __init__(self, afford=1000):
        self.events, self.afford = [], afford

    def charge(self, event):
        if len(self.events) >= self.afford:
            raise BudgetExhausted("spent")
        self.events.append(event)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def some_records(count=40):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def requests():
    """Every kind of release: flat, by groups with a count, framed with the sum of norms."""
    frame = Frame(
        {name: torch.full(p.shape, 0.1) for name, p in small_model().named_parameters()},
        {name: torch.full(p.shape, 2.0) for name, p in small_model().named_parameters()},
    )
    return {
        "flat": (ClippedSum(0.3),),
        "groups": (ClippedSum(0.2, NAMES[:2], 0.3), ClippedSum(0.5, NAMES[2:], 0.5), UnclippedCount(0.4, share=0.2)),
        "framed": (ClippedSum(0.3, NAMES, 0.5, frame=frame), NormSum(0.3, share=0.5)),
    }


def curator(
    model, data, ranks=None, *, seed=3, silent=True, micro_batch=7, noise_from="every rank", owners=None, books=None
):
    ranks = find_ranks(noise_from) if ranks is None else ranks
    records = as_records(data)
    everybody = owners or RecordOwners(len(records))
    own = everybody if ranks.count == 1 else ShardOwners(everybody, ranks.rank, ranks.count)
    return Curator(
        records,
        build_engine(model, "vmap"),
        books or Books(),
        Randomness.seeded(seed, ranks.rank),
        Execution(micro_batch),
        Silent() if silent else mechanisms,
        owners=own,
        ranks=ranks,
    )


def drawn_together(owners, rate, seed, ranks):
    """The records that all ranks draw in their first step."""
    parts = [ShardOwners(owners, rank, ranks) for rank in range(ranks)]
    return [
        part.records_of(poisson_sample(part.coins, (rate,), Randomness.seeded(seed, rank).next_draw().coins))
        for rank, part in enumerate(parts)
    ]


def answer(rank, kind, rate, noise_from, seed=3):
    request = Request(rate, 1.0, 10.0, requests()[kind])
    found = curator(small_model(), some_records(), seed=seed, noise_from=noise_from).answer(request, cross_entropy)
    return {name: value.numpy() for name, value in found.gradient.items()}, found.statistics


def noise_alone(rank, noise_from, multiplier):
    """At a rate of one in a quintillion no record is drawn."""
    torch.manual_seed(0)  # what ranks do outside of `train` must make equal weights
    model = nn.Linear(*WIDE, bias=False)
    data = torch.zeros(3, WIDE[0]), torch.zeros(3, dtype=torch.long)
    asked = Request(1e-18, multiplier, 8.0, (ClippedSum(0.5),))
    found = curator(model, data, silent=False, noise_from=noise_from).answer(asked, cross_entropy)
    return found.gradient["weight"].flatten().double().numpy() * 8.0


def noise_of_counts(rank, times):
    """Counts of empty draws, again and again, in units of what the request says."""
    count = UnclippedCount(0.5, share=0.5)
    asked = Request(1e-18, 2.0, 8.0, (ClippedSum(0.5, share=0.5), count))
    torch.manual_seed(0)
    one = curator(nn.Linear(2, 2), (torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)), silent=False)
    found = [one.answer(asked, cross_entropy).statistics[0] for _ in range(times)]
    return np.array(found) * asked.expected_weight / asked.standard_deviation(count)


def plan_of(recipe="abadi", steps=6, rate=0.5, population=40, epsilon=20.0, **more):
    budget = more.pop("budget", ap.Budget(epsilon=epsilon, delta=1e-5, unit=ap.Record()))
    return ap.plan(recipe, budget=budget, population=population, sample_rate=rate, steps=steps, **more)


def facts(run):
    """What must be the same on all ranks."""
    weights = torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])
    return {
        "weights": weights.numpy().tobytes(),
        "clip": [entry.clip for entry in run.history],
        "noise": [entry.noise_multiplier for entry in run.history],
        "scores": [entry.score for entry in run.history],
        "epsilon": run.epsilon(),
        "steps": run.steps,
    }


def train(rank, recipe="abadi", storage=None, plan=None, data=None, odd=None, **options):
    """`ap.train` on this rank.

    Args:
        data: of each rank; all records by default.
        odd: options of the last rank alone.
    """
    torch.manual_seed(rank)  # the first rank's weights count
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    ranks = find_ranks()
    options = {"lr": 0.5, "evaluate": ap.Public(some_records(20))} | options
    if odd and rank == ranks.count - 1:
        options |= {name: value for name, value in odd.items() if name != "plan"}
        plan = {**(plan or {}), **odd.get("plan", {})}
    run = ap.train(
        model,
        "cross-entropy",
        some_records() if data is None else data[rank],
        plan_of(recipe, **(plan or {})),
        storage=None if storage is None else ap.Storage(**storage),
        **options,
    )
    return facts(run) | {"statement": run.statement()}


def run_recipes(rank, names):
    """For each recipe what must be the same on all ranks, or the error by which it is refused."""
    found = {}
    for name in names:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        try:
            # which has thresholds from a search
            recipe = ap.recipes.lin_transfer(thresholds=(0.5, 0.4) * 3) if name == "lin-transfer" else name
            plan = plan_of(recipe, steps=12)
            if plan.recipe.model is not None:
                model = ap.temper(model, **vars(plan.recipe.model))
            public = ap.Public(some_records(20))
            run = ap.train(model, "cross-entropy", some_records(), plan, lr=0.1, validation=public)
            found[name] = facts(run)
        except ap.InvalidArgument as error:
            found[name] = str(error)
    return found


def own_loop(rank, rate):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = ap.make_private(model, optimizer, some_records(), plan_of(rate=rate))
    seen = 0
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        cross_entropy(private.model(inputs), targets).backward()
        private.optimizer.step()
        seen += len(inputs)
    return facts(private.run) | {"seen": seen}


def users(rank, coins):
    inputs, targets = some_records()
    ids = [number // 5 for number in range(40)]
    unit = ap.User(ids, k_max=5, coins=coins)
    budget = ap.Budget(epsilon=20.0, delta=1e-5, unit=unit)
    run = ap.train(small_model(), "cross-entropy", (inputs, targets), plan_of(budget=budget, population=8), lr=0.5)
    return facts(run)


def spoiled_state(rank, books_afford=1000):
    """The weights of rank 1 are changed between two steps."""
    model, books = small_model(), Books(books_afford)
    one = curator(model, some_records(), books=books)
    asked = Request(0.5, 1.0, 10.0, (ClippedSum(0.3),))
    one.answer(asked, cross_entropy)
    if rank == 1:
        with torch.no_grad():
            model[0].weight[0, 0] += 1e-3
    try:
        one.answer(asked, cross_entropy)
    except ap.ApportionError as error:
        return type(error).__name__, str(error), len(books.events)
    return None


def refused_charge(rank):
    books = Books(afford=1 if rank == 0 else 1000)
    one = curator(small_model(), some_records(), books=books)
    asked = Request(0.5, 1.0, 10.0, (ClippedSum(0.3),))
    one.answer(asked, cross_entropy)
    try:
        one.answer(asked, cross_entropy)
    except ap.ApportionError as error:
        return type(error).__name__, len(books.events)
    return None


def failing_rank(rank):
    """Rank 1 fails after the charge; then both go on with another draw."""
    one = curator(small_model(), some_records(), books=(books := Books()))
    asked = Request(1.0, 1.0, 10.0, (ClippedSum(0.3),))
    add = one._add_records

    def fail(*arguments):
        raise SumLost("no memory")

    one._add_records = fail if rank == 1 else add
    try:
        one.answer(asked, cross_entropy)
    except BaseException as error:
        name = type(error).__name__
    one._add_records = add
    again = one.answer(asked, cross_entropy)
    return name, len(books.events), float(again.gradient["0.weight"].sum())
