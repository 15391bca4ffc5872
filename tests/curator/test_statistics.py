"""Counts, sums and histograms of norms, framed and normalised sums: what one record can do to them, what noise they get, what they cost.

Every judgement about noise is also shown noise that is 5 % wrong, and every bound also a record that reaches it.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.curator import clipping, mechanisms
from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.curator import Curator
from apportion.curator.gradients import layer_use
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.tree import map_tensors
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event
from apportion.execution import Execution
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, Frame, NormHistogram, NormSum, UnclippedCount
from apportion.request import Request
from runs import Gaussian

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from zoo import ZOO

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
MODES = ["one-pass", "vmap", "loop"]
LEVEL = 1e-4


def exact(exact_sum, standard_deviation, noise, divisor):
    """A mechanism without noise, to see what it is given."""
    return exact_sum / divisor


def curator(model, data, books, *, mode="one-pass", mechanism=None, micro_batch=256, seed=0):
    return Curator(
        as_records(data),
        build_engine(model, mode),
        books,
        Randomness.seeded(seed),
        Execution(micro_batch=micro_batch),
        mechanisms=mechanisms if mechanism is None else Gaussian(mechanism),
    )


def statistics_of(model, data, books, statistics, **options):
    """The exact statistics of all records together."""
    gradient = ClippedSum(1.0, share=0.5)
    whole = (gradient, *(_with_share(one, 0.5 / len(statistics)) for one in statistics))
    released = curator(model, data, books, mechanism=exact, **options).answer(
        Request(1.0, 1.0, 8.0, whole), cross_entropy
    )
    return [8.0 * value for value in released.statistics]


def _with_share(statistic, share):
    return type(statistic)(*list(vars(statistic).values())[:2], share)


def norms_of(model, data, names=NAMES):
    """‖g_i‖ over some parameters, each record by an ordinary backward pass in float64."""
    model, norms = model.double(), []
    for x, y in zip(data[0].double(), data[1], strict=True):
        grads = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        chosen = [g for (name, _), g in zip(model.named_parameters(), grads, strict=True) if name in names]
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in chosen)))
    model.float()
    return np.array(norms)


def counted(norms, bound):
    """½ below 0.95 of the bound, −½ above 1.05 of it, a straight line between."""
    return np.interp(np.asarray(norms) / bound, [0.95, 1.05], [0.5, -0.5])


def placed(norms, points):
    """For each point, what norms count there: 1 at the point, nothing at the next ones, a straight line between."""
    tents = np.eye(len(points))
    return np.array([np.interp(norms, points, tent).sum() for tent in tents])


# --- what is counted and summed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("micro_batch", [1, 7, 256])
def test_statistics_are_those_of_single_records_whatever_the_micro_batch(model, records, books, mode, micro_batch):
    everything, layer = norms_of(model, records), norms_of(model, records, NAMES[2:])
    middle, edge = float(np.median(everything)), float(np.quantile(layer, 0.8))
    points, few = (0.0, 0.5 * middle, middle, 1.5 * middle), (0.9 * edge, 1.2 * edge)
    asked = [UnclippedCount(middle), UnclippedCount(edge, NAMES[2:]), NormSum(middle), NormSum(edge, NAMES[2:])]
    asked += [NormHistogram(points), NormHistogram(few, NAMES[2:])]
    found = statistics_of(model, records, books, asked, mode=mode, micro_batch=micro_batch)
    assert found[0] == pytest.approx(counted(everything, middle).sum(), abs=1e-3)
    assert found[1] == pytest.approx(counted(layer, edge).sum(), abs=1e-3)
    assert found[2] == pytest.approx(np.minimum(everything, middle).sum(), rel=1e-5)
    assert found[3] == pytest.approx(np.minimum(layer, edge).sum(), rel=1e-5)
    assert found[4:8] == pytest.approx(placed(everything, points), abs=1e-3)
    assert found[8:] == pytest.approx(placed(layer, few), abs=1e-3)
    assert sum(found[4:8]) == pytest.approx(40) == sum(found[8:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("index", [0, 3, 11])
def test_a_record_moves_a_count_by_one_half_and_a_norm_sum_by_its_cut_norm(model, records, books, mode, index):
    bound = float(np.median(norms_of(model, records)))
    asked = [UnclippedCount(bound), NormSum(bound)]
    own = norms_of(model, records)[index]
    with_record = statistics_of(model, records, books, asked, mode=mode)
    rest = [torch.cat([tensor[:index], tensor[index + 1 :]]) for tensor in records]
    without = statistics_of(model, tuple(rest), books, asked, mode=mode)
    assert with_record[0] - without[0] == pytest.approx(counted(own, bound), abs=1e-3)
    assert with_record[1] - without[1] == pytest.approx(min(own, bound), rel=1e-5)


@pytest.mark.parametrize("distance", [-1e-7, 0.0, 1e-7])
def test_the_last_bit_of_a_norm_hardly_moves_a_count(distance):
    """Kernels for other batches round differently: a step at the threshold would let one record flip all that lie there."""
    at_the_threshold = {"a": torch.full((1000, 1), 1.0 + distance)}
    found = clip_and_sum(at_the_threshold, (ClippedSum(1.0, None, 0.5), UnclippedCount(1.0, None, 0.5)))
    assert abs(float(found[UnclippedCount(1.0, None, 0.5)])) < 2e-3


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0])
def test_the_last_bit_of_a_norm_hardly_moves_a_histogram(norm):
    """Also at a point, in the middle between two and at the last."""
    histogram = NormHistogram((0.0, 1.0, 2.0), None, 0.5)
    found = [
        clip_and_sum({"a": torch.full((1000, 1), norm + distance)}, (ClippedSum(1.0, None, 0.5), histogram))[histogram]
        for distance in (-1e-7, 1e-7)
    ]
    assert float((found[1] - found[0]).norm()) < 1e-3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_a_record_without_a_finite_gradient_counts_nothing(model, records, books, mode, bad):
    """Not +½ (its zero is 'unclipped') and not −½: a data set without it must give the same."""
    asked = [UnclippedCount(0.3), UnclippedCount(0.3, NAMES[2:]), NormSum(0.3), NormSum(0.3, NAMES[:1])]
    asked += [NormHistogram((0.0, 0.3, 0.6)), NormHistogram((0.0, 0.3), NAMES[2:])]
    spoilt = (torch.cat([records[0], torch.full((1, 4), bad)]), torch.cat([records[1], torch.tensor([1])]))
    if bad == 1e38:
        model[0].weight.data[:] = 1e5  # finite numbers whose product is not
        spoilt[0][-1, ::2] *= -1
    expected = statistics_of(model, records, books, asked, mode=mode)
    assert statistics_of(model, spoilt, books, asked, mode=mode) == pytest.approx(expected, abs=1e-9)


def test_a_record_that_cannot_be_read_or_evaluated_counts_nothing(model, records, books):
    class Holes(torch.utils.data.Dataset):
        def __len__(self):
            return 42

        def __getitem__(self, index):
            if index == 41:
                raise OSError("a damaged file")
            return (records[0][index], records[1][index]) if index < 40 else (records[0][0], torch.tensor(9))

    asked = [UnclippedCount(0.3), NormSum(0.3), NormHistogram((0.0, 0.3, 0.6))]
    expected = statistics_of(model, records, books, asked)
    for micro_batch in (1, 5, 256):
        assert statistics_of(model, Holes(), books, asked, micro_batch=micro_batch) == pytest.approx(expected, abs=1e-9)


def test_a_gradient_of_zero_is_not_clipped(books):
    model = nn.Linear(2, 2, bias=False)
    data = (torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))
    asked = [UnclippedCount(0.1), NormSum(0.1), NormHistogram((0.0, 0.1))]
    assert statistics_of(model, data, books, asked) == [1.5, 0.0, 3.0, 0.0]


number = st.one_of(st.floats(-10, 10, width=32), st.sampled_from([0.0, 1e-30, 1e20, -1e38, math.inf, math.nan]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(number, min_size=6, max_size=6), min_size=1, max_size=5), st.floats(0.01, 100), st.data())
def test_removing_a_record_moves_everything_by_at_most_its_sensitivity(values, bound, data):
    table = torch.tensor(values, dtype=torch.float32)
    rows = {"a": table[:, :2], "b": table[:, 2:5].reshape(-1, 3, 1), "c": table[:, 5:]}
    frame = Frame({"b": torch.full((3, 1), 5.0)}, {"b": torch.tensor([[1e-3], [1.0], [50.0]])})
    releases = (
        ClippedSum(bound, ("a", "c"), 0.2, stabiliser=0.01),
        ClippedSum(1.0, ("b",), 0.2, frame=frame),
        UnclippedCount(bound, ("a",), 0.2),
        UnclippedCount(bound, None, 0.2),
        NormSum(bound, ("a", "b"), 0.2),
        NormHistogram((0.0, bound, 3 * bound), ("a", "c"), 0.2),
        NormHistogram((bound, 1.05 * bound), None, 0.2),
    )
    removed = data.draw(st.integers(0, len(values) - 1))
    rest = {name: torch.cat([tensor[:removed], tensor[removed + 1 :]]) for name, tensor in rows.items()}
    with_record, without = clip_and_sum(rows, releases), clip_and_sum(rest, releases)
    for release in releases:
        keys = release.parameters if isinstance(release, ClippedSum) else (release,)
        moved = torch.cat([(with_record[key] - without[key]).flatten() for key in keys])
        assert moved.isfinite().all()
        assert moved.norm() <= release.sensitivity * (1 + 1e-12)
        if isinstance(release, NormHistogram):
            assert moved.norm() <= 1 + 1e-12  # and the headroom is not needed for the record itself


BREAKAGES = {  # and by how many sensitivities a record then moves a count, a sum of norms and a histogram
    "nothing": [1.0, 1.0, 1.0],
    "count not centred": [2.0, 1.0, 1.0],
    "norm cut at 1.05 of its bound": [1.0, 1.05, 1.0],
    "counted at every point below": [1.0, 1.0, math.sqrt(3)],
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_bounds_are_reached_so_that_a_little_more_breaks_them(monkeypatch, breakage):
    right = clipping.statistic_terms
    broken = {
        "nothing": right,
        "count not centred": lambda s, n, clips: right(s, n) + (0.5 if isinstance(s, UnclippedCount) else 0.0),
        "norm cut at 1.05 of its bound": lambda s, n, clips: (
            n.clamp(max=1.05 * s.bound) if isinstance(s, NormSum) else right(s, n)
        ),
        "counted at every point below": lambda s, n, clips: (
            right(s, n).flip(0).cumsum(0) if isinstance(s, NormHistogram) else right(s, n)
        ),
    }
    monkeypatch.setattr(clipping, "statistic_terms", broken[breakage])
    statistics = UnclippedCount(10.0, None, 0.2), NormSum(4.0, None, 0.2), NormHistogram((0.0, 2.5, 5.0), None, 0.2)
    moved = clip_and_sum({"a": torch.tensor([[3.0, 4.0]])}, (ClippedSum(1.0, None, 0.4), *statistics))
    ratios = [float(moved[one].norm()) / one.sensitivity for one in statistics]
    assert ratios == pytest.approx(BREAKAGES[breakage], rel=2 * FLOAT32_HEADROOM)


# --- noise ------------------------------------------------------------------------------------------------------------------------


def looks_normal(values, deviation):
    scaled = np.asarray(values) / deviation
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(scaled))
    return stats.kstest(scaled, "norm").pvalue > LEVEL and bool(low < np.sum(scaled**2) < high)


def require_law(values, deviation):
    """As declared, and with the power to see 5 %."""
    assert len(values) >= 10_000
    assert looks_normal(values, deviation)
    assert not looks_normal(0.95 * np.asarray(values), deviation)
    assert not looks_normal(1.05 * np.asarray(values), deviation)


class Wide(nn.Module):
    """Enough parameters to measure a standard deviation in one step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(100, 120, bias=False)

    def forward(self, x):
        return self.layer(x)


