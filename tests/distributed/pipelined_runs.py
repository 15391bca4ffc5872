"""What the stages of the tests do; imported by their processes."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from parallel_runs import Books, Silent, plan_of
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.pipeline import per_device, pipeline_training
from apportion.pipeline.pipeline_curator import PipelineCurator
from apportion.pipeline.pipeline_ranks import PipelineRanks, SharedCoins
from apportion.ranks import ALONE
from apportion.releases import ClippedSum, UnclippedCount, UsableCount
from apportion.request import Request
from apportion.training.named_losses import as_loss
from apportion.training.storage import Storage

ENTERING, LEAVING = 6, 5
"""Numbers of a record as it enters the first stage of two, and as it leaves it."""
ROWS = 3


def two_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(ENTERING, 8), nn.Tanh(), nn.Linear(8, LEAVING)),
        nn.Sequential(nn.Tanh(), nn.Linear(LEAVING, 4), nn.ReLU(), nn.Linear(4, 2)),
    ]


def four_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 6)),
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()),
        nn.Sequential(nn.LSTM(6, 5, batch_first=True), _Last()),
        nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 3)),
    ]


class _Last(nn.Module):
    def forward(self, states):
        return states[0][:, -1]


def text_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(28, LEAVING)),
        nn.Sequential(nn.Tanh(), nn.Linear(LEAVING, 3)),
    ]


def wide_stages():
    """Numbers of which a square has no room in float64 are gradients of the first stage, and of no other."""
    torch.manual_seed(0)
    first, second = nn.Linear(ENTERING, LEAVING), nn.Linear(LEAVING, 2)
    first.weight.data *= 1e-200
    return [first.double(), nn.Sequential(nn.Tanh(), second).double()]


def image_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 3)),
        nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Dropout(0.0), nn.Linear(8, 2)),
    ]


def some_images(count=20):
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(count, 1, 6, 6, generator=generator)
    return inputs, (inputs.sum((1, 2, 3)) > 0).long()


def some_records(count=40):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, ENTERING, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def some_texts(count=30):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 9, (count, 7), generator=generator), torch.randint(0, 3, (count,), generator=generator)


def some_wide_records(count=20):
    inputs, targets = some_records(count)
    return 1e200 * inputs.double(), targets


MODELS = {
    "two": (two_stages, some_records),
    "four": (four_stages, some_texts),
    "texts": (text_stages, some_texts),
    "images": (image_stages, some_images),
    "wide": (wide_stages, some_wide_records),
}


def names_of(stages):
    return [[f"{number}.{name}" for name, _ in stage.named_parameters()] for number, stage in enumerate(stages)]


def releases_of(stages, clip=0.2):
    """For each stage a threshold and a count of its own, and how many records are usable."""
    names, share = [tuple(one) for one in names_of(stages)], 1 / len(stages)
    return tuple(
        one
        for number, group in enumerate(names)
        for one in (
            ClippedSum(clip * (number + 1), group, 0.8 * share),
            UnclippedCount(clip * (number + 1), group, 0.1 * share),
            *((UsableCount(0.1),) if number == len(names) - 1 else ()),
        )
    )


def plan_by_stages(stages, steps=6, rate=0.5, population=40, clip=None, **more):
    clip = clip or ap.clip.Quantile(start=1.0, quantile=0.5, share=0.05, groups=per_device(stages))
    recipe = ap.Recipe(name="per-device", clip=clip, noise=ap.noise.Constant())
    if more.pop("groups", False):
        groups, labels = {"strict": (8.0, 0.5), "loose": (16.0, 0.5)}, ["strict", "loose"] * (population // 2)
        more["budget"] = ap.Budget.of_groups(groups, delta=1e-5, unit=ap.Record(), labels=labels)
        recipe = replace(recipe, people=ap.people.Scale())
    return plan_of(recipe, steps=steps, rate=rate, population=population, **more)


def curator_of(
    rank, stages, data, silent=True, seed=3, books=None, rows=ROWS, loss="cross-entropy", kind=PipelineCurator
):
    """The curator of this rank for a plan that is of no account."""
    setup = pipeline_training.pipeline_setup(
        stages[rank],
        as_loss(loss),
        as_records(data),
        plan_by_stages(len(stages)),
        PipelineRanks(),
        execution=Execution(micro_batch=rows),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        randomness=Randomness.seeded(seed, rank),
        storage=Storage(),
        build_curator=partial(kind, mechanisms=Silent() if silent else mechanisms),
    )
    return setup.build_curator(
        setup.records,
        setup.engine,
        books or Books(),
        setup.randomness,
        setup.execution,
        owners=setup.owners,
        domain=setup.domain,
        ranks=setup.ranks,
    )


class Seeded:
    """Coins as those of a pipeline."""

    def __init__(self, seed):
        self._coins = SharedCoins(Randomness.seeded(seed), ALONE)

    def next_draw(self):
        return self._coins.next_draw()


def answer_alone(stages, data, request, seed=3, loss="cross-entropy", engine="one-pass", rows=ROWS):
    """What one process answers: the same groups of the whole model."""
    model = nn.Sequential(*stages)
    records = as_records(data)
    one = Curator(
        records,
        build_engine(model, engine),
        Books(),
        Seeded(seed),
        Execution(rows),
        Silent(),
        owners=RecordOwners(len(records)),
    )
    return one.answer(request, as_loss(loss))


def own_loss(outputs, targets):
    """Of which it is not known that its targets are class numbers: it fails for others, where it is evaluated."""
    return -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).sum()


def answer(rank, model, rate, seed=3, data=None, rows=ROWS, times=1, loss="cross-entropy"):
    make, records = MODELS[model]
    stages = make()
    request = Request(rate, 1.0, 10.0, releases_of(stages))
    one = curator_of(rank, stages, records() if data is None else data, seed=seed, rows=rows, loss=loss)
    for _ in range(times):
        found = one.answer(request, as_loss(loss))
    return {name: value.numpy() for name, value in found.gradient.items()}, found.statistics


class Counted(TorchDispatchMode):
    """Every message that goes through torch.distributed: what it was, and its bytes."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.namespace == "c10d":
            leaves = torch.utils._pytree.tree_leaves(arguments)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            self.messages.append((function._schema.name.removeprefix("c10d::"), sum(one.nbytes for one in tensors)))
        return function(*arguments, **(named or {}))


