"""One odd record: whether a run fails, what it says and what the others contribute must not depend on it."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import apportion as ap
from apportion.curator.clipping import clip_and_sum
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import MAX_MICRO_BATCH
from apportion.models.engine_choice import choose_engine
from apportion.releases import ClippedSum, Frame
from apportion.request import Request
from items import Items
from runs import Gaussian


def exact(total, deviation, noise, divisor):
    return total / divisor


def answer(model, data, books, loss=cross_entropy, *, mode="one-pass", releases=None, micro_batch=64):
    """The clipped sum itself: the noise is left out and every record is drawn."""
    execution = ap.Execution(micro_batch=micro_batch)
    curator = Curator(
        as_records(data), build_engine(model, mode), books, Randomness.seeded(0), execution, mechanisms=Gaussian(exact)
    )
    released = curator.answer(Request(1.0, 1.0, 1.0, tuple(releases or [ClippedSum(1.0)])), loss)
    return torch.cat([part.flatten().double() for part in released.gradient.values()])


def images(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=generator), torch.tensor(i % 3)) for i, shape in enumerate(shapes)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 3))


@pytest.mark.parametrize("odd", [(12, 12), (1, 1, 12, 12), (1, 11, 12), (2, 12, 12)])
def test_a_record_of_another_shape_changes_nothing_but_its_own_part(books, odd):
    usual = images(*[(1, 12, 12)] * 5)
    expected = answer(network(), Items(usual), books)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = answer(network(), Items([*usual, *images(odd)]), books)
    assert torch.linalg.vector_norm(found - expected) <= 1.0 + 1e-4


def test_records_without_a_dimension_are_not_taken_for_channels(books):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    model[0].weight.requires_grad_(False)
    whole = [(torch.randn(2, 4, 4), 100 * torch.randn(2, 2, 2)) for _ in range(2)]
    flat = [(torch.randn(4, 4), 100 * torch.randn(2, 2, 2)) for _ in range(2)]
    three = answer(model, Items([*whole, flat[0]]), books, mse_loss, micro_batch=2)
    four = answer(model, Items([*whole, *flat]), books, mse_loss, micro_batch=2)
    assert torch.linalg.vector_norm(four - three) <= 1.0 + 1e-4


class SkipsEmptyRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        keep = (x != 0).any(1)
        out = torch.zeros(len(x), 3)
        out[keep] = self.layer(x[keep])
        return out


class Tames(nn.Module):
    """Mixes records, but only where one of them is large."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        if h.abs().max() > 50:
            h = h / h.abs().max()
        return h


@pytest.mark.parametrize("model", [SkipsEmptyRows, Tames])
def test_a_model_that_looks_at_values_runs_record_by_record(model):
    assert choose_engine(model(), cross_entropy, torch.zeros(4), torch.tensor(0)).mode == "loop"


def test_an_engine_that_refuses_a_batch_because_of_a_record_does_not_say_so(books):
    """Pinned, the engine is trusted; and still its complaint must not end the run, nor name a number of records."""
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    others = answer(SkipsEmptyRows(), (x, torch.zeros(6).long()), books)
    torch.manual_seed(0)
    with_empty = answer(SkipsEmptyRows(), (torch.cat([x, torch.zeros(1, 4)]), torch.zeros(7).long()), books)
    assert with_empty.shape == others.shape


@pytest.mark.usual_pieces  # rounding is worst in long sums
@pytest.mark.parametrize("mode", ["one-pass", "vmap"])
@pytest.mark.parametrize("size", [1, 63, MAX_MICRO_BATCH])
def test_one_record_more_moves_the_sum_of_many_by_no_more_than_the_headroom(books, mode, size):
    """In float32 one record is rounded to a digit of the sum of all."""
    worst = 0.0
    for seed in range(6):
        torch.manual_seed(seed)
        model = nn.Linear(3, 1, bias=False)
        inputs = torch.randn(1, 3).expand(size + 1, 3).contiguous() * 100
        targets = torch.full((size + 1, 1), 1e3)
        more = answer(model, (inputs, targets), books, mse_loss, mode=mode, micro_batch=10**6)
        fewer = answer(model, (inputs[1:], targets[1:]), books, mse_loss, mode=mode, micro_batch=10**6)
        worst = max(worst, float((more - fewer).norm()))
    assert worst <= 1 + 1e-4


