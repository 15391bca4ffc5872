"""Views of a record: averaged before clipping, made of their own record and its own stream alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.audit import replay
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.problems import Problems
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.views import Views, uniforms
from apportion.errors import InvalidArgument
from apportion.releases import ClippedSum
from apportion.request import Request

THRESHOLD = 3.0
SEEDS = np.arange(6, dtype=np.uint64) * np.uint64(977)
IMAGES = torch.arange(6 * 2 * 5 * 4, dtype=torch.float32).reshape(6, 2, 5, 4) + 1


def images(count=12):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 6, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


def noisy(record):
    return record + torch.randn(record.shape)


EVERY = [ap.Flip(), ap.Shift(2), ap.Shift(1, edge="mirror"), noisy]


def test_uniform_numbers_are_uniform_and_of_their_own_seed():
    numbers = uniforms(np.arange(2000, dtype=np.uint64), 5)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01
    assert abs(float(np.corrcoef(numbers.numpy().T)[0, 1])) < 0.1
    assert torch.equal(uniforms(np.array([7, 3], dtype=np.uint64), 5)[1], numbers[3])


@pytest.mark.parametrize("one", EVERY, ids=["flip", "shift", "mirror", "own"])
def test_a_view_is_of_its_record_and_seed_alone(one):
    """Whoever stands beside it, and wherever it stands."""
    views = Views(3, [one, ap.Flip()])
    whole = views.of(IMAGES, SEEDS).unflatten(0, (6, 3))
    alone = torch.cat([views.of(IMAGES[i : i + 1], SEEDS[i : i + 1]) for i in range(6)]).unflatten(0, (6, 3))
    assert torch.equal(whole, alone)
    some = torch.tensor([4, 1])
    others = IMAGES.clone()
    others[[0, 2, 3, 5]] = torch.nan
    assert torch.equal(views.of(others, SEEDS).unflatten(0, (6, 3))[some], whole[some])
    assert len({tuple(view.flatten().tolist()) for view in whole.flatten(0, 1)}) > 6, "views do not differ"


def test_what_flips_and_shifts_do():
    flipped = ap.Flip(chance=1.0).change(IMAGES, SEEDS)
    assert torch.equal(flipped, IMAGES.flip(-1))
    assert torch.equal(ap.Flip(chance=0.0).change(IMAGES, SEEDS), IMAGES)
    many = np.arange(3000, dtype=np.uint64)
    mirrored = ap.Flip().change(IMAGES[:1].expand(3000, -1, -1, -1), many)[:, 0, 0, 0] != IMAGES[0, 0, 0, 0]
    assert abs(float(mirrored.double().mean()) - 0.5) < 0.04
    single = torch.zeros(3000, 1, 7, 7)
    single[:, :, 3, 3] = 1
    places = ap.Shift(2).change(single, many).flatten(1).nonzero()[:, 1]
    assert len(places) == 3000
    assert places.unique().tolist() == [7 * row + column for row in range(1, 6) for column in range(1, 6)]
    assert places.bincount(minlength=49)[places.unique()].min() > 60
    kept = ap.Shift(2, edge="mirror").change(IMAGES, SEEDS)
    assert (kept > 0).all()
    assert (ap.Shift(2).change(IMAGES, SEEDS) == 0).any()


@pytest.mark.parametrize("mode", ["one-pass", "vmap", "loop"])
@pytest.mark.parametrize("micro_batch", [1, 5, 64])
def test_the_average_of_a_record_is_clipped(books, mode, micro_batch):
    """Against a double loop over records and views, with the views that the draw made."""
    data, model = images(), network()
    made = []

    def kept(record):
        made.append(record + 0.3 * torch.randn(record.shape))
        return made[-1]

    held = Curator(
        as_records(ap.augment(data, 3, [kept])),
        build_engine(model, mode),
        books,
        Randomness.seeded(0),
        ap.Execution(micro_batch=micro_batch),
        _Exact(),
    )
    made.clear()
    found = held.answer(Request(1.0, 1.0, 12.0, (ClippedSum(THRESHOLD),)), cross_entropy).gradient
    assert len(made) == 36
    clipped = 0
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(12):
        model.zero_grad()
        sum(cross_entropy(model(made[3 * i + k][None]), data[1][i : i + 1]) for k in range(3)).div(3).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        clipped += float(norm) > THRESHOLD
        for name, p in model.named_parameters():
            total[name] += p.grad * min(1.0, THRESHOLD / float(norm))
    assert 0 < clipped < 12
    for name, value in total.items():
        torch.testing.assert_close(found[name], value / 12, rtol=1e-4, atol=1e-7)


def test_views_of_a_record_do_not_change_with_who_else_takes_part(books):
    made = []

    def kept(record):
        made.append(record + torch.randn(record.shape))
        return made[-1]

    def views_of(data):
        held = Curator(
            as_records(ap.augment(data, 2, [kept])),
            build_engine(network(), "loop"),
            books,
            Randomness.seeded(0),
            ap.Execution(micro_batch=8),
            domain=ap.Domain(classes=3),
        )
        made.clear()
        held.answer(Request(1.0, 1.0, 12.0, (ClippedSum(1.0),)), cross_entropy)
        return torch.stack(made)

    inputs, targets = images()
    everyone = views_of((inputs, targets))
    without = views_of((inputs, targets.index_fill(0, torch.tensor([1]), 9)))  # outside of the domain
    assert torch.equal(without, torch.cat([everyone[:2], everyone[4:]]))
    assert len({tuple(row.tolist()) for row in (everyone - inputs.repeat_interleave(2, 0)).flatten(1)}) == 24


class _Exact:
    """No noise."""

    def add_gaussian_noise(self, total, deviation, stream, size):
        return total / size


@pytest.mark.parametrize("by", [[ap.Flip(), ap.Shift(1)], [noisy]], ids=["built in", "own"])
@pytest.mark.parametrize("engine", ["one-pass", "loop"])
def test_views_are_replayed(by, engine):
    report = replay(network(), cross_entropy, ap.augment(images(), 3, by), "andrew", engine=engine)
    report.require()
    assert report.sharp


def test_training_with_views_moves_and_is_priced_as_without(budget):
    settings = {"budget": budget, "population": 12, "sample_rate": 0.5, "steps": 3, "lr": 0.1, "seed": 0}
    plain, viewed = network(), network()
    one = runs.train(plain, cross_entropy, images(), **settings)
    other = runs.train(viewed, cross_entropy, ap.augment(images(), 4, [ap.Shift(2)]), **settings)
    assert one.epsilon() == other.epsilon()
    assert not torch.equal(plain[0].weight, viewed[0].weight)


def test_a_record_whose_view_cannot_be_made_contributes_nothing_and_says_nothing(books):
    def picky(record):
        if float(record.max()) > 50:
            raise ValueError("too bright")
        return record

    inputs, targets = images()
    inputs[3] = 99.0
    problems = Problems()
    held = Curator(
        as_records(ap.augment((inputs, targets), 2, [picky])),
        build_engine(network(), "one-pass"),
        books,
        Randomness.seeded(0),
        problems=problems,
    )
    held.answer(Request(1.0, 1.0, 12.0, (ClippedSum(1.0),)), cross_entropy)
    assert [line["times"] for line in problems.lines()[2:]] == [1]


class MixUp:
    def __call__(self, record):
        return record


@pytest.mark.parametrize(
    ("views", "by", "message"),
    [
        (0, [ap.Flip()], "views"),
        (2, [], "without an augmentation"),
        (2, [MixUp()], "one record of two"),
        (2, ["flip"], "cannot be called"),
        (2, [lambda record: record[:, :3]], "another shape"),
        (2, [lambda record: record.double()], "another shape or type"),
        (2, [lambda record: record.nothing], "cannot make a view"),
    ],
)
def test_bad_views_are_refused(views, by, message):
    with pytest.raises(InvalidArgument, match=message):
        as_records(ap.augment(images(), views, by))


def test_views_of_a_table_need_a_function(budget, model, records):
    with pytest.raises(InvalidArgument, match="changes images"):
        as_records(ap.augment(records, 2, [ap.Flip()]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"budget": budget, "population": 40, "sample_rate": 0.5, "steps": 2}
    with pytest.raises(InvalidArgument, match="loop of your own"):
        runs.make_private(model, optimizer, ap.augment(records, 2, [noisy]), **settings)
