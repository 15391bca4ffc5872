"""Groups are a property of every clip: each kind with one group, two groups and one for each layer, trained and audited."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import runs
from apportion import InvalidArgument, clip
from apportion.request import Request
from apportion.strategies.context import Context
from apportion.training.packing import pack, unpack
from runs import replay
from suites import thinned

LOSS = nn.CrossEntropyLoss()
KINDS = {
    "Fixed": lambda **groups: clip.Fixed(0.5, **groups),
    "Decay": lambda **groups: clip.Decay(0.5, **groups),
    "SensitivityDecay": lambda **groups: clip.SensitivityDecay(0.5, **groups),
    "LinearDecay": lambda **groups: clip.LinearDecay(0.5, **groups),
    "FixedDeviation": lambda **groups: clip.FixedDeviation(0.5, 3, **groups),
    "Sequence": lambda **groups: clip.Sequence((0.5, 0.3, 0.4), **groups),
    "Quantile": lambda **groups: clip.Quantile(0.3, share=0.1, **groups),
    "NormBased": lambda **groups: clip.NormBased(0.3, **groups),
    "AdaClip": lambda **groups: clip.AdaClip(**groups),
    "Automatic": lambda **groups: clip.Automatic(0.5, **groups),
    "NormPercentile": lambda **groups: clip.NormPercentile(0.3, **groups),
    "LeastError": lambda **groups: clip.LeastError(0.3, **groups),
}
GROUPS = {
    "one group": ("flat", 1),
    "two groups": ((("0.weight", "4.*"), ("0.bias", "2.*")), 2),
    "a group a layer": ("layer", 3),
}
ALLOCATIONS = ("equal", "global", "dimension")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def test_every_kind_is_here():
    """A clip that is added must be added to this list."""
    assert set(KINDS) == set(clip.__all__) - {"Clip"}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_with_groups(model, records, budget, kind, groups):
    names, count = GROUPS[groups]
    strategy = KINDS[kind](groups=names)
    trained = copy.deepcopy(model)
    run = runs.train(
        trained,
        LOSS,
        records,
        budget=budget,
        population=40,
        sample_rate=0.3,
        steps=4,
        lr=0.1,
        clip=strategy,
        seed=1,
    )
    assert [len(entry.clip) for entry in run.history] == [count] * 4
    assert 0.9 * 3.0 < run.epsilon() <= 3.0
    moved = [not torch.equal(one, other) for one, other in zip(model.parameters(), trained.parameters(), strict=True)]
    assert all(moved)


def in_core(kind, groups):
    """Each kind with one of them."""
    return groups == ("two groups", "a group a layer")[list(KINDS).index(kind) % 2]


@pytest.mark.parametrize(  # with one group they are replayed in tests/audit
    ("kind", "groups"), thinned(itertools.product(KINDS, [name for name in GROUPS if name != "one group"]), in_core)
)
def test_every_kind_passes_the_replay_with_groups(model, records, kind, groups):
    report = replay(model, LOSS, records, steps=3, clip=KINDS[kind](groups=GROUPS[groups][0]))
    report.require()
    assert report.sharp
    assert report.notes == ()


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_allocation_has_the_price_of_one_group(kind, groups, allocation):
    """Σ (Δ/s)² over all releases is z⁻², and states survive a checkpoint."""
    names, count = GROUPS[groups]
    shapes = {
        f"{layer}.{part}": (3, 2) if part == "weight" else (3,) for layer in (0, 2, 4) for part in ("weight", "bias")
    }
    strategy = KINDS[kind](groups=names, allocation=allocation)
    public = Context(2, 9, 0.3, 12.0, 1.7, shapes)
    state = unpack(pack(strategy.init(public)))
    request = Request(0.3, 1.7, 12.0, strategy.propose(state, public))
    assert len(request.sums) == count
    assert sorted(name for one in request.sums for name in one.parameters or shapes) == sorted(shapes)
    whitened = math.fsum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in request.releases)
    assert whitened == pytest.approx(1.7**-2, rel=1e-9)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_the_noise_of_each_allocation(allocation):
    """equal: z·C_k·√K. global: z·√(Σ C²) everywhere. dimension: z·C_k·√(Σ d/d_k)."""
    shapes, thresholds = {"a.w": (10,), "b.w": (30,), "c.w": (60,)}, (0.5, 1.0, 2.0)
    strategy = clip.Quantile(groups="layer", allocation=allocation, share=0.19)
    request = Request(0.3, 1.8, 12.0, strategy.propose(thresholds, Context(1, 9, 0.3, 12.0, 1.8, shapes)))
    expected = {
        "equal": [c * math.sqrt(3) for c in thresholds],
        "global": [math.sqrt(5.25)] * 3,
        "dimension": [0.5 * math.sqrt(10), math.sqrt(100 / 30), 2 * math.sqrt(100 / 60)],
    }[allocation]
    found = [request.standard_deviation(one) / (one.sensitivity / one.threshold) for one in request.sums]
    assert found == pytest.approx([2.0 * value for value in expected])  # z_Δ = 1.8/√(1 − 0.19) = 2


def test_global_and_equal_coincide_where_all_thresholds_are_equal():
    shapes = {"a.w": (10,), "b.w": (30,)}
    one, other = (
        clip.Fixed(0.7, groups="layer", allocation=allocation).propose(
            None, Context(1, 9, 0.3, parameter_shapes=shapes)
        )
        for allocation in ("equal", "global")
    )
    assert one == other


@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_do_not_fit_the_model_are_refused_by_every_kind(kind):
    public = Context(1, 9, 0.3, 12.0, 1.0, {"a.w": (10,), "b.w": (30,)})
    for groups, words in (([["c.*"], ["*"]], "no trained parameter"), ([["a.*"]], "exactly one group")):
        strategy = KINDS[kind](groups=groups)
        with pytest.raises(InvalidArgument, match=words):
            strategy.propose(strategy.init(public), public)
    with pytest.raises(InvalidArgument, match="clip.groups"):
        KINDS[kind](groups="layers")
    with pytest.raises(InvalidArgument, match="clip.allocation"):
        KINDS[kind](allocation="even")
