"""What the ranks of the tests of sharded models do; imported by their processes."""

from functools import partial

import numpy as np
import torch
from parallel_runs import Books, Silent, plan_of, some_records
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.shard import ShardOwners
from apportion.distributed import find_ranks
from apportion.distributed.sharded_model import find_sharded
from apportion.execution import Execution
from apportion.releases import ClippedSum, UnclippedCount
from apportion.request import Request


class Scaled(nn.Module):
    """A single number, which one rank keeps and the other does not."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([0.7]))
        self.register_buffer("offset", torch.tensor(0.3))

    def forward(self, x):
        return self.factor * x + self.offset


def odd_model(seed=0):
    """Rows that two ranks cannot share equally: 5, 3 and 1."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Scaled(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))


NAMES = tuple(name for name, _ in odd_model().named_parameters())


def sharded(model):
    """As people do it: some layers, then the rest."""
    fully_shard(model[0])
    fully_shard(model[3])
    fully_shard(model)
    return model


def releases(kind):
    if kind == "flat":
        return (ClippedSum(0.3),)
    return (
        *(ClippedSum(0.1 * (1 + index), (name,), 0.8 / len(NAMES)) for index, name in enumerate(NAMES)),
        UnclippedCount(0.4, share=0.2),
    )


def whole_answer(released, shards):
    """The gradient of all ranks together, which no rank of a run ever has."""
    whole = {name: torch.zeros(shards.parts[name].parameter.shape) for name in released.gradient}
    shards.gather_into(whole, released.gradient)
    return {name: value.numpy() for name, value in whole.items()}


def answer(rank, kind, rate, silent=True, micro_batch=7, model=None, data=None, multiplier=1.0, seed=3):
    """What the ranks answer about a sharded model, brought together for the comparison."""
    shards = find_sharded(sharded(odd_model()) if model is None else model)
    shards.gather()
    ranks = find_ranks(shards=shards)
    records = as_records(some_records() if data is None else data)
    curator = Curator(
        records,
        build_engine(shards.whole, "one-pass", lent=True),
        Books(),
        Randomness.seeded(seed, rank),
        Execution(micro_batch),
        Silent() if silent else mechanisms,
        owners=ShardOwners(RecordOwners(len(records)), rank, ranks.count),
        ranks=ranks,
    )
    asked = Request(rate, multiplier, 10.0, releases(kind) if isinstance(kind, str) else kind)
    found = curator.answer(asked, cross_entropy)
    shapes = {name: tuple(value.shape) for name, value in found.gradient.items()}
    return whole_answer(found, shards), found.statistics, shapes


def train(rank, recipe="abadi", shard=True, plan=None, storage=None, model=None, seed=None, **options):
    """`ap.train` on a sharded model, or on the same model whole."""
    built = odd_model() if model is None else model()
    built = sharded(built) if shard else built
    run = ap.train(
        built,
        "cross-entropy",
        some_records(),
        plan_of(recipe, **(plan or {})),
        storage=None if storage is None else ap.Storage(**storage),
        **{"lr": 0.5, "seed": seed, "evaluate": ap.Public(some_records(20))} | options,
    )
    return sharded_facts(run)


def sharded_facts(run):
    whole = {name: full(value) for name, value in run.model.state_dict().items()}
    scores = [entry.score for entry in run.history]
    return {"weights": whole, "scores": scores, "clip": [entry.clip for entry in run.history], "epsilon": run.epsilon()}