NOBODY = (torch.zeros(3, 100), torch.zeros(3, dtype=torch.long))
NEVER = 1e-18  # at this rate no record is drawn


def empty_answer(books, releases, *, z=1.5, seed=0):
    """What is released of an empty batch: noise alone."""
    return curator(Wide(), NOBODY, books, seed=seed).answer(Request(NEVER, z, 7.0, releases), cross_entropy)


MANY = 12_000
KINDS = {  # what is asked for, and its sensitivity, written down again
    "count": (lambda i: UnclippedCount(1.0 + i, None, 0.6 / MANY), lambda i: 0.5),
    "norm sum": (lambda i: NormSum(0.5 + 1e-4 * i, None, 0.6 / MANY), lambda i: 0.5 + 1e-4 * i),
}


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_have_the_noise_that_was_paid_for(books, kind):
    """z·Δ/√w on the sum, also for an empty batch; gradient and statistics are independent of each other."""
    ask, sensitivity = KINDS[kind]
    answer = empty_answer(books, (ClippedSum(2.0, None, 0.4), *map(ask, range(MANY))))
    declared = 1.5 * np.array([sensitivity(i) for i in range(MANY)]) / math.sqrt(0.6 / MANY)
    noise = 7.0 * np.array(answer.statistics)
    require_law(noise / declared, 1.0)
    gradient = 7.0 * answer.gradient["layer.weight"].double().numpy().ravel()
    require_law(gradient, 1.5 * 2.0 * (1 + FLOAT32_HEADROOM) / math.sqrt(0.4))
    assert abs(np.corrcoef(gradient, noise / declared)[0, 1]) < 5 / math.sqrt(MANY)
    assert books.events == [Event(NEVER, 1.5)]