@pytest.mark.parametrize("threshold", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [1e10, 1e25, 1e35, 3e38])
def test_huge_inputs_are_clipped_too(threshold, scale):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    engine = build_engine(model, "one-pass")
    for slope in (1.0, 1e-10, 1e-35, 1e30):
        outputs = engine.forward(torch.tensor([[scale]]))
        (outputs * slope).sum().backward()
        sums = clip_and_sum(engine.gradients(), (ClippedSum(threshold),))
        found = torch.cat([part.flatten().double() for part in sums.values()])
        assert not found.isfinite().all() or found.norm() <= threshold * (1 + 1e-4)


def test_a_product_that_overflows_contributes_nothing(books):
    """A gradient of zero is multiplied by C/γ, and a huge output gradient with it."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(outputs, targets):
        return (outputs * targets).sum()

    normalised = [ClippedSum(1.0, stabiliser=0.01)]
    good = (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0]]))
    bad = tuple(torch.cat(pair) for pair in zip(good, (torch.zeros(1, 2), torch.tensor([[3e38]])), strict=True))
    expected = answer(model, good, books, loss, releases=normalised)
    assert torch.allclose(answer(model, bad, books, loss, releases=normalised), expected)


@pytest.mark.parametrize(
    ("centre", "scale"), [(0.0, 0.0), (1e200, 1e-150), (math.inf, 1.0), (math.nan, 1.0), (1.0, 1e-310), (0.0, -1.0)]
)
def test_a_frame_that_would_show_an_empty_batch_is_refused_before_the_charge(books, centre, scale):
    model = nn.Linear(2, 1, bias=False)
    frame = Frame(*({"weight": torch.full((1, 2), value, dtype=torch.float64)} for value in (centre, scale)))
    with pytest.raises(ap.InvalidArgument, match="frame"):
        answer(
            model,
            (torch.ones(3, 2), torch.ones(3, 1)),
            books,
            mse_loss,
            releases=[ClippedSum(1.0, ("weight",), frame=frame)],
        )
    assert books.events == []


def test_a_stabiliser_far_below_the_threshold_is_refused():
    with pytest.raises(ap.InvalidArgument, match="range of float32"):
        ClippedSum(1.0, stabiliser=1e-40)


# --- odd data sets: one record still moves the sum by no more than its threshold ---------------------------------------------


class OneBuffer(Items):
    """Reads every record into the same tensor."""

    def __init__(self, items):
        super().__init__(items)
        self.place = torch.zeros(4)

    def __getitem__(self, index):
        inputs, target = self.items[index]
        return self.place.copy_(inputs), target


class OneBufferForMany(OneBuffer):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [OneBuffer, OneBufferForMany])
def test_records_that_are_read_into_one_buffer_stay_apart(books, kind):
    """All rows of a piece would otherwise be its last record, and one record more would change all of them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    items = [(torch.randn(4), i % 3) for i in range(70)]
    more, fewer = (answer(model, kind(items[:count]), books) for count in (70, 69))
    assert torch.linalg.vector_norm(more - fewer) <= 1.0 + 1e-4
    assert torch.equal(more, answer(model, Items(items), books))


@pytest.mark.parametrize("place", [3, 69], ids=["in the first piece", "alone in the last"])
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, lambda x: x.to("meta")], ids=["sparse", "without values"])
def test_a_record_of_another_make_does_not_end_the_run(books, make, place):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    items = [(torch.randn(4), i % 3) for i in range(70)]
    expected = answer(model, Items(items[:place] + items[place + 1 :]), books, micro_batch=128)
    odd = [(make(x), y) if i == place else (x, y) for i, (x, y) in enumerate(items)]
    assert torch.allclose(answer(model, Items(odd), books, micro_batch=128), expected, atol=1e-5)
