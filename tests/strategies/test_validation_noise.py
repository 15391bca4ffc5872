"""yu-validation: noise that falls when accuracy on public data stalls, at the price of declared tokens."""

import itertools
import random
from collections import Counter

import pytest

import apportion as ap
from apportion.accounting.rules import Multiset
from apportion.strategies.context import Context


def walk(noise, steps, accuracy):
    """r of every step, if the n-th measurement, from 0, finds accuracy(n); and after which steps it was measured."""
    state, found, measured = noise.init(Context(1, steps, 0.1)), [], []
    for step in range(1, steps + 1):
        context = Context(step, steps, 0.1)
        found.append(noise.choose(state, context))
        state = noise.observe(state, None)
        if noise.is_due(state, context):
            state = noise.validate(state, accuracy(len(measured)))
            measured.append(step)
    return found, measured


def levels(noise, steps, accuracy):
    """The level of every block."""
    found, _ = walk(noise, steps, accuracy)
    block = noise.block(steps)
    ladder = {noise.factor**level: level for level in range(len(noise.counts))}
    blocks = [set(found[start : start + block]) for start in range(0, len(found), block)]
    assert all(len(one) == 1 for one in blocks), "the level changed inside of a block"
    return [ladder[one.pop()] for one in blocks]


@pytest.mark.parametrize("window", [1, 5])
def test_constant_accuracy_lowers_the_noise_at_every_validation(window):
    noise = ap.noise.Validation(counts=(1, 1, 1, 1), window=window)
    assert levels(noise, 40, lambda number: 0.0) == [0, 1, 2, 3]
    assert walk(noise, 40, lambda number: 0.0)[0][::10] == pytest.approx([1, 0.7, 0.7**2, 0.7**3])


def test_improving_accuracy_never_lowers_it_before_a_level_is_used_up():
    noise = ap.noise.Validation(threshold=0.01, window=1)
    assert levels(noise, 100, lambda number: 0.02 * (number + 1)) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]


def test_after_the_last_level_left_overs_are_spent_the_least_noisy_first():
    """S_0 = 0, so the first block of an accuracy of ½ is progress; every later one is none."""
    noise = ap.noise.Validation()
    assert levels(noise, 100, lambda number: 0.5) == [0, 0, 1, 2, 3, 2, 1, 1, 0, 0]


def test_a_level_that_is_used_up_while_accuracy_stalls_is_followed_by_the_next():
    noise = ap.noise.Validation(counts=(2, 2, 1), window=1)
    assert levels(noise, 5, lambda number: 0.5) == [0, 0, 1, 2, 1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_accuracies_every_token_is_spent_once(seed):
    draw = random.Random(seed)
    counts = tuple(draw.randint(1, 4) for _ in range(draw.randint(1, 5)))
    noise = ap.noise.Validation(
        counts=counts, window=draw.randint(1, 6), absolute=draw.random() < 0.5, warmup=draw.randint(0, 3)
    )
    steps = sum(counts) * draw.randint(1, 7)
    found, _ = walk(noise, steps, lambda number: draw.random())
    assert Counter(found) == Counter(noise.levels(steps))


def test_progress_of_just_the_threshold_is_too_little():
    noise = ap.noise.Validation(counts=(3, 1), threshold=0.25, window=1)
    assert levels(noise, 4, lambda number: (0.5, 0.75, 1.0, 1.0)[number]) == [0, 0, 1, 0]
    assert levels(noise, 4, lambda number: (0.5, 0.7500001, 1.0, 1.0)[number]) == [0, 0, 0, 1]


def test_a_collapse_lowers_the_noise_but_not_in_the_printed_form():
    def collapse(number):
        return (0.9, 0.1, 0.1)[number]

    assert levels(ap.noise.Validation(counts=(2, 1), window=1), 3, collapse)[:3] == [0, 0, 1]
    signed = ap.noise.Validation(counts=(3, 1), window=1)
    assert signed.absolute is False
    assert levels(signed, 4, lambda number: (0.9, 0.1, 0.1, 0.1)[number]) == [0, 0, 1, 0]
    printed = ap.noise.Validation(counts=(3, 1), window=1, absolute=True)
    assert levels(printed, 4, lambda number: (0.9, 0.1, 0.5, 0.1)[number]) == [0, 0, 0, 1]


@pytest.mark.parametrize("warmup", [0, 1, 2, 3])
def test_noise_does_not_fall_during_the_warm_up(warmup):
    noise = ap.noise.Validation(counts=(5, 1), warmup=warmup, window=1)
    assert levels(noise, 6, lambda number: 0.0).index(1) == warmup + 1


def test_the_mean_of_the_last_accuracies_is_compared():
    """S_1 = 0.2, S_2 = 0.25, though the last measurement of each block has not moved: with a window of 1 it would be a plateau."""
    accuracies = (0.1, 0.3, 0.2, 0.3, 0.2, 0.3)
    kept = ap.noise.Validation(counts=(2, 1), window=2, threshold=0.04)
    assert levels(kept, 6, lambda number: accuracies[number]) == [0, 0, 1]
    averaged = ap.noise.Validation(counts=(3, 1), window=2, threshold=0.04)
    single = ap.noise.Validation(counts=(3, 1), window=1, threshold=0.04)
    assert levels(averaged, 8, lambda number: (*accuracies, 0.2, 0.3)[number]) == [0, 0, 0, 1]
    assert levels(single, 8, lambda number: 0.3) == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("block", "window", "times"),
    [(20, 5, [4, 8, 12, 16, 20]), (6, 5, [2, 3, 4, 5, 6]), (3, 5, [1, 2, 3]), (7, 1, [7]), (469, 2, [235, 469])],
)
def test_accuracy_is_measured_m_times_in_a_block_the_last_time_at_its_end(block, window, times):
    noise = ap.noise.Validation(counts=(2,), window=window)
    _, measured = walk(noise, 2 * block, lambda number: 0.5)
    assert measured == times + [block + one for one in times]


