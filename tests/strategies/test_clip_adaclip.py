"""AdaClip: the scale, the estimates from released values, and what it is without adaptation."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import runs
from apportion import InvalidArgument, clip
from apportion.releases import FLOAT32_HEADROOM
from apportion.request import Released, Request
from apportion.strategies.context import Context
from apportion.training.packing import pack, unpack

SHAPES = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (4,)}
GROUPS = {
    "flat": [("0.weight", "0.bias", "2.weight")],
    "layer": [("0.weight", "0.bias"), ("2.weight",)],
}


def context(z=1.5, size=20.0, shapes=SHAPES):
    return Context(1, 100, 0.1, size, z, shapes)


def asked(strategy, state, public):
    return Request(0.1, public.noise_multiplier, public.expected_batch_size, strategy.propose(state, public))


def some_state(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    return {
        "mean": {name: uniform(shape) - 0.5 for name, shape in SHAPES.items()},
        "variance": {name: 1e-5 + 1e-3 * uniform(shape) for name, shape in SHAPES.items()},
    }


def joined(values, names):
    return np.concatenate([np.asarray(values[name]).ravel() for name in names])


def test_it_starts_between_its_bounds_around_zero():
    strategy = clip.AdaClip(floor=1e-6, cap=1e-2)
    state = strategy.init(context())
    assert joined(state["variance"], SHAPES) == pytest.approx([1e-4] * 13)
    assert all(not values.any() for values in state["mean"].values())
    assert {name: tuple(values.shape) for name, values in state["variance"].items()} == SHAPES


@pytest.mark.parametrize("groups", GROUPS)
def test_the_scale_is_the_one_with_the_least_noise(groups):
    """b = √s·√(Σ s) for each group: E‖(g − m)/b‖² = Σ s²/b² = 1, and any other b with that has a larger Σ b²."""
    state = some_state()
    strategy = clip.AdaClip(groups=groups)
    releases = strategy.propose(state, context())
    assert [one.parameters for one in releases] == GROUPS[groups]
    assert {one.threshold for one in releases} == {1.0}
    generator = np.random.default_rng(0)
    for release in releases:
        deviation = np.sqrt(joined(state["variance"], release.parameters))
        scale = joined(release.frame.scale, release.parameters)
        assert scale == pytest.approx(np.sqrt(deviation) * math.sqrt(deviation.sum()))
        assert np.sum(deviation**2 / scale**2) == pytest.approx(1.0)
        assert joined(release.frame.centre, release.parameters) == pytest.approx(
            joined(state["mean"], release.parameters)
        )
        for _ in range(50):
            other = scale * generator.uniform(0.5, 2.0, len(scale))
            other *= math.sqrt(np.sum(deviation**2 / other**2))
            assert np.sum(other**2) > np.sum(scale**2)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("size", "z"), [(1.0, 0.4), (20.0, 4.0)])
def test_estimates_follow_the_formula_number_by_number(groups, size, z):
    """v = B·((g̃ − m)² − b²·σ²/B²) with m from before its update; for B = 1 the formula of the paper."""
    strategy = clip.AdaClip(floor=1e-4, cap=2e-2, mean_decay=0.8, deviation_decay=0.95, groups=groups)
    state, public = some_state(), context(z, size)
    before = copy.deepcopy(state)
    request = asked(strategy, state, public)
    generator = torch.Generator().manual_seed(1)
    gradient = {
        name: state["mean"][name].float() + 0.1 * torch.randn(s, generator=generator) for name, s in SHAPES.items()
    }
    after = strategy.observe(state, Released(request, gradient))
    noise = z * (1 + FLOAT32_HEADROOM) * math.sqrt(len(GROUPS[groups]))  # σ on the sum of the w_i
    seen = []
    for names in GROUPS[groups]:
        total = sum(math.sqrt(v) for v in joined(before["variance"], names))
        for name in names:
            old, old_mean, new, new_mean = (
                np.asarray(values[name]).ravel()
                for values in (before["variance"], before["mean"], after["variance"], after["mean"])
            )
            for j, answer in enumerate(gradient[name].double().flatten().tolist()):
                scale = math.sqrt(math.sqrt(old[j]) * total)
                v = size * ((answer - old_mean[j]) ** 2 - scale**2 * noise**2 / size**2)
                seen.append(v)
                assert new[j] == pytest.approx(0.95 * old[j] + 0.05 * min(max(v, 1e-4), 2e-2), rel=1e-9)
                assert new_mean[j] == pytest.approx(0.8 * old_mean[j] + 0.2 * answer, rel=1e-9)
    assert min(seen) < 1e-4  # the cases are there
    assert max(seen) > 2e-2
    assert any(1e-4 < v < 2e-2 for v in seen)


def test_the_deviation_of_single_records_is_found_through_the_noise():
    """Two coordinates whose records have deviations of 0.3 and 0.03; released are means of B = 50 records with noise."""
    shapes, size, z = {"w": (2,)}, 50.0, 1.0
    strategy = clip.AdaClip(floor=1e-8, cap=1.0, mean_decay=0.99, deviation_decay=0.99)
    public = context(z, size, shapes)
    state = strategy.init(public)
    true, generator = np.array([0.3, 0.03]), np.random.default_rng(0)
    late = []
    for step in range(4000):
        request = asked(strategy, state, public)
        (release,) = request.sums
        noise = np.asarray(release.frame.scale["w"]) * request.standard_deviation(release) / size
        answer = np.array([1.0, -2.0]) + generator.normal(0, true / math.sqrt(size)) + generator.normal(0, noise)
        state = strategy.observe(state, Released(request, {"w": torch.tensor(answer)}))
        late += [state["variance"]["w"].numpy()] if step >= 2000 else []
    assert state["mean"]["w"].tolist() == pytest.approx([1.0, -2.0], abs=0.05)
    assert np.sqrt(np.mean(late, 0)) == pytest.approx(true, rel=0.1)


def test_without_adaptation_it_is_a_fixed_threshold(records, budget):
    """floor = cap = v: b = √(d·v) everywhere, so the first step (m = 0) is that of DP-SGD with C = √(d·v)."""

    def weights_after_one_step(strategy):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        data = (records[0].double(), records[1])
        runs.train(
            model,
            nn.CrossEntropyLoss(),
            data,
            budget=budget,
            population=40,
            sample_rate=0.5,
            steps=1,
            lr=1.0,
            clip=strategy,
            seed=3,
        )
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    dimension, variance = 4 * 3 + 3 + 3 * 2 + 2, 0.003
    adaptive = weights_after_one_step(clip.AdaClip(floor=variance, cap=variance))
    fixed = weights_after_one_step(clip.Fixed(math.sqrt(dimension * variance)))
    assert torch.allclose(adaptive, fixed, rtol=0, atol=1e-12)
    assert not torch.allclose(fixed, weights_after_one_step(clip.Fixed(1.01 * math.sqrt(dimension * variance))))


def test_equal_bounds_never_move_the_scale():
    strategy = clip.AdaClip(floor=0.002, cap=0.002)
    state = strategy.init(context())
    for value in (0.0, 5.0, -80.0):
        gradient = {name: torch.full(shape, value) for name, shape in SHAPES.items()}
        state = strategy.observe(state, Released(asked(strategy, state, context()), gradient))
    (release,) = strategy.propose(state, context())
    assert joined(release.frame.scale, SHAPES) == pytest.approx([math.sqrt(13 * 0.002)] * 13)
    assert joined(state["mean"], SHAPES) == pytest.approx([0.9 * 0.5 - 8.0] * 13)


def test_a_state_is_plain_data_and_is_not_changed():
    strategy, state = clip.AdaClip(groups="layer"), some_state()
    kept = unpack(pack(state))
    gradient = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    request = asked(strategy, state, context())
    after = strategy.observe(state, Released(request, gradient))
    assert pack(state) == pack(kept) != pack(after)
    assert pack(strategy.observe(kept, Released(request, gradient))) == pack(unpack(pack(after)))
    assert asked(strategy, kept, context()) == request


def test_a_parameter_of_one_number_has_a_scale_too():
    strategy = clip.AdaClip()
    public = context(shapes={"temperature": ()})
    (release,) = strategy.propose(strategy.init(public), public)
    assert release.frame.scale["temperature"].shape == ()


def test_bounds_that_are_swapped_are_refused_with_the_reason():
    """Lin et al. list h1 = 1e-2 and h2 = 1e-4, where v would always be h2."""
    with pytest.raises(InvalidArgument, match=r"clip.floor=0.01: .*h1 is the cap.*floor=0.0001, cap=0.01"):
        clip.AdaClip(floor=1e-2, cap=1e-4)
    assert clip.AdaClip(floor=1e-4, cap=1e-4).cap == 1e-4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.AdaClip(floor=0.0), "clip.floor=0.0"),
        (lambda: clip.AdaClip(cap=math.inf), "clip.cap=inf"),
        (lambda: clip.AdaClip(mean_decay=1.0), "clip.mean_decay=1.0: .*from 1 on"),
        (lambda: clip.AdaClip(mean_decay=-0.1), "clip.mean_decay=-0.1"),
        (lambda: clip.AdaClip(deviation_decay=1.0), "clip.deviation_decay=1.0: .*from 1 on"),
        (lambda: clip.AdaClip(deviation_decay=math.nan), "clip.deviation_decay=nan"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