def full(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().numpy()


def layout(rank):
    """Of every parameter this rank's rows in the whole one, as `fully_shard` and as the library say; and what other ways to shard give."""
    model = sharded(odd_model())
    shards = find_sharded(model)
    shards.gather()
    whole = dict(odd_model().named_parameters())
    for name, part in shards.parts.items():
        assert torch.equal(part.own(), part.of(whole[name].detach()))
        assert torch.equal(dict(shards.whole.named_parameters())[name], whole[name])
    assert [type(one) for one in shards.whole.modules()] == [type(one) for one in odd_model().modules()]
    return [tuple(part.own().shape) for part in shards.parts.values()]


def columns(rank):
    """A parameter that is divided along its second dimension."""
    from torch.distributed.tensor import Shard

    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    weights = model[0].weight.detach().clone()
    fully_shard(model, shard_placement_fn=lambda parameter: Shard(1))
    shards = find_sharded(model)
    shards.gather()
    assert shards.parts["0.weight"].own().shape == (3, 2)
    first = torch.equal(shards.whole[0].weight[:, 2 * rank : 2 * rank + 2], weights[:, 2 * rank : 2 * rank + 2])
    total = torch.arange(12.0, dtype=torch.float64).view(3, 4) / 3  # not to be rounded on its way
    (own,) = shards.add_up(["0.weight"], lambda name: total)
    return first, torch.equal(own, 2 * total[:, 2 * rank : 2 * rank + 2])


WIDE = (401, 251)


def noise_alone(rank, multiplier):
    """At a rate of one in a quintillion no record is drawn: what all ranks together answer is their noise."""
    model = nn.Sequential(nn.Linear(*WIDE, bias=False))
    fully_shard(model)
    data = torch.zeros(3, WIDE[0]), torch.zeros(3, dtype=torch.long)
    gradient, _, _ = answer(
        rank, (ClippedSum(0.5),), 1e-18, silent=False, model=model, data=data, multiplier=multiplier
    )
    return gradient["0.weight"].astype(np.float64) * 10.0


def in_pieces(rank, kind, rate):
    from apportion.distributed import sharded_model

    before, sharded_model.BUCKET_BYTES = sharded_model.BUCKET_BYTES, 64
    try:
        return answer(rank, kind, rate)
    finally:
        sharded_model.BUCKET_BYTES = before


class Frozen(Curator):
    """Leaves the noise out."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, mechanisms=Silent(), **options)


def frozen_train(rank, recipe, shard=True, optimizer="sgd", plan=None, rate=1.0, lr=0.1, **options):
    """A run whose noise is left out, on all records in every step: the same for any number of ranks."""
    from apportion.training import train as module

    before, module.Setup = module.Setup, partial(module.Setup, build_curator=Frozen)
    try:
        plan = {"rate": rate, "steps": 5} | (plan or {})
        return train(rank, recipe, shard, plan=plan, optimizer=optimizer, lr=lr, **options)
    finally:
        module.Setup = before


def own_loop(rank, rate):
    model = sharded(odd_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    private = ap.make_private(model, optimizer, some_records(), plan_of(rate=rate))
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        cross_entropy(private.model(inputs), targets).backward()
        private.optimizer.step()
    with torch.no_grad():
        private.model.eval()
        inputs = some_records(5)[0]
        same = torch.allclose(private.model(inputs), model(inputs), atol=1e-6)
    return sharded_facts(private.run), same, private.steps


def state_sizes(rank):
    """How many numbers this rank keeps of weights, of Adam's state and of a released gradient."""
    model = sharded(odd_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    private = ap.make_private(model, optimizer, some_records(), plan_of(rate=1.0, steps=2))
    given = []
    optimizer.register_step_pre_hook(
        lambda *_: given.append(sum(parameter.grad.to_local().numel() for parameter in model.parameters()))
    )
    for inputs, targets in private.batches():
        cross_entropy(private.model(inputs), targets).backward()
        private.optimizer.step()
    moments = sum(one["exp_avg"].to_local().numel() for one in optimizer.state.values())
    return sum(parameter.to_local().numel() for parameter in model.parameters()), moments, given


def written_to(rank):
    """Somebody writes to the weights between two steps."""
    model = sharded(odd_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = ap.make_private(model, optimizer, some_records(), plan_of(rate=1.0))
    try:
        for inputs, targets in private.batches():
            cross_entropy(private.model(inputs), targets).backward()
            private.optimizer.step()
            with torch.no_grad():
                next(model.parameters()).mul_(0.5)
    except ap.WrongOrder as error:
        return str(error), private.steps
    return None


def stopped_train(rank, folder, after, resume=False, **options):
    """Ends with an error after so many steps; checkpoints are those of each step."""
    from apportion.training import train as module

    before = module.take_steps

    def stopping(session, loss_fn, evaluation, tell, early):
        def stop(entry):
            if entry.step == after:
                raise KeyboardInterrupt

        before(session, loss_fn, evaluation, stop, early)

    module.take_steps = stopping if after else before
    storage = {"folder": folder, "every": 1, "resume": resume}
    try:
        return frozen_train(rank, "default", optimizer="adam", storage=storage, plan={"spare": 3}, **options)
    finally:
        module.take_steps = before


def refused(rank, case, folder):
    """The text by which something is refused."""
    try:
        _refused(case, folder, rank)
    except ap.ApportionError as error:
        return type(error).__name__, str(error)
    return None


def _refused(case, folder, rank):
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    model, recipe, options = odd_model(), "abadi", {"lr": 0.1}
    if case == "mixed precision":
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    elif case == "offload":
        fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))
    elif case == "two dimensions":
        fully_shard(model, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "parts")))
    elif case == "in part":
        fully_shard(model[0])
    elif case == "one rank":
        model = sharded(model) if rank == 0 else model
    else:
        sharded(model)
    if case in ("adaclip", "adadp", "dp-agd", "fay-adaptive"):
        recipe = case
    if case == "noise_from":
        options["execution"] = ap.Execution(noise_from="first rank")
    if case == "exact":
        options["storage"] = ap.Storage(folder, recovery="exact")
    if case == "optimizer":
        options["optimizer"] = torch.optim.Adafactor
    if case == "folder":
        options["storage"] = ap.Storage(f"{folder}/{rank}")
    ap.train(model, "cross-entropy", some_records(), plan_of(recipe), **options)
