"""However small the pieces are into which work is cut, the answer is the same: of every constant that cuts, and there is no other."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.accountant import PrivacyLossAccountant, RunningPrice
from apportion.accounting.buckets import bucket_multipliers
from apportion.accounting.ledger import Ledger
from apportion.accounting.renyi import RenyiAccountant
from apportion.accounting.run_filter import gaussian_cost
from apportion.accounting.verification import independent_price
from apportion.curator.clipping import clip_and_sum
from apportion.curator.gradients.engine import build_engine
from apportion.curator.mechanisms import add_gaussian_noise
from apportion.curator.randomness import Randomness, Stream
from apportion.curator.tree import map_tensors
from apportion.event import Event
from apportion.releases import ClippedSum, Frame
from apportion.training.evaluation import accuracy
from items import Items
from pieces import BOUNDS, HARMLESS, HARMLESS_INSIDE, PRICES, SMALL, WORK, changed, constants, hidden
from zoo import ZOO

USUAL = constants()
"""As they are in the sources: this line runs before a test makes them small."""
DELTA = 1e-5
NOISE = tuple(f"curator.randomness.{name}" for name in ("_SPARE", "FIELD_FROM_NUMBERS", "NOISE_CHUNK_NUMBERS"))


def test_every_number_that_could_cut_work_is_made_small_or_declared_harmless():
    assert set(USUAL) == set(SMALL) | set(HARMLESS), "a constant is new, or gone: tests/pieces.py says what to do"
    assert set(SMALL).isdisjoint(HARMLESS)
    assert set(hidden()) == set(HARMLESS_INSIDE), "a function has a number that deserves a name, or has it no longer"
    assert all(len(reason) > 3 for reason in (HARMLESS | HARMLESS_INSIDE).values())


def test_small_is_smaller_and_the_suite_runs_with_it():
    assert all(value < USUAL[name] for name, value in SMALL.items())
    assert {name: value for name, value in constants().items() if value != USUAL[name]} == WORK


# -- answers --


def _gradients(name):
    torch.manual_seed(7)
    model = ZOO[name].model().double()
    inputs, targets = map_tensors(lambda one: one.double() if one.is_floating_point() else one, ZOO[name].records(7))
    engine = build_engine(model, "one-pass, copying inputs")
    engine.record_losses(ZOO[name].loss, engine.forward(inputs), targets).sum().backward()
    return engine.gradients()


def _answers(name):
    """Norms, plain sums and framed sums of seven records."""
    found, generator = {}, torch.Generator().manual_seed(0)
    norms, gradients = _gradients(name).squared_norms(), _gradients(name)
    shapes = {key: gradients.rows(key, slice(0, 1)).shape[1:] for key in norms}
    centre = {key: 1e-3 * torch.randn(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    scale = {key: 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    frame = Frame(centre, scale)
    for kind, release in (("sum", ClippedSum(0.1)), ("framed", ClippedSum(1.0, tuple(norms), frame=frame))):
        found |= {f"{kind} {key}": value for key, value in clip_and_sum(_gradients(name), (release,)).items()}
    return found | {f"norms {key}": value for key, value in norms.items()}


@pytest.mark.usual_pieces
@pytest.mark.parametrize("name", ZOO)
def test_norms_and_sums_are_the_same_in_small_pieces(name):
    usual = _answers(name)
    with changed(WORK):
        small = _answers(name)
    assert small.keys() == usual.keys()
    for key, value in usual.items():
        torch.testing.assert_close(small[key], value, rtol=1e-8, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.usual_pieces
def test_a_run_is_the_same_in_small_pieces(records, model, budget):
    """Coins, micro-batches, pieces of records, clipping, noise, evaluation: all but which random word becomes which normal."""
    data = Items([(x.double(), y) for x, y in zip(*records, strict=True)])
    public = ap.Public((records[0].double(), records[1]))

    def run():
        trained = copy.deepcopy(model).double()
        options = {"population": 40, "sample_rate": 0.6, "steps": 4, "lr": 0.5, "seed": 3}
        result = runs.train(trained, cross_entropy, data, budget=budget, evaluate=public, **options)
        weights = torch.cat([one.detach().flatten() for one in trained.parameters()])
        return weights, [entry.test_accuracy for entry in result.history]

    usual = run()
    with changed({name: value for name, value in WORK.items() if name not in NOISE}):
        small = run()
    torch.testing.assert_close(small[0], usual[0], rtol=1e-10, atol=1e-12)
    assert small[1] == usual[1]


def test_every_number_of_every_piece_has_noise_of_its_own():
    """A thousand numbers in two hundred pieces: as if they had been one."""
    noise = Randomness.seeded(0).next_draw().noise
    exact = torch.arange(1000, dtype=torch.float64).reshape(8, 125)
    found = (add_gaussian_noise(exact.clone(), 3.0, noise, 2.0) * 2.0 - exact).flatten().numpy() / 3.0
    assert len(set(found.tolist())) == 1000
    assert stats.kstest(found, "norm").pvalue > 1e-3
    assert stats.kstest(found / 1.2, "norm").pvalue < 1e-3


@pytest.mark.usual_pieces
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 1000])
def test_normals_do_not_depend_on_how_many_are_made_at_a_time(count):
    usual = Stream(bytes(32)).normals(count)
    with changed({"curator.randomness._CHUNK": 64}):
        assert np.array_equal(Stream(bytes(32)).normals(count), usual)


@pytest.mark.parametrize("asked", [[3, 3, 3, 3], [1, 9, 2, 30], [50]])
def test_no_normal_is_served_twice(asked):
    """What was made beside what was asked for is used up before more is made, and never again."""
    stream = Randomness.seeded(0).next_draw().noise
    served = np.concatenate([stream.normals(count) for count in asked * 3])
    assert len(set(served.tolist())) == len(served) == 3 * sum(asked)


@pytest.mark.parametrize("size", [6, 7, 8, 20, 21, 22])
def test_accuracy_counts_every_record_of_every_batch(size):
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3), torch.randn(size, 4)
    right = model(inputs).argmax(1)
    for wrong in (0, size // 2, size - 1):
        targets = right.clone()
        targets[wrong] = (targets[wrong] + 1) % 3
        assert accuracy(model, ap.Public((inputs, targets))) == pytest.approx((size - 1) / size)


# -- books --


@pytest.mark.parametrize("charges", [1, 2, 3, 4, 7])
def test_a_ledger_is_read_to_its_end(charges, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.sqlite")
    events = [Event(0.1, 1.0 + step) for step in range(charges)]
    run = ledger.admit(events, ledger.price({}, ap.Budget(epsilon=1.0, delta=DELTA, unit=ap.Record())))
    for token, event in enumerate(events, 1):
        ledger.append(event, run, token)
    assert list(ledger.charges(run)) == list(enumerate(events, 1))
    assert list(ledger.events()) == events
    assert len(list(ledger.rows())) == charges + 2
    assert ledger.verify() is None


# -- prices --

PLANS = {
    "constant": {Event(0.02, 1.1): 200},
    "decaying": {Event(0.02, 0.9 + 0.004 * k): 2 for k in range(60)},
    "two rates": {Event(rate, 1.0 + 0.01 * k): 1 for rate in (0.01, 0.05) for k in range(30)},
    "loud": {Event(0.5, 0.35): 4},
}


def _price(plan):
    running = RunningPrice(plan, DELTA)
    for event, times in plan.items():
        for _ in range(times):
            running.add(event)
        running.epsilon()
    return PrivacyLossAccountant().epsilon(plan, DELTA), running.epsilon()


@pytest.mark.usual_pieces
@pytest.mark.parametrize("name", PRICES)
def test_prices_are_the_same_in_small_pieces(name):
    plans = [PLANS[one] for one in ("decaying", "loud")]
    with changed({}):
        usual = [_price(plan) for plan in plans]
    with changed({name: PRICES[name]}):
        small = [_price(plan) for plan in plans]
    assert np.array(small) == pytest.approx(np.array(usual), rel=1e-6)


@pytest.mark.usual_pieces
@pytest.mark.parametrize(
    "name", [one for one in BOUNDS if one.startswith(("accounting.grid", "accounting.interpolation"))]
)
@pytest.mark.parametrize("plan", PLANS)
def test_prices_by_less_exact_work_are_no_lower(name, plan):
    usual = PrivacyLossAccountant().epsilon(PLANS[plan], DELTA)
    with changed({name: BOUNDS[name]}):
        small = PrivacyLossAccountant().epsilon(PLANS[plan], DELTA)
    assert small >= usual * (1 - 2e-4), "the grids differ, and with them the last digits"
    assert small < math.inf


@pytest.mark.usual_pieces
@pytest.mark.parametrize("varied", ["multipliers", "rates"])
def test_interpolated_plans_count_repetitions_and_rates(varied):
    """Some steps three times, others once; with rates that all differ, each lies between two nodes."""
    plan = {
        Event(0.02 if varied == "multipliers" else 0.01 * 1.02**k, 1.0 + 0.013 * k): 1 + 2 * (k % 2) for k in range(6)
    }
    exact = PrivacyLossAccountant().epsilon(plan, DELTA)
    with changed({"accounting.interpolation.EXACT": 3}):
        assert exact * (1 - 2e-4) <= PrivacyLossAccountant().epsilon(plan, DELTA) <= exact * 1.02


@pytest.mark.usual_pieces
def test_comparisons_by_less_exact_work_are_no_lower():
    plan, single = {Event(0.02, 1.0 + 0.0025 * k): 2 for k in range(12)}, PLANS["constant"]
    renyi, cost = RenyiAccountant().epsilon(plan, DELTA), gaussian_cost(single, 1e-8).main
    with changed({"accounting.renyi._FEW": 2}):
        assert renyi * (1 - 1e-12) <= RenyiAccountant().epsilon(plan, DELTA) <= renyi * 1.01
    for name in ("_POINTS", "_CURVES"):
        name = f"accounting.run_filter.{name}"
        with changed({name: BOUNDS[name]}):
            assert gaussian_cost(single, 1e-8).main >= cost * (1 - 1e-9)


@pytest.mark.usual_pieces
def test_fewer_buckets_bracket_the_price_more_widely():
    plan = {Event(0.1, 1.0 + 0.1 * k): 1 for k in range(7)}
    exact = PrivacyLossAccountant().epsilon(plan, DELTA)
    assert bucket_multipliers(plan) == plan
    with changed({"accounting.buckets.MOST": BOUNDS["accounting.buckets.MOST"]}):
        assert len(bucket_multipliers(plan)) <= BOUNDS["accounting.buckets.MOST"] < len(plan)
        price = independent_price(plan, DELTA)
    assert price.lowest < exact < price.highest