HISTOGRAMS = tuple(
    NormHistogram(tuple((1 + 0.01 * i) * 1e-9 * 1.05**j for j in range(1000)), None, 0.6 / 12) for i in range(12)
)


def histogram_noise(books):
    answer = empty_answer(books, (ClippedSum(2.0, None, 0.4), *HISTOGRAMS))
    assert [len(answer.answer_to(one)) for one in HISTOGRAMS] == [1000] * 12
    return 7.0 * np.concatenate([answer.answer_to(one) for one in HISTOGRAMS])


def test_every_number_of_a_histogram_has_the_noise_that_was_paid_for_once(books):
    """z·1/√w at each point, also of an empty batch, and each its own: a difference of two has twice the variance."""
    noise, deviation = histogram_noise(books), 1.5 * (1 + FLOAT32_HEADROOM) / math.sqrt(0.6 / 12)
    require_law(noise, deviation)
    assert len(set(noise)) == len(noise)
    for distance in (1, 2, 999, 1000):
        assert abs(np.corrcoef(noise[distance:], noise[:-distance])[0, 1]) < 5 / math.sqrt(len(noise))
    assert books.events == [Event(NEVER, 1.5)]


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_sensitivity_of_a_histogram_that_is_five_percent_off_is_noticed(books, monkeypatch, factor):
    monkeypatch.setattr(NormHistogram, "sensitivity", property(lambda self: factor * (1 + FLOAT32_HEADROOM)))
    assert not looks_normal(histogram_noise(books), 1.5 * (1 + FLOAT32_HEADROOM) / math.sqrt(0.6 / 12))


