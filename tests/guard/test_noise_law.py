"""The law of everything that is released, measured end to end for every recipe and both tiers.

All records are tiny and the model has no bias, so that every gradient is about 1e-9 and what the optimiser gets is noise and nothing
else, although batches are drawn, clipped and summed as always. Each value is divided by the standard deviation that the *formulas* demand,
z_t·C_t·(1 + headroom)/√share/(q·N), and the quotients must be independent standard normals: for every parameter, at every step.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.curator import mechanisms
from apportion.curator.randomness import Randomness
from apportion.releases import FLOAT32_HEADROOM, ClippedSum

STEPS, RECORDS, POPULATION, RATE = 8, 20, 50, 0.3
MULTIPLIER = 3.0
# Written down again from the papers, independently of the strategies: (C_t, z_t) at step t of 8; an epoch is 3 steps.
EXPECTED = {
    "abadi": lambda t: (1.0, MULTIPLIER),
    "lin-decay": lambda t: (1.0 / ((t - 1) // 3 + 1) ** 0.5, MULTIPLIER),
    "du-growing": lambda t: (1.0, MULTIPLIER * 2 ** (-t / STEPS)),
    "du-sensitivity": lambda t: (1.5 * 2 ** (-t / STEPS), MULTIPLIER),
    "du-dynamic": lambda t: (1.5 * 2 ** (-t / STEPS), MULTIPLIER * 2 ** (-t / STEPS)),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40, bias=False), nn.Tanh(), nn.Linear(40, 30, bias=False)).double()


def noise_of(tier, *, clip, noise, seed=0, rate=RATE, epsilon=40.0):
    """{parameter: (steps, values)} as the optimiser received them."""
    model, seen = network(), []
    data = (1e-9 * torch.ones(RECORDS, 30).double(), torch.zeros(RECORDS, dtype=torch.long))

    def watched(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.register_step_pre_hook(
            lambda *_: seen.append({name: p.grad.flatten().numpy() for name, p in model.named_parameters()})
        )
        return optimizer

    options = {
        "budget": ap.Budget(epsilon=epsilon, delta=1e-3, unit=ap.Record()),
        "population": POPULATION,
        "sample_rate": rate,
        "steps": STEPS,
        "clip": clip,
        "noise": noise,
        "seed": seed,
        "execution": ap.Execution(micro_batch=3),
    }
    if tier == "train":
        run = runs.train(model, cross_entropy, data, lr=1e-9, optimizer=watched, **options)
    else:
        run = runs.make_private(model, watched(model.parameters(), 1e-9), data, **options)
        for x, y in run.batches():
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
    assert run.steps == STEPS == len(seen)
    return {name: np.stack([step[name] for step in seen]) for name in seen[0]}, run


def require_standard_normal(values, what):
    """Refuses a standard deviation that is 4 % off, and a wrong shape of the distribution."""
    values = values.ravel()
    assert values.std() == pytest.approx(1.0, abs=5 / np.sqrt(2 * len(values))), what
    assert abs(values.mean()) < 5 / np.sqrt(len(values)), what
    assert stats.kstest(values, "norm").pvalue > 1e-5, what


@pytest.mark.parametrize("tier", ["train", "make_private"])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_recipe_adds_the_noise_that_it_pays_for(name, tier):
    recipe = ap.recipes.named(name).with_settings({"noise.multiplier": MULTIPLIER})
    released, run = noise_of(tier, clip=recipe.clip, noise=recipe.noise)
    for t in range(1, STEPS + 1):
        threshold, multiplier = EXPECTED[name](t)
        assert run.history[t - 1].clip == pytest.approx((threshold,))
        assert run.history[t - 1].noise_multiplier == pytest.approx(multiplier)
        deviation = multiplier * threshold * (1 + FLOAT32_HEADROOM) / (RATE * POPULATION)
        for parameter in released:
            released[parameter][t - 1] /= deviation
            # 1,200 values tell 10 % at a single step ...
            require_standard_normal(released[parameter][t - 1], f"{parameter} at step {t}")
    for parameter, values in released.items():
        require_standard_normal(values, parameter)  # ... and all steps together 4 %
    # The events that were charged are those whose noise was just measured.
    charged = list(run._session.account.ledger.events())
    paid = [event.noise_multiplier for event in charged]
    assert paid == pytest.approx([EXPECTED[name](t)[1] for t in range(1, STEPS + 1)])
    assert {event.sample_rate for event in charged} == {RATE}


def test_the_noise_of_parameters_and_steps_is_independent():
    released, _ = noise_of("train", clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(MULTIPLIER))
    rows = [values[t] for values in released.values() for t in range(STEPS)]
    together = np.concatenate(rows)
    assert len(np.unique(np.abs(together))) == len(together), "a value of the noise was used twice"
    for one, other in itertools.combinations(rows, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5.5 / np.sqrt(len(one))
        assert abs(np.corrcoef(one, other[::-1])[0, 1]) < 5.5 / np.sqrt(len(one))
    for row in rows:  # and inside a parameter: neighbours, and the two halves of a Box-Muller pair
        half = len(row) // 2
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 5.5 / np.sqrt(len(row))
        assert abs(np.corrcoef(row[:half], row[half:])[0, 1]) < 5.5 / np.sqrt(half)
        assert abs(np.corrcoef(row[:half] ** 2, row[half:] ** 2)[0, 1]) < 5.5 / np.sqrt(half)


def test_runs_do_not_share_their_noise():
    """Fresh runs differ although every global generator was seeded alike; other seeds differ too."""
    rows = []
    for seed in (None, None, 1, 2):
        torch.manual_seed(0)
        np.random.seed(0)
        released, _ = noise_of("train", clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(MULTIPLIER), seed=seed)
        rows.append(released["0.weight"].ravel())
    for one, other in itertools.combinations(rows, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5.5 / np.sqrt(len(one))


def test_every_purpose_of_every_draw_has_its_own_bits():
    """Coins, noise and dropout of fifty draws: no stream is another one, neither at its beginning nor shifted by a few words."""
    randomness, seen = Randomness.fresh(), set()
    for _ in range(50):
        draw = randomness.next_draw()
        for stream in (draw.coins, draw.noise, draw.model):
            words = stream.words(16).tolist()
            assert len(set(words)) == 16
            assert seen.isdisjoint(words)
            seen.update(words)


@dataclass(frozen=True)
class PerLayer:
    """Two groups, whose thresholds and shares both differ."""

    def init(self, context):
        return None

    def propose(self, state, context):
        return (ClippedSum(0.5, ("0.weight",), 0.2), ClippedSum(2.0, ("2.weight",), 0.8))

    def observe(self, state, released):
        return None


def test_groups_are_noised_by_their_own_threshold_and_share():
    released, _ = noise_of("train", clip=PerLayer(), noise=ap.noise.Constant(MULTIPLIER))
    unit = MULTIPLIER * (1 + FLOAT32_HEADROOM) / (RATE * POPULATION)
    require_standard_normal(released["0.weight"] / (unit * 0.5 / 0.2**0.5), "first group")
    require_standard_normal(released["2.weight"] / (unit * 2.0 / 0.8**0.5), "second group")


@pytest.mark.usual_pieces
def test_the_tails_of_the_noise_are_not_cut():
    """Two million values, counted in bins out to 4.5 standard deviations: cut or thinned tails give whole events away."""
    values = mechanisms.add_gaussian_noise(
        torch.zeros(2_000_000), 1.0, Randomness.fresh().next_draw().noise, 1.0
    ).numpy()
    edges = np.array([-np.inf, -4.5, -4, -3.5, -3, -2, -1, 0, 1, 2, 3, 3.5, 4, 4.5, np.inf])
    expected = len(values) * np.diff(stats.norm.cdf(edges))
    found = np.histogram(values, edges)[0]
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-6