def published(**options):
    """Blocks of 469 steps at q = 256/60000, δ = 1e-5."""
    budget = ap.Budget(epsilon=options.pop("epsilon"), delta=1e-5, unit=ap.Record())
    recipe = ap.Recipe(noise=ap.noise.Validation(counts=(4, 3, 2, 1), factor=0.7, **options))
    return ap.plan(recipe, budget=budget, population=60_000, batch_size=256, steps=4690)


def test_the_price_is_that_of_all_blocks_together():
    plan = published(epsilon=1.2, multiplier=2.362)
    assert plan.epsilon == pytest.approx(1.197, abs=1e-3)
    assert isinstance(plan.rule(), Multiset)
    assert Counter(plan.multipliers) == {2.362 * 0.7**level: 469 * count for level, count in enumerate((4, 3, 2, 1))}
    assert published(epsilon=1.197).scale == pytest.approx(2.362, abs=2e-3)


def test_what_the_budget_does_not_cover_as_a_whole_is_refused():
    with pytest.raises(ap.InvalidArgument, match=r"noise.multiplier=2.3: its tokens cost"):
        published(epsilon=1.19, multiplier=2.3)


def test_steps_that_make_no_whole_block_are_left_out():
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan("yu-validation", budget=budget, population=1437, sample_rate=0.2, steps=47)
    assert plan.steps == 40
    with pytest.raises(ap.InvalidArgument, match=r"noise.counts=.*10 blocks do not fit into 9 steps"):
        ap.plan("yu-validation", budget=budget, population=1437, sample_rate=0.2, steps=9)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"counts": ()}, "counts"),
        ({"counts": (2, 0)}, "counts"),
        ({"counts": (1.5,)}, "counts"),
        ({"counts": "4321"}, "counts"),
        ({"factor": 1.0}, "factor"),
        ({"factor": 0.0}, "factor"),
        ({"threshold": -0.01}, "threshold"),
        ({"window": 0}, "window"),
        ({"absolute": 1}, "absolute"),
        ({"warmup": -1}, "warmup"),
        ({"multiplier": 0.0}, "multiplier"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^noise\.{named}"):
        ap.noise.Validation(**wrong)


def test_the_levels_are_those_of_the_recipe():
    recipe = ap.recipes.yu_validation(counts=(2, 1), factor=0.5, progress=0.1)
    assert recipe.noise.levels(7) == (1.0,) * 4 + (0.5,) * 2
    assert recipe.noise.threshold == 0.1
    assert list(itertools.chain(recipe.noise.levels(3))) == [1.0, 1.0, 0.5]
