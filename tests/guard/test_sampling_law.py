"""Who is in a batch, read off what is released.

Record i has the gradient e_i and the noise is switched off, so the released sum *is* the membership of the draw: a table of coins, one
row a step. The coins must fall with the declared q, independently of each other and of all other steps. Shuffled, fixed-size, repeated or
cached batches have another law. The data has 60 records and the declaration says 100: only the declaration may count.
"""

import random

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import apportion as ap
import runs
from apportion.curator import mechanisms

RECORDS, POPULATION, BATCH, STEPS = 60, 100, 30, 400
RATE = BATCH / POPULATION


def last_output(output, target):
    return output.sum()


def coins_of(tier, monkeypatch, *, seed=None, steps=STEPS):
    """(steps, records): who was in which batch."""
    table = []
    model = nn.Linear(RECORDS, 1, bias=False)
    data = (torch.eye(RECORDS), torch.zeros(RECORDS))

    def watched(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.register_step_pre_hook(lambda *_: table.append(model.weight.grad[0].double().numpy() * BATCH))
        return optimizer

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", lambda total, deviation, noise, divisor: total / divisor)
    options = {
        "budget": ap.Budget(epsilon=50.0, delta=1e-3, unit=ap.Record()),
        "population": POPULATION,
        "batch_size": BATCH,
        "steps": steps,
        "noise": ap.noise.Constant(20.0),
        "clip": ap.clip.Fixed(2.0),
        "seed": seed,
        "execution": ap.Execution(micro_batch=7),
    }
    if tier == "train":
        run = runs.train(model, last_output, data, lr=1e-9, optimizer=watched, **options)
    else:
        run = runs.make_private(model, watched(model.parameters(), 1e-9), data, loss_reduction="sum", **options)
        for x, _ in run.batches():
            run.model(x).sum().backward()
            run.optimizer.step()
    assert run.steps == steps == len(table) == len(list(run._session.account.ledger.events()))
    return np.array(table), run


@pytest.mark.parametrize("tier", ["train", "make_private"])
def test_batches_are_poisson_draws_with_the_declared_rate(tier, monkeypatch):
    coins, run = coins_of(tier, monkeypatch)
    np.testing.assert_allclose(coins, np.round(coins), atol=1e-5, err_msg="divided by something else than q·N")
    coins = np.round(coins)
    assert set(np.unique(coins)) <= {0.0, 1.0}, "a record stood in one batch twice"
    # The rate, to 5 %: 24,000 coins.
    assert stats.binomtest(int(coins.sum()), coins.size, RATE).pvalue > 1e-5
    assert stats.binomtest(int(coins.sum()), coins.size, 0.93 * RATE).pvalue < 1e-4
    assert stats.binomtest(int(coins.sum()), coins.size, 1.07 * RATE).pvalue < 1e-4
    assert {event.sample_rate for event in run._session.account.ledger.events()} == {RATE}
    # Batch sizes and the counts of single records vary as sums of independent coins do: neither fixed-size nor shuffled.
    for axis, tosses in ((1, RECORDS), (0, STEPS)):
        sums = coins.sum(axis)
        spread = ((sums - tosses * RATE) ** 2).sum() / (tosses * RATE * (1 - RATE))
        assert 1e-5 < stats.chi2.cdf(spread, len(sums)) < 1 - 1e-5, (
            f"sums along axis {axis} vary too little or too much"
        )
    centred = coins - RATE
    scale = RATE * (1 - RATE)
    for lag in (1, 2, round(1 / RATE), 2 * round(1 / RATE)):  # steps: also an epoch apart
        assert abs((centred[lag:] * centred[:-lag]).mean() / scale) < 5 / np.sqrt(coins[lag:].size), (
            f"steps {lag} apart"
        )
    for lag in (1, 7):  # records: neighbours, and a micro-batch apart
        correlation = (centred[:, lag:] * centred[:, :-lag]).mean() / scale
        assert abs(correlation) < 5 / np.sqrt(coins[:, lag:].size), f"records {lag} apart"
    assert len({row.tobytes() for row in coins}) == STEPS, "a batch came back"


def test_the_coins_of_a_private_run_cannot_be_reproduced(monkeypatch):
    tables = []
    for seed in (None, None, 5, 5, 6):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        tables.append(coins_of("train", monkeypatch, seed=seed, steps=10)[0])
    first, second, five, again, six = tables
    assert not np.array_equal(first, second), "a global generator tossed the coins"
    assert np.array_equal(five, again)
    assert not np.array_equal(five, six)