def bytes_sent(rank, rate, rows, times=2):
    """Messages of the second draw, when the pipeline is warm; and how many records it has."""
    stages = two_stages()
    request = Request(rate, 1.0, 10.0, releases_of(stages))
    one = curator_of(rank, stages, some_records(), rows=rows)
    loss = as_loss("cross-entropy")
    drawn = []
    read = one._read
    one._read = lambda members, *others: (drawn.append(len(members)), read(members, *others))[1]
    for _ in range(times - 1):
        one.answer(request, loss)
    with Counted() as counted:
        one.answer(request, loss)
    return counted.messages, drawn


class NoNoise:
    """Until the end of this block releases are exact, and one process tosses the coins of a pipeline."""

    def __enter__(self):
        self._kept = mechanisms.add_gaussian_noise, Randomness.next_draw
        mechanisms.add_gaussian_noise = Silent.add_gaussian_noise
        return self

    def __exit__(self, *_):
        mechanisms.add_gaussian_noise, Randomness.next_draw = self._kept

    def with_shared_coins(self):
        tossed = self._kept[1]

        class Source:
            def __init__(self, randomness):
                self.next_draw = lambda: tossed(randomness)

        Randomness.next_draw = lambda randomness: SharedCoins(Source(randomness), ALONE).next_draw()


def history_of(run):
    return [(entry.clip, entry.noise_multiplier, entry.learning_rate) for entry in run.history]


def train(rank, model="two", plan=None, data="all", silent=False, odd=None, **options):
    make, records = MODELS[model]
    stages = make()
    ends = rank in (0, len(stages) - 1)
    options = {"lr": 0.5, "execution": Execution(micro_batch=ROWS)} | options
    if odd and rank == len(stages) - 1:
        options |= odd
    given = (records() if ends else None) if isinstance(data, str) else data[rank]
    made = plan_by_stages(len(stages), **(plan or {}))
    if silent:
        with NoNoise():
            run = ap.pipeline.train(stages[rank], "cross-entropy", given, made, seed=3, **options)
    else:
        run = ap.pipeline.train(stages[rank], "cross-entropy", given, made, **options)
    weights = {f"{rank}.{name}": one.detach().numpy() for name, one in stages[rank].named_parameters()}
    return {"weights": weights, "history": history_of(run), "epsilon": run.epsilon(), "statement": run.statement()}