@pytest.mark.parametrize("kind", [UnclippedCount, NormSum, ClippedSum])
def test_a_sensitivity_that_is_declared_five_percent_too_small_is_noticed(books, monkeypatch, kind):
    original = kind.sensitivity.fget
    monkeypatch.setattr(kind, "sensitivity", property(lambda self: 0.95 * original(self)))
    name = {UnclippedCount: "count", NormSum: "norm sum"}.get(kind)
    if name is None:
        noise = 7.0 * empty_answer(books, (ClippedSum(2.0),)).gradient["layer.weight"].double().numpy().ravel()
        assert not looks_normal(noise, 3.0 * (1 + FLOAT32_HEADROOM))
        return
    ask, sensitivity = KINDS[name]
    answer = empty_answer(books, (ClippedSum(2.0, None, 0.4), *map(ask, range(MANY))))
    declared = 1.5 * np.array([sensitivity(i) for i in range(MANY)]) / math.sqrt(0.6 / MANY)
    assert not looks_normal(7.0 * np.array(answer.statistics) / declared, 1.0)


def test_a_parameter_without_numbers_does_not_silence_the_others():
    rows = {"empty": torch.zeros(4, 0, 3), "full": torch.ones(4, 2)}
    frame = Frame(
        {"empty": torch.zeros(0, 3), "full": torch.zeros(2)}, {"empty": torch.ones(0, 3), "full": torch.ones(2)}
    )
    sums = clip_and_sum(rows, (ClippedSum(10.0, ("empty", "full"), frame=frame),))
    assert sums["empty"].shape == (0, 3)
    assert sums["full"].tolist() == pytest.approx([4.0, 4.0])


