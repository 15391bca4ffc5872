"""Selections: the laws of the mechanisms (computed and drawn), and the curator that feeds them summed, clipped losses."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.audit.sealed import DeclassifyingMechanisms, SealedCurator, SealedGradients
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.tree import map_tensors
from apportion.errors import InvalidArgument, WrongOrder
from apportion.event import Choice, Event
from apportion.execution import Execution
from apportion.releases import ClippedSum, FirstGain, Line, LowestLoss, UnclippedCount
from apportion.request import Request
from apportion.training.opening import require_trainable
from exact_selections import above_threshold_law, exponential_law, gumbel_law, wrong_sign_law
from zoo import ZOO

STEPS = (0.0, 0.5, 3.0)
MODES = ("one-pass", "vmap", "loop")
LINE = Line({"w": torch.zeros(1)}, STEPS)
LAWS = {"gumbel": gumbel_law, "exponential": exponential_law}


# --- the laws, computed (theory 10.6) ---------------------------------------------------------------------------------------


def monotone_moves(k):
    """Every way in which a record adds nothing or C_obj to each of k candidates."""
    return [np.array([(number >> j) & 1 for j in range(k)], float) for number in range(2**k)]


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("noise", LAWS)
def test_a_noisy_minimum_of_six_moves_no_probability_by_more_than_epsilon(noise, epsilon):
    largest = spread = 0.0
    for totals in (np.zeros(6), np.linspace(0, 20, 6), np.array([15.0, 0, 0, 0, 0, 0]), np.array([0.0] * 5 + [8.0])):
        before = LAWS[noise](totals, 1 / epsilon)
        assert before.sum() == pytest.approx(1.0)
        for moved in monotone_moves(6):
            ratios = np.log(LAWS[noise](totals + moved, 1 / epsilon) / before)
            largest, spread = max(largest, np.abs(ratios).max()), max(spread, np.ptp(ratios))
    assert largest <= epsilon + 1e-6
    assert largest > 0.98 * epsilon
    if noise == "gumbel":
        assert spread == pytest.approx(epsilon, rel=1e-6)  # a bounded range
    else:
        assert spread > 1.05 * epsilon


def test_noise_with_the_wrong_sign_would_cost_five_times_as_much():
    totals, moved = np.array([4.0] + [0.0] * 5), np.array([1.0] + [0.0] * 5)
    before, after = (wrong_sign_law(one, 1.0) for one in (totals, totals + moved))
    assert before.sum() == pytest.approx(1.0, abs=1e-5)
    assert math.log(before[0] / after[0]) == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize(("factor", "cost"), [(2.0, 1.0), (1.0, 1.5)])
def test_above_threshold_costs_its_two_parts_after_any_number_of_answers_below(factor, cost):
    """Fifty answers "below" whose gains rise, then one "above" whose gain falls; ε₁ = ε₂ = ½, Δ = 1."""
    gains = np.array([60.0] * 50 + [-60.0])
    moves = np.array([1.0] * 50 + [-1.0])
    before, after = (above_threshold_law(one, 2.0, 2.0 * factor)[50] for one in (gains, gains + moves))
    assert math.log(before / after) == pytest.approx(cost, abs=1e-3)


def test_the_request_has_the_scales_of_the_theory():
    line = Line({"w": torch.zeros(1)}, (1.0, 0.5))
    search = FirstGain(line, bound=3.0, epsilon=1.0, threshold_share=0.25, headroom=0.0)
    assert search.scales == pytest.approx((3.0 / 0.25, 2 * 3.0 / 0.75))
    assert search.choice() == Choice(1.0)
    lowest = LowestLoss(LINE, bound=3.0, epsilon=0.5, headroom=0.0)
    assert lowest.scale == pytest.approx(6.0)
    assert lowest.choice() == Choice(0.5, bounded_range=True)
    assert replace(lowest, noise="exponential").choice() == Choice(0.5)
    assert LowestLoss(LINE, 3.0, 0.5).scale == pytest.approx(6.0 * (1 + 1e-4))


# --- the laws, drawn --------------------------------------------------------------------------------------------------------

DRAWS = 24_000  # with values at which 5 % of the noise change the law most


def stream(seed=0):
    return Randomness.seeded(seed).next_draw().noise


@pytest.mark.usual_pieces
@pytest.mark.parametrize(("kind", "law"), [("exponentials", stats.expon), ("laplaces", stats.laplace)])
def test_streams_have_their_laws(kind, law):
    values = np.concatenate([getattr(stream(3), kind)(100_000), getattr(stream(4), kind)(1)])
    assert stats.kstest(values, law.cdf).pvalue > 1e-3
    for factor in (0.95, 1.05):
        assert stats.kstest(values / factor, law.cdf).pvalue < 1e-6
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_a_stream_serves_no_variable_twice():
    source = stream()
    values = np.concatenate([source.exponentials(50), source.laplaces(50), source.exponentials(50)])
    assert len(np.unique(values)) == 150


def fits(law, outcomes):
    """χ² of the drawn outcomes against the computed law."""
    counts = np.bincount(outcomes, minlength=len(law))
    return stats.chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-4


@pytest.mark.usual_pieces
@pytest.mark.parametrize("noise", LAWS)
def test_the_noisy_minimum_has_its_law(noise):
    release = LowestLoss(LINE, bound=2.0, epsilon=0.5, noise=noise, headroom=0.0)
    totals, source = torch.tensor([12.0, 12.0, 2.0, 12.0], dtype=torch.float64), stream()
    law = LAWS[noise](totals.numpy(), 4.0)

    def drawn(asked):
        return [mechanisms.noisy_argmin(totals, asked, source) for _ in range(DRAWS)]

    assert fits(law, drawn(release))
    assert not fits(law, drawn(replace(release, epsilon=0.5 * 1.05)))


@pytest.mark.usual_pieces
@pytest.mark.parametrize(  # most of the noise is in the threshold, or in the gains
    ("share", "values"), [(0.1, (-28.0, 16.0)), (0.9, (-50.0, -90.0, -45.0, -50.0))]
)
def test_above_threshold_has_its_law(share, values):
    release = FirstGain(
        Line({"w": torch.zeros(1)}, (1.0, 0.5, 0.25, 0.1)[: len(values)]),
        bound=2.0,
        epsilon=1.0,
        threshold_share=share,
        headroom=0.0,
    )
    gains, source = torch.tensor(values, dtype=torch.float64), stream()
    threshold_scale, gain_scale = release.scales
    law = above_threshold_law(gains.numpy(), threshold_scale, gain_scale)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)

    def drawn(asked):
        found = [mechanisms.above_threshold(gains, asked, source) for _ in range(DRAWS)]
        return [len(gains) if index is None else index for index in found]

    assert fits(law, drawn(release))
    assert not fits(law, drawn(replace(release, epsilon=1.05)))


# --- the curator ------------------------------------------------------------------------------------------------------------


class Watched:
    """The real mechanisms, and what they were given."""

    add_gaussian_noise = staticmethod(mechanisms.add_gaussian_noise)

    def __init__(self):
        self.totals = []

    def noisy_argmin(self, totals, release, noise):
        self.totals.append(totals.clone())
        return mechanisms.noisy_argmin(totals, release, noise)

    def above_threshold(self, gains, release, noise):
        self.totals.append(gains.clone())
        return mechanisms.above_threshold(gains, release, noise)


@pytest.fixture
def direction(model):
    torch.manual_seed(5)
    return {name: torch.randn_like(value) for name, value in model.named_parameters()}


def lowest(direction, bound=0.9, steps=STEPS, **options):
    return LowestLoss(Line(direction, steps), bound=bound, epsilon=1.0, **options)


def first(direction, bound=0.9, steps=STEPS[1:], **options):
    return FirstGain(Line(direction, steps), bound=bound, epsilon=1.0, **options)


def asked(*selections, rate=1.0):
    return Request(rate, math.inf, 40.0, selections)


def held(model, data, books, mechanisms=mechanisms, *, mode="one-pass", micro_batch=256, seed=0):
    engine = build_engine(model, mode)
    return Curator(
        as_records(data), engine, books, Randomness.seeded(seed), Execution(micro_batch), mechanisms=mechanisms
    )


def totals_of(model, data, books, *selections, loss=cross_entropy, **options):
    watched = Watched()
    held(model, data, books, watched, **options).answer(asked(*selections), loss)
    return watched.totals


def losses_alone(model, data, direction, step, bound, loss=cross_entropy):
    """Each record alone, at w − αd, by plain torch."""
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter -= step * direction[name]
        values = [loss(moved(x[None]), y[None]).double().item() for x, y in zip(*data, strict=True)]
    return np.array([min(max(value, 0.0), bound) if math.isfinite(value) else bound for value in values])


@pytest.mark.parametrize("micro_batch", [1, 7, 256])
@pytest.mark.parametrize("mode", MODES)
def test_sums_are_those_of_single_records_at_the_candidates(books, model, records, direction, mode, micro_batch):
    at = {step: losses_alone(model, records, direction, step, 0.9) for step in STEPS}
    assert 0 < (at[3.0] == 0.9).sum() < 40  # some are clipped, some are not
    losses, gains = totals_of(
        model, records, books, lowest(direction), first(direction, slope=0.01), mode=mode, micro_batch=micro_batch
    )
    assert losses.dtype == gains.dtype == torch.float64
    assert losses.tolist() == pytest.approx([at[step].sum() for step in STEPS], rel=1e-5)
    expected = [(at[0.0] - at[step]).sum() - 0.01 * step * 40 for step in STEPS[1:]]
    assert gains.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_order_of_records_does_not_matter(books, model, records, direction):
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    (one,) = totals_of(model, records, books, lowest(direction), micro_batch=7)
    (two,) = totals_of(model, tuple(part[order] for part in records), books, lowest(direction), micro_batch=7)
    assert one.tolist() == pytest.approx(two.tolist(), rel=1e-5)


def odd_losses(outputs, targets):
    """The loss of a record by its label: an ordinary one, NaN, ∞, −∞, or negative."""
    usual = cross_entropy(outputs, targets.clamp(max=1))
    for label, value in ((2, math.nan), (3, math.inf), (4, -math.inf), (5, -7.0)):
        usual = torch.where((targets == label).all(), usual * 0 + value, usual)
    return usual


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("label", "counted"), [(2, 0.9), (3, 0.9), (4, 0.9), (5, 0.0)])
def test_losses_that_are_no_losses_are_clipped_at_every_candidate(
    books, model, records, direction, mode, label, counted
):
    inputs, targets = records
    odd = targets.clone()
    odd[-1] = label
    (found,) = totals_of(model, (inputs, odd), books, lowest(direction), loss=odd_losses, mode=mode, micro_batch=8)
    (others,) = totals_of(model, (inputs[:-1], targets[:-1]), books, lowest(direction), mode=mode, micro_batch=8)
    assert (found - others).tolist() == pytest.approx([counted] * 3, abs=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e20])
@pytest.mark.parametrize("mode", MODES)
def test_a_record_moves_all_sums_one_way_and_at_most_by_the_bound(books, model, records, direction, mode, scale):
    inputs, targets = records
    inputs = inputs.clone()
    inputs[-1] *= scale
    selections = lowest(direction), first(direction)
    losses, gains = totals_of(model, (inputs, targets), books, *selections, mode=mode, micro_batch=8)
    fewer, less = totals_of(model, (inputs[:-1], targets[:-1]), books, *selections, mode=mode, micro_batch=8)
    moved = losses - fewer
    assert moved.min() >= -1e-4 * 0.9
    assert moved.max() <= selections[0].sensitivity
    assert (gains - less).abs().max() <= selections[1].sensitivity


def test_a_record_that_fails_adds_nothing_to_any_candidate(books, model, records, direction):
    calls = []

    def loss(outputs, targets):
        if (targets == 7).any() and len(
            calls.append(1) or calls
        ) % 3 == 0:  # not at the first candidates: those are known by then
            raise ValueError("no such label")
        return cross_entropy(outputs, targets.clamp(max=1))

    inputs, targets = records
    odd = targets.clone()
    odd[-1] = 7
    for micro_batch in (1, 8):
        options = {"mode": "loop", "micro_batch": micro_batch}
        (found,) = totals_of(model, (inputs, odd), books, lowest(direction), loss=loss, **options)
        (others,) = totals_of(model, (inputs[:-1], targets[:-1]), books, lowest(direction), **options)
        assert found.tolist() == pytest.approx(others.tolist(), rel=1e-6)


def test_an_empty_batch_is_answered_by_noise_alone(books, model, records, direction):
    watched, request = Watched(), asked(lowest(direction), first(direction), rate=1e-18)
    curator = held(model, records, books, watched)
    found = {curator.answer(request, cross_entropy).selected for _ in range(60)}
    assert all(not totals.any() for totals in watched.totals)
    assert {index for index, _ in found} == {0, 1, 2}
    assert {index for _, index in found} == {0, 1, None}


@pytest.mark.parametrize("mode", MODES)
def test_the_model_is_bit_for_bit_as_before(books, model, records, direction, mode):
    """Also in what torch counts, and when a record fails in the middle."""

    def failing(outputs, targets):
        raise ValueError("nothing can be evaluated")

    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    versions = {name: value._version for name, value in model.named_parameters()}
    huge = {name: 1e30 * value for name, value in direction.items()}  # w − αd + αd would not be w
    for loss in (cross_entropy, failing):
        held(model, records, books, mode=mode, micro_batch=16).answer(asked(lowest(huge), first(huge)), loss)
        for name, value in model.named_parameters():
            assert torch.equal(value, before[name])
            assert value._version == versions[name]
            assert value.grad is None or not value.grad.any()
    together = Request(1.0, 1.0, 40.0, (ClippedSum(0.3), lowest(huge)))
    plain = Request(1.0, 1.0, 40.0, (ClippedSum(0.3),))
    one, two = (held(model, records, books, mode=mode).answer(one, cross_entropy) for one in (together, plain))
    for name in before:  # the gradient is that at w, and noise is drawn for it first
        torch.testing.assert_close(one.gradient[name], two.gradient[name])


def test_a_request_may_mix_sums_statistics_and_selections(books, model, records, direction):
    releases = (
        lowest(direction),
        ClippedSum(0.3, share=0.9),
        first(direction),
        UnclippedCount(0.3, share=0.1),
    )
    request = Request(0.5, 2.0, 20.0, releases)
    assert request.event() == Event(0.5, 2.0, (Choice(1.0), Choice(1.0, True)))
    released = held(model, records, books).answer(request, cross_entropy)
    assert books.events == [request.event()]
    assert set(released.gradient) == set(direction)
    assert len(released.statistics) == 1
    assert len(released.selected) == 2
    assert released.selected[0] in (0, 1, 2)
    assert released.selected[1] in (0, 1, None)
    assert all(type(index) in (int, type(None)) for index in released.selected)


def test_a_selection_is_charged_before_the_coins_are_tossed(model, records, direction):
    order = []

    class Ordered(Randomness):
        def next_draw(self):
            order.append("coins")
            return super().next_draw()

    class Books:
        def charge(self, event):
            order.append(event)

    request = asked(lowest(direction), rate=0.5)
    randomness = Ordered(bytes(32), private=False)
    Curator(as_records(records), build_engine(model, "one-pass"), Books(), randomness).answer(request, cross_entropy)
    assert order == [Event(0.5, math.inf, (Choice(1.0, True),)), "coins"]

    class Refuses:
        def charge(self, event):
            raise RuntimeError("nothing is left")

    order.clear()
    with pytest.raises(RuntimeError, match="nothing is left"):
        Curator(as_records(records), build_engine(model, "one-pass"), Refuses(), randomness).open(request)
    assert order == []


def test_a_selection_is_answered_once(books, model, records, direction):
    draw = held(model, records, books).open(asked(lowest(direction)))
    draw.add(None, torch.zeros(0, dtype=torch.int64), [torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)])
    assert draw.release().selected[0] in (0, 1, 2)
    with pytest.raises(WrongOrder):
        draw.release()


class Loud(torch.Tensor):
    """A tensor with arithmetic of its own."""


BAD_DIRECTIONS = {
    "a parameter is missing": lambda d: dict(list(d.items())[1:]),
    "one too many": lambda d: {**d, "other": torch.zeros(1)},
    "another shape": lambda d: {**d, "0.bias": torch.zeros(1)},
    "transposed": lambda d: {**d, "0.weight": d["0.weight"].T},
    "NaN": lambda d: {**d, "0.bias": torch.full_like(d["0.bias"], math.nan)},
    "infinite": lambda d: {**d, "0.bias": torch.full_like(d["0.bias"], math.inf)},
    "arithmetic of its own": lambda d: {**d, "0.bias": d["0.bias"].as_subclass(Loud)},
}


@pytest.mark.parametrize("kind", [lowest, first])
@pytest.mark.parametrize("bad", BAD_DIRECTIONS)
def test_directions_that_do_not_fit_are_refused_before_anything_is_charged(books, model, records, direction, bad, kind):
    with pytest.raises(InvalidArgument):
        held(model, records, books).answer(asked(kind(BAD_DIRECTIONS[bad](direction))), cross_entropy)
    assert books.events == []


def test_a_selection_pays_for_rounding(books, model, records, direction):
    with pytest.raises(InvalidArgument, match="headroom"):
        held(model, records, books).open(asked(lowest(direction, headroom=0.0)))
    assert books.events == []


def test_losses_of_single_records_stay_behind_the_seal(books, model, records, direction):
    seen = []

    class Nosy(SealedGradients):
        def record_losses(self, loss_fn, outputs, targets):
            seen.append(super().record_losses(loss_fn, outputs, targets))
            return seen[-1]

    curator = SealedCurator(
        as_records(records), Nosy(model, "vmap"), books, Randomness.seeded(0), Execution(16), DeclassifyingMechanisms()
    )
    released = curator.answer(asked(lowest(direction), first(direction)), cross_entropy)
    assert len(seen) == 3 * (3 + 3)  # pieces × candidates
    for losses in seen:
        with pytest.raises(BaseException, match="outside the curator"):
            losses.sum()
    assert released.gradient == {}
    assert all(type(index) in (int, type(None)) for index in released.selected)


def test_dropout_is_the_same_for_all_candidates(books, records):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 2))
    still = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    losses, gains = totals_of(
        model, records, books, lowest(still, bound=50.0), first(still, bound=50.0), micro_batch=16, mode="vmap"
    )
    assert len(set(losses.tolist())) == 1
    assert gains.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [lowest, first])
@pytest.mark.parametrize(
    "name",
    ["bag of embeddings", "stacked LSTM, two ways", "loop of cells", "tied words", "one layer twice", "named inputs"],
)
def test_neighbours_do_not_change_what_a_record_adds(books, name, kind):
    """Recurrences, embeddings, shared weights: the engine that `train` would choose, against each record as a data set of its own."""
    specimen = ZOO[name]
    torch.manual_seed(0)
    model, data = specimen.model(), specimen.records(9)
    choice = require_trainable(model, specimen.loss, as_records(data))
    line = {path: 0.3 * torch.randn_like(value) for path, value in model.named_parameters()}

    def totals(places):
        part = map_tensors(lambda tensor: tensor[places], data)
        return totals_of(model, part, books, kind(line), loss=specimen.loss, mode=choice, micro_batch=4)[0]

    alone = torch.stack([totals([place]) for place in range(9)])
    assert torch.allclose(totals(list(range(9))), alone.sum(0), atol=1e-5)
    assert alone.abs().max() <= 0.9
    assert torch.allclose(totals([0, 2, 3, 4, 5, 6, 7, 8]), alone.sum(0) - alone[1], atol=1e-5)