def saved(rank, folder):
    """Saves a run; returns whether its stage is what was written."""
    stages = two_stages()
    run = ap.pipeline.train(stages[rank], "cross-entropy", some_records(), plan_by_stages(2), lr=0.5)
    run.save(folder)
    run.report(folder / "run.html")
    written = load_file(folder / "public" / f"stage-{rank}.safetensors")
    return all(torch.equal(written[name], one) for name, one in stages[rank].state_dict().items())


def train_alone(model="two", plan=None, **options):
    make, records = MODELS[model]
    stages = nn.Sequential(*make())
    with NoNoise() as frozen:
        frozen.with_shared_coins()
        made = plan_by_stages(len(stages), **(plan or {}))
        options = {"lr": 0.5, "execution": Execution(micro_batch=ROWS, engine="one-pass")} | options
        run = ap.train(stages, "cross-entropy", records(), made, seed=3, **options)
    return {name: one.detach().numpy() for name, one in stages.named_parameters()}, history_of(run), run


WIDE = (500, 200)


def noise_alone(rank, multiplier):
    """What each stage adds to nothing: at a rate of one in a quintillion no record is drawn."""
    stages = [nn.Linear(100, WIDE[0], bias=False), nn.Linear(*WIDE, bias=False)]
    data = torch.zeros(3, 100), torch.zeros(3, dtype=torch.long)
    names = [("0.weight",), ("1.weight",)]
    asked = Request(1e-18, multiplier, 8.0, (ClippedSum(0.5, names[0], 0.2), ClippedSum(2.0, names[1], 0.8)))
    one = curator_of(rank, stages, data, silent=False)
    found = one.answer(asked, as_loss("cross-entropy"))
    ((name, value),) = found.gradient.items()
    return name, value.flatten().double().numpy() * 8.0 / asked.standard_deviation(asked.sums[rank])


def noise_of_counts(rank, times):
    stages = two_stages()
    asked = Request(1e-18, 2.0, 8.0, releases_of(stages))
    books = Books()
    one = curator_of(rank, stages, some_records(), silent=False, books=books)
    found = [one.answer(asked, as_loss("cross-entropy")).statistics for _ in range(times)]
    deviations = [asked.standard_deviation(count) for count in asked.statistics]
    return np.array(found) * asked.expected_weight / np.array(deviations), len(books.events)


def charged_before_coins(rank, folder):
    """For each draw, whether the first rank's charge was on disk when this rank tossed its coins."""
    written = []

    class Written(Books):
        def charge(self, event):
            super().charge(event)
            if rank == 0:
                (folder / str(len(self.events))).write_text("charged")

    books = Written()
    stages = two_stages()
    one = curator_of(rank, stages, some_records(), books=books)
    tossed = one._randomness.next_draw

    def next_draw():
        written.append((folder / str(len(written) + 1)).exists())
        return tossed()

    one._randomness.next_draw = next_draw
    for rate in (0.5, 1e-18, 0.5):
        one.answer(Request(rate, 1.0, 10.0, releases_of(stages)), as_loss("cross-entropy"))
    return written, len(books.events)


def refused_charge(rank):
    stages, tossed = two_stages(), []
    one = curator_of(rank, stages, some_records(), books=Books(afford=1 if rank == 0 else 1000))
    asked = Request(0.5, 1.0, 10.0, releases_of(stages))
    one.answer(asked, as_loss("cross-entropy"))
    one._randomness.next_draw = lambda: tossed.append("coins")
    try:
        one.answer(asked, as_loss("cross-entropy"))
    except ap.ApportionError as error:
        return type(error).__name__, tossed
    return None


def drifting(rank):
    """Rank 1 asks for another threshold at its second step."""
    stages, books = two_stages(), Books()
    one = curator_of(rank, stages, some_records(), books=books)
    one.answer(Request(0.5, 1.0, 10.0, releases_of(stages)), as_loss("cross-entropy"))
    try:
        one.answer(Request(0.5, 1.0, 10.0, releases_of(stages, 0.2 + 1e-9 * rank)), as_loss("cross-entropy"))
    except ap.RankLost as error:
        return str(error), len(books.events)
    return None