def test_a_framed_sum_has_noise_of_its_scale_around_its_centre(books):
    """Standard deviation b_j·z·(1 + h)/B on coordinate j, and the centre of an empty batch is m."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.exp(3 * torch.randn(120, 100, generator=generator, dtype=torch.float64))
    centre = torch.randn(120, 100, generator=generator, dtype=torch.float64)
    frame = Frame({"layer.weight": centre}, {"layer.weight": scale})
    answer = empty_answer(books, (ClippedSum(1.0, ("layer.weight",), frame=frame),)).gradient["layer.weight"]
    noise = (answer.double() - centre) / scale
    require_law(noise.numpy().ravel(), 1.5 * (1 + FLOAT32_HEADROOM) / 7.0)
    assert books.events == [Event(NEVER, 1.5)]


def test_a_normalised_sum_has_the_noise_of_its_threshold(books):
    answer = empty_answer(books, (ClippedSum(0.3, stabiliser=0.01),)).gradient["layer.weight"]
    require_law(7.0 * answer.double().numpy().ravel(), 1.5 * 0.3 * (1 + FLOAT32_HEADROOM))


def test_draws_do_not_share_the_noise_of_their_statistics(books):
    releases = (ClippedSum(2.0, None, 0.4), *map(KINDS["count"][0], range(MANY)))
    one, other = (np.array(empty_answer(books, releases, seed=seed).statistics) for seed in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(MANY)


def test_a_record_and_the_noise_do_not_disturb_each_other(model, records, books):
    """The same noise is added to a batch of records as to an empty one."""
    statistics = UnclippedCount(0.4, None, 0.2), NormSum(0.4, None, 0.1), NormHistogram((0.0, 0.4, 0.8), None, 0.2)
    releases = (ClippedSum(0.4, None, 0.5), *statistics)
    noisy = curator(model, records, books).answer(Request(1.0, 1.3, 40.0, releases), cross_entropy).statistics
    noise = curator(model, records, books).answer(Request(NEVER, 1.3, 40.0, releases), cross_entropy).statistics
    true = curator(model, records, books, mechanism=exact).answer(Request(1.0, 1.3, 40.0, releases), cross_entropy)
    assert np.subtract(noisy, noise) == pytest.approx(np.array(true.statistics), abs=1e-9)
    assert all(value != 0 for value in noise)


# --- charge -----------------------------------------------------------------------------------------------------------------------


@given(
    st.floats(0.05, 20),
    st.lists(st.tuples(st.floats(0.01, 50), st.floats(0.01, 1)), min_size=3, max_size=6),
)
def test_all_releases_together_have_the_multiplier_that_is_charged(z, parts):
    total = math.fsum(share for _, share in parts)
    kinds = [ClippedSum, UnclippedCount, NormSum, lambda size, *others: NormHistogram((0.0, size), *others)]
    releases = tuple(kinds[i % 4](size, (f"p{i}",), share / total) for i, (size, share) in enumerate(parts))
    request = Request(0.1, z, 10.0, releases)
    real = [  # the sensitivities, written down again
        {
            ClippedSum: size * (1 + FLOAT32_HEADROOM),
            UnclippedCount: 0.5,
            NormSum: size,
            NormHistogram: 1 + FLOAT32_HEADROOM,
        }[type(one)]
        for one, (size, _) in zip(releases, parts, strict=True)
    ]
    quotients = [bound / request.standard_deviation(one) for bound, one in zip(real, releases, strict=True)]
    assert math.hypot(*quotients) == pytest.approx(1 / request.event().noise_multiplier, rel=1e-9)


def test_a_statistic_cannot_be_had_without_its_part_of_the_price():
    with pytest.raises(InvalidArgument, match="add up to 1"):
        Request(0.1, 1.0, 10.0, (ClippedSum(1.0), UnclippedCount(1.0, None, 0.1)))
    with pytest.raises(InvalidArgument, match="releases"):
        Request(0.1, 1.0, 10.0, (UnclippedCount(1.0),))  # nothing to train on


def test_a_refused_charge_reads_no_record(model, records):
    class Refuses:
        def charge(self, event):
            raise BudgetExhausted("no")

    class Watched(torch.utils.data.Dataset):
        read = 0

        def __len__(self):
            return 40

        def __getitem__(self, index):
            Watched.read += 1
            return records[0][index], records[1][index]

    guarded = curator(model, Watched(), Refuses())
    before = Watched.read
    with pytest.raises(BudgetExhausted):
        guarded.answer(Request(1.0, 1.0, 40.0, (ClippedSum(1.0, None, 0.5), NormSum(1.0, None, 0.5))), cross_entropy)
    assert Watched.read == before


def test_a_statistic_over_an_unknown_parameter_is_refused_before_the_charge(model, records, books):
    asked = Request(1.0, 1.0, 40.0, (ClippedSum(1.0, None, 0.5), UnclippedCount(1.0, ("1.weight",), 0.5)))
    with pytest.raises(InvalidArgument, match="1.weight"):
        curator(model, records, books).answer(asked, cross_entropy)
    assert books.events == []


# --- rows, frames and normalised sums, for every kind of layer ------------------------------------------------------------------------


def built(name, size, dtype):
    torch.manual_seed(7)
    model = ZOO[name].model().to(dtype)
    data = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, ZOO[name].records(size))
    return model, *data, ZOO[name].loss


def gradients_of(mode, model, inputs, targets, loss_fn):
    engine = build_engine(model, mode)
    engine.record_losses(loss_fn, engine.forward(map_tensors(torch.clone, inputs)), targets).sum().backward()
    return as_gradients(engine.gradients())


def one_pass(name, size, dtype=torch.float64):
    return gradients_of("one-pass, copying inputs", *built(name, size, dtype))


def single(name, size):
    """The gradient of every record alone, in float64."""
    reference = gradients_of("loop", *built(name, size, torch.float64))
    return {key: reference.rows(key, slice(0, size)) for key in reference.squared_norms()}


def some_frame(rows, generator):
    """A centre at the records' mean gradient, and scales over four orders of magnitude."""
    centre = {key: value.mean(0) for key, value in rows.items()}
    spread = {key: (value - value.mean(0)).abs().mean() + 1e-6 for key, value in rows.items()}
    scale = {
        key: spread[key] * 10 ** (4 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 2)
        for key, value in centre.items()
    }
    return Frame(centre, scale)


