"""zCDP of shuffled epochs and tCDP."""

import math

import pytest

from apportion.accounting.concentrated import (
    DisjointEpochsAccountant,
    TruncatedConcentratedAccountant,
    epoch_multipliers,
    zcdp_epsilon,
    zcdp_of_epochs,
)
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.accounting.renyi import RenyiAccountant
from apportion.errors import InvalidArgument
from apportion.event import Event

EPOCHS, TRUNCATED = DisjointEpochsAccountant(), TruncatedConcentratedAccountant()

DECAYS = {
    "constant": lambda t: 8.0,
    "time": lambda t: 10 / (1 + 0.05 * t),
    "exponential": lambda t: 10 * math.exp(-0.01 * t),
    "step": lambda t: 10 * 0.6 ** (t // 10),
    "polynomial": lambda t: 8 * (1 - t / 100) ** 3 + 2,
}


def test_a_hundred_epochs():
    assert zcdp_of_epochs([8.0] * 100) == pytest.approx(0.78125, rel=1e-12)
    assert EPOCHS.epsilon({Event(0.01, 8.0): 100 * 100}, 1e-5) == pytest.approx(6.779, rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "epochs"), [("constant", 100), ("time", 38), ("exponential", 71), ("step", 31), ("polynomial", 44)]
)
def test_affordable_epochs(schedule, epochs):
    spent = [zcdp_of_epochs(DECAYS[schedule](t) for t in range(n)) for n in (epochs, epochs + 1)]
    assert spent[0] <= 0.78125 * (1 + 1e-12) < spent[1]


def test_without_amplification_decays_are_expensive():
    """The exact composition of one Gaussian an epoch; zCDP's conversion lies above it."""
    for multipliers, epsilon in (([10.0] * 100, 4.4), ([10 * math.exp(-0.03 * t) for t in range(100)], 66)):
        exact = gaussian_epsilon(math.sqrt(sum(z**-2 for z in multipliers)), 1e-5)
        assert exact == pytest.approx(epsilon, rel=1e-2)
        assert zcdp_epsilon(zcdp_of_epochs(multipliers), 1e-5) > exact


def test_steps_become_epochs():
    assert epoch_multipliers({Event(0.5, 3.0): 4, Event(0.5, 2.0): 2}) == [2.0, 3.0, 3.0]
    assert epoch_multipliers({Event(0.5, 3.0): 1}) == [3.0], "a part of an epoch counts as a whole one"
    per_step = {Event(0.25, 4.0 - 0.25 * t): 1 for t in range(8)}
    assert epoch_multipliers(per_step) == [2.25, 3.25], "an epoch costs what its smallest multiplier costs"
    assert sorted(epoch_multipliers({Event(0.5, 3.0): 2, Event(0.25, 2.0): 5})) == [2.0, 2.0, 3.0]
    assert EPOCHS.epsilon({}, 1e-5) == 0.0
    assert EPOCHS.sampling != "Poisson"


@pytest.mark.parametrize(("steps", "truncated"), [(500, False), (5, True)])
def test_tcdp_of_a_geometric_decay_is_in_closed_form(steps, truncated):
    rate, start, ratio = 0.01, 10.0, 0.999
    events = {Event(rate, start * ratio ** (t / 2)): 1 for t in range(steps)}
    rho = 13 * rate**2 / (2 * start**2) * (ratio**-steps - 1) / (1 / ratio - 1)
    omega = math.log(1 / rate) * start**2 * ratio ** (steps - 1) / 2  # of the last step, which has least noise
    assert (math.log(1e5) > (omega - 1) ** 2 * rho) == truncated
    expected = rho * omega + math.log(1e5) / (omega - 1) if truncated else rho + 2 * math.sqrt(rho * math.log(1e5))
    assert TRUNCATED.epsilon(events, 1e-5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.01, 4.0, 10_000), (0.05, 8.0, 2_000), (0.001, 3.0, 100)])
def test_tcdp_is_far_above_rdp(rate, multiplier, steps):
    events = {Event(rate, multiplier): steps}
    assert TRUNCATED.epsilon(events, 1e-5) > RenyiAccountant("classic").epsilon(events, 1e-5)


def test_tcdp_without_sampling_is_zcdp():
    assert TRUNCATED.epsilon({Event(1.0, 5.0): 10}, 1e-5) == zcdp_epsilon(10 / 50, 1e-5)
    assert TRUNCATED.epsilon({}, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("event", "words"), [(Event(0.2, 4.0), "sampling rate s <= 0.1"), (Event(0.01, 2.0), "rho = 1/.* <= 0.1")]
)
def test_tcdp_refuses_outside_its_conditions(event, words):
    with pytest.raises(InvalidArgument, match=words):
        TRUNCATED.epsilon({event: 1}, 1e-5)


def test_the_third_condition_of_tcdp_follows_from_the_others():
    worst = max(3 * rho * (2 - math.log2(rho)) for rho in (0.1 * k / 1000 for k in range(1, 1001)))
    assert worst < math.log(10)


@pytest.mark.parametrize("accountant", [EPOCHS, TRUNCATED])
def test_a_bad_delta_is_refused(accountant):
    with pytest.raises(InvalidArgument, match="delta"):
        accountant.epsilon({Event(0.01, 8.0): 1}, 1.0)