@pytest.mark.parametrize("name", ZOO)
def test_written_rows_are_the_gradients_of_single_records(name, monkeypatch):
    monkeypatch.setattr(layer_use, "CHUNK_NUMBERS", 20)  # a few records at a time
    expected, found = single(name, 5), one_pass(name, 5)
    assert len(found) == 5
    whole = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
    for key, value in expected.items():
        for part in (slice(0, 5), slice(2, 3), slice(3, 5)):
            rows = found.rows(key, part)
            assert rows.shape == value[part].shape
            assert float((rows - value[part]).norm()) <= 1e-9 * whole, key


@pytest.mark.parametrize("name", ZOO)
def test_framed_and_normalised_sums_are_those_of_single_records(name, monkeypatch):
    """Σ w/max(1, ‖w‖) with w = (g − m)/b, and Σ g·C/(‖g‖ + γ), number by number in float64."""
    monkeypatch.setattr(layer_use, "CHUNK_NUMBERS", 50)
    rows = single(name, 5)
    keys, generator = tuple(rows), torch.Generator().manual_seed(0)
    frame = some_frame(rows, generator)
    table = torch.cat([((rows[key] - frame.centre[key]) / frame.scale[key]).flatten(1) for key in keys], 1)
    expected = (table / table.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
    sums = clip_and_sum(one_pass(name, 5), (ClippedSum(1.0, keys, frame=frame),))
    assert torch.cat([sums[key].flatten() for key in keys]) == pytest.approx(expected, abs=1e-6)
    table = torch.cat([rows[key].flatten(1) for key in keys], 1)
    expected = (table * 0.7 / (table.norm(dim=1, keepdim=True) + 0.02)).sum(0)
    sums = clip_and_sum(one_pass(name, 5), (ClippedSum(0.7, keys, stabiliser=0.02),))
    assert torch.cat([sums[key].flatten() for key in keys]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ZOO)
def test_one_record_adds_a_framed_vector_of_norm_one_at_most(name):
    """In float32, for scales so small that every record is clipped: the bound is reached, and not passed by more than 1e-9."""
    rows = single(name, 3)
    keys = tuple(rows)
    centre = {key: value.mean(0) for key, value in rows.items()}
    scale = {key: torch.full_like(value, 1e-6) for key, value in centre.items()}
    model, inputs, targets, loss = built(name, 3, torch.float32)
    for record in range(3):
        alone = map_tensors(lambda t, i=record: t[i : i + 1], (inputs, targets))
        gradients = gradients_of("one-pass, copying inputs", model, *alone, loss)
        sums = clip_and_sum(gradients, (ClippedSum(1.0, keys, frame=Frame(centre, scale)),))
        norm = math.sqrt(sum(float(sums[key].square().sum()) for key in keys))
        assert 0.999 < norm <= 1 + 1e-9


@pytest.mark.parametrize("size", [1, 4])
def test_a_centre_far_larger_than_what_is_left_loses_nothing(size):
    """g = 2²⁰ + k/8 in float32, m = 2²⁰: what is left is a millionth of g, and exact."""
    left = torch.arange(1, 3 * size + 1).reshape(size, 3) / 8
    rows = {"w": (2.0**20 + left).float()}
    scale = torch.tensor([0.5, 1.0, 30.0], dtype=torch.float64)
    frame = Frame({"w": torch.full((3,), 2.0**20, dtype=torch.float64)}, {"w": scale})
    table = left.double() / scale
    expected = (table / table.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
    found = clip_and_sum(rows, (ClippedSum(1.0, ("w",), frame=frame),))["w"]
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-14)


def test_a_far_centre_loses_nothing_in_the_engine_either():
    """Gradients of about 10⁶ that differ by about 1: the centre is the first of them."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    data = (torch.ones(6, 3).double() + 1e-6 * torch.randn(6, 3).double(), torch.zeros(6, dtype=torch.long))

    def loss(outputs, targets):
        return 1e6 * cross_entropy(outputs, targets, reduction="none")

    rows = gradients_of("loop", model, *data, loss)
    keys = ("weight", "bias")
    table = torch.cat([(rows.rows(key, slice(0, 6)) - rows.rows(key, slice(0, 1))).flatten(1) for key in keys], 1)
    assert 0.01 < float(table.abs().mean()) < 100
    frame = Frame(
        {key: rows.rows(key, slice(0, 1))[0] for key in keys},
        {key: torch.ones(model.get_parameter(key).shape) for key in keys},
    )
    expected = (table / table.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
    sums = clip_and_sum(gradients_of("one-pass", model, *data, loss), (ClippedSum(1.0, keys, frame=frame),))
    found = torch.cat([sums[key].flatten() for key in keys])
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-8)


def test_a_parameter_that_no_record_uses_has_rows_of_zeros(books):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 3)

        def forward(self, x):
            return self.used(x)

    gradients = gradients_of("one-pass", Idle(), torch.ones(4, 2), torch.tensor([0, 1, 0, 1]), cross_entropy)
    assert torch.equal(gradients.rows("idle.weight", slice(1, 3)), torch.zeros(2, 3, 2))


def test_a_frame_and_plain_sums_and_statistics_in_one_request(model, records, books):
    """Each release in its own coordinates: the count of a framed group is taken in those of its frame."""
    rows = {}
    for x, y in zip(*records, strict=True):
        grads = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        for key, grad in zip(NAMES, grads, strict=True):
            rows.setdefault(key, []).append(grad)
    rows = {key: torch.stack(values).double() for key, values in rows.items()}
    framed_names, plain = NAMES[:2], NAMES[2:]
    centre, scale = ({key: rows[key].mean(0) * factor for key in framed_names} for factor in (1.0, 0.0))
    scale = {key: value + 0.3 for key, value in scale.items()}
    frame = Frame(centre, scale)
    asked = (
        ClippedSum(1.0, framed_names, 0.25, frame=frame),
        ClippedSum(0.2, plain, 0.25),
        UnclippedCount(1.0, framed_names, 0.25),
        UnclippedCount(0.2, plain, 0.25),
    )
    released = curator(model, records, books, mechanism=exact, micro_batch=9).answer(
        Request(1.0, 1.0, 40.0, asked), cross_entropy
    )
    table = torch.cat([((rows[key] - centre[key]) / 0.3).flatten(1) for key in framed_names], 1)
    norms, other = table.norm(dim=1), torch.cat([rows[key].flatten(1) for key in plain], 1).norm(dim=1)
    assert 40 * released.statistics[0] == pytest.approx(counted(norms, 1.0).sum(), abs=1e-3)
    assert 40 * released.statistics[1] == pytest.approx(counted(other, 0.2).sum(), abs=1e-3)
    mean = (table / norms.clamp(min=1.0)[:, None]).sum(0) / 40
    restored = 0.3 * mean + torch.cat([centre[key].flatten() for key in framed_names])
    assert torch.cat([released.gradient[key].flatten() for key in framed_names]).tolist() == pytest.approx(
        restored.tolist(), abs=1e-6
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_record_adds_nothing_to_a_framed_sum_either(model, records, books, mode):
    """Not even −m/b, which a silenced gradient of zero would be."""
    frame = Frame(
        {key: torch.full(p.shape, 7.0) for key, p in trained_parameters(model).items()},
        {key: torch.ones(p.shape) for key, p in trained_parameters(model).items()},
    )
    request = Request(1.0, 1.0, 40.0, (ClippedSum(1.0, NAMES, frame=frame),))
    spoilt = (torch.cat([records[0], torch.full((1, 4), math.nan)]), torch.cat([records[1], torch.tensor([0])]))
    answers = [
        curator(model, data, books, mode=mode, mechanism=exact).answer(request, cross_entropy).gradient
        for data in (records, spoilt)
    ]
    for key in NAMES:
        assert torch.allclose(answers[1][key], answers[0][key], rtol=0, atol=1e-5)
        assert not torch.allclose(answers[0][key] - 1 / 40 / math.sqrt(23), answers[0][key], rtol=0, atol=1e-5)


def test_frames_need_no_norms_of_other_coordinates():
    """Where all parameters are framed, nothing is computed twice."""

    class Rows(clipping.MaterialisedGradients):
        def squared_norms(self):
            raise AssertionError("not needed")

    frame = Frame({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    sums = clip_and_sum(Rows({"w": torch.ones(3, 2)}), (ClippedSum(1.0, ("w",), frame=frame),))
    assert sums["w"].tolist() == pytest.approx([3 / math.sqrt(2)] * 2)
    assert clipping.framed_squared_norms(as_gradients({"w": torch.ones(0, 2)}), "w", frame).shape == (0,)
