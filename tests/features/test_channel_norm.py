"""The question before the first step: its price, its noise, its sensitivity, and that it is asked and charged once."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import apportion as ap
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.ledger import Ledger
from apportion.curator import mechanisms
from apportion.errors import ApportionError, BudgetExhausted, InvalidArgument
from apportion.event import Event
from apportion.models.channel_scaling import ChannelMoments
from apportion.releases import FLOAT32_HEADROOM
from apportion.training.storage import LEDGER

CHANNELS, POSITIONS, RECORDS = 3, 4, 40
NORM = ap.features.ChannelNorm(multiplier=9.0)
BUDGET = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
THRESHOLD = math.sqrt(CHANNELS)


def plan(norm=NORM, recipe="abadi", budget=BUDGET, **changes):
    settings = {"population": 50, "sample_rate": 0.5, "steps": 4, "count_usable": False} | changes
    return ap.plan(recipe, budget=budget, norm=norm, **settings)


def model(channels=CHANNELS, positions=POSITIONS):
    layer = ap.features.ChannelScaling(channels, positions)
    return nn.Sequential(layer, ap.features.linear_head(channels * positions, 2))


def features(records=RECORDS, channels=CHANNELS, positions=POSITIONS):
    generator = torch.Generator().manual_seed(0)
    shift, scale = torch.linspace(-1, 1, channels)[:, None], torch.linspace(0.2, 1, channels)[:, None]
    drawn = torch.randn(records, channels, positions, generator=generator) * scale + shift
    return drawn.flatten(1), torch.arange(records) % 2


def train(head, data, planned, **options):
    return ap.train(head, "cross-entropy", data, planned, **({"lr": 0.1, "progress": False} | options))


def with_record(data, row, label=0):
    return torch.cat([data[0], row[None]]), torch.cat([data[1], torch.tensor([label])])


@pytest.fixture
def calls(monkeypatch):
    """(exact sum, standard deviation, divisor, answer) of every noise call; the first is that of the question."""
    found, original = [], mechanisms.add_gaussian_noise

    def watched(exact_sum, standard_deviation, noise, divisor):
        exact = exact_sum.double().flatten().clone()
        answer = original(exact_sum, standard_deviation, noise, divisor)
        found.append((exact, standard_deviation, divisor, answer.double().flatten().clone()))
        return answer

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", watched)
    return found


def asked_of(calls, data, planned=None):
    """The noise call of the question about these records."""
    calls.clear()
    train(model(), data, planned or plan(steps=1), seed=1)
    return calls[0]


def test_price_is_composed_exactly_with_the_steps():
    with_norm, without = plan(spare=1), plan(norm=None, spare=1)
    price, delta = PrivacyLossAccountant(), BUDGET.delta
    assert with_norm.epsilon == price.epsilon(count_events([*with_norm.tokens, Event(1.0, 9.0)]), delta)
    assert 0.998 * BUDGET.epsilon <= with_norm.epsilon <= BUDGET.epsilon
    assert with_norm.multipliers[0] > without.multipliers[0]
    facts = with_norm.norm_facts()
    assert facts["epsilon_of_steps"] < with_norm.epsilon < facts["epsilon_alone"] + facts["epsilon_of_steps"]
    assert with_norm.spending()[0][1] > price.epsilon({with_norm.tokens[0]: 1}, delta) + 0.01
    assert "by one question about all records, with z = 9" in str(with_norm)
    again = ap.Plan.from_json(with_norm.to_json())
    assert again == with_norm != without
    assert again.norm == NORM
    with pytest.raises(InvalidArgument, match="its multipliers cost"):
        ap.Plan.from_json(with_norm.to_json().replace('"multiplier": 9.0', '"multiplier": 8.0'))


def test_a_given_multiplier_affords_fewer_steps_beside_it():
    recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(multiplier=2.0))
    counts = [
        plan(norm, recipe, sample_rate=0.05, steps=400).steps
        for norm in (None, ap.features.ChannelNorm(multiplier=2.0))
    ]
    assert counts[1] < counts[0]


def test_question_is_charged_first_and_once(tmp_path):
    planned = plan(spare=1)
    run = train(model(), features(), planned, storage=ap.Storage(tmp_path / "run"))
    with_ledger = Ledger.open(tmp_path / "run" / LEDGER)
    events = list(with_ledger.events())
    assert events[0] == Event(1.0, 9.0)
    assert events.count(Event(1.0, 9.0)) == 1
    assert len(events) == 1 + planned.steps
    assert with_ledger.runs()[0].plan == planned.declared
    with_ledger.close()
    statement = run.statement()
    assert statement["epsilon"] == planned.epsilon
    assert statement["draws_charged"] == 1 + planned.steps
    assert statement["norm"]["epsilon_alone"] == PrivacyLossAccountant().epsilon({Event(1.0, 9.0): 1}, 1e-5)
    assert "before the first step" in (tmp_path / "run" / "public" / "privacy.md").read_text(encoding="utf-8")


def test_constants_are_those_of_the_channels():
    data, head = features(4000), model()
    train(head, data, plan(ap.features.ChannelNorm(multiplier=2.0, bound=3.0), population=4000), seed=1)
    channels = data[0].unflatten(1, (CHANNELS, POSITIONS)).double()
    layer = head[0]
    assert bool(layer.known)
    torch.testing.assert_close(layer.mean.double(), channels.mean((0, 2)), atol=0.02, rtol=0)
    torch.testing.assert_close(layer.deviation.double(), channels.std((0, 2)), atol=0.03, rtol=0)


def test_noise_has_the_size_that_is_charged(calls):
    """5 % less would be seven standard errors away. No record can be used, so the answer is nothing but noise."""
    channels = 10_000
    broken = torch.full((3, channels), math.nan), torch.zeros(3, dtype=torch.int64)
    planned = plan(steps=1, population=7)
    train(model(channels, 1), broken, planned, seed=2)
    exact, deviation, divisor, answer = calls[0]
    assert not exact.any()
    assert divisor == 7
    allowed = NORM.multiplier * math.sqrt(channels) * (1 + FLOAT32_HEADROOM)
    assert deviation == pytest.approx(allowed, rel=1e-12)
    assert float((answer * 7).std()) == pytest.approx(allowed, rel=0.02)


@pytest.mark.parametrize("size", [2.0, 50.0, 1e6])
def test_one_record_moves_the_sum_by_the_threshold_and_no_more(calls, size):
    data = features()
    row = torch.linspace(-1, 1, CHANNELS * POSITIONS) * size + size
    before, after = asked_of(calls, data), asked_of(calls, with_record(data, row))
    assert after[1:3] == before[1:3]  # noise and divisor do not follow the records
    moved = float((after[0] - before[0]).norm())
    assert THRESHOLD * 0.999 < moved <= THRESHOLD * (1 + FLOAT32_HEADROOM)
    torch.testing.assert_close(after[3] - before[3], (after[0] - before[0]) / 50, atol=1e-6, rtol=0)


def test_a_small_record_counts_as_it_is(calls):
    data, row = features(), torch.linspace(-0.2, 0.3, CHANNELS * POSITIONS)
    before, after = asked_of(calls, data), asked_of(calls, with_record(data, row))
    expected = ChannelMoments(model()[0]).moments(row[None])[0].double()
    torch.testing.assert_close(after[0] - before[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("value", "label"), [(math.nan, 0), (math.inf, 0), (1e30, 0), (0.5, 7)])
def test_broken_records_contribute_nothing(calls, value, label):
    data, row = features(), torch.full((CHANNELS * POSITIONS,), 0.5)
    row[1] = value
    before, after = asked_of(calls, data), asked_of(calls, with_record(data, row, label))
    assert torch.equal(before[0], after[0])


def test_all_records_of_a_user_are_one_vector(calls):
    (inputs, labels), row = features(), torch.linspace(1, 9, CHANNELS * POSITIONS)
    owners = np.arange(RECORDS)

    def planned(ids):
        return plan(budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.User(ids=ids)), steps=1)

    before = asked_of(calls, (inputs, labels), planned(owners))
    more = torch.cat([inputs, row.repeat(5, 1)]), torch.cat([labels, labels[:5]])
    after = asked_of(calls, more, planned(np.concatenate([owners, np.full(5, 99)])))
    assert THRESHOLD * 0.999 < float((after[0] - before[0]).norm()) <= THRESHOLD * (1 + FLOAT32_HEADROOM)


def test_audit_replays_the_question():
    report = ap.audit.replay(model(), nn.functional.cross_entropy, features(), plan(), steps=2)
    assert report.ok
    assert report.largest_ratio > 0.99


def test_resumed_run_keeps_its_constants_and_asks_nothing(tmp_path):
    def stop(entry):
        if entry.step == 2:
            raise RuntimeError("the machine went down")

    folder, data, planned = tmp_path / "run", features(), plan(spare=2)
    first = model()
    with pytest.raises(RuntimeError, match="went down"):
        train(first, data, planned, storage=ap.Storage(folder, every=1), progress=stop)
    again = model()
    train(again, data, planned, storage=ap.Storage(folder, resume=True, every=1))
    assert torch.equal(first[0].mean, again[0].mean)
    assert torch.equal(first[0].deviation, again[0].deviation)
    with_ledger = Ledger.open(folder / LEDGER)
    assert list(with_ledger.events()).count(NORM.event()) == 1
    with_ledger.close()


def test_lost_answer_is_not_asked_for_again(tmp_path, monkeypatch):
    folder, data, planned = tmp_path / "run", features(), plan()
    with monkeypatch.context() as crashing:
        crashing.setattr(ap.features.ChannelScaling, "write", lambda *_: exit("killed"))
        crashing.setattr(ap.features.ChannelScaling, "forget", lambda *_: None)
        with pytest.raises(SystemExit):
            train(model(), data, planned, storage=ap.Storage(folder))
    with pytest.raises(InvalidArgument, match="its answer was lost in a crash"):
        train(model(), data, planned, storage=ap.Storage(folder, resume=True))
    with_ledger = Ledger.open(folder / LEDGER)
    assert list(with_ledger.events()) == [NORM.event()]
    with_ledger.close()


def test_question_cannot_be_charged_twice():
    from apportion.accounting.account import Account

    planned = plan()
    account = Account(BUDGET, planned.rule(), Ledger.create())
    account.charge_first(NORM.event())
    with pytest.raises(BudgetExhausted, match="was asked before"):
        account.charge_first(NORM.event())
    without = plan(norm=None)
    with pytest.raises(BudgetExhausted, match="never declared"):
        Account(BUDGET, without.rule(), Ledger.create()).charge_first(NORM.event())
    with pytest.raises(BudgetExhausted, match="asks for"):
        Account(BUDGET, planned.rule(), Ledger.create()).charge_first(Event(1.0, 8.99))


def test_a_new_run_asks_anew_and_a_run_without_a_question_keeps_known_constants():
    data, head = features(), model()
    train(head, data, plan(), seed=1)
    first = head[0].mean.clone()
    train(head, data, plan(norm=None), seed=2)
    assert torch.equal(first, head[0].mean)
    train(head, data, plan(), seed=3)
    assert not torch.equal(first, head[0].mean)


GROUPED = ap.Budget.of_groups({"a": (1.0, 0.5), "b": (2.0, 0.5)}, delta=1e-5, unit=ap.Record())
SUMMED = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.User(pooling="sum"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": "dp-agd"}, "follows released values"),
        ({"recipe": "yu-validation"}, "follows released values"),
        ({"budget": GROUPED}, "one price for everybody"),
        ({"budget": SUMMED}, "have no mean of a record"),
        ({"norm": ap.features.ChannelNorm(multiplier=0.5)}, "nothing of 3 is left for the steps"),
        ({"norm": ap.features.GroupNorm()}, "costs nothing"),
    ],
)
def test_what_no_rule_covers_is_refused(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        plan(**changes)


def test_model_and_plan_must_agree():
    data = features()
    with pytest.raises(InvalidArgument, match="the model has no layer that takes it"):
        train(ap.features.linear_head(12, 2), data, plan())
    with pytest.raises(InvalidArgument, match="the plan does not ask for them"):
        train(model(), data, plan(norm=None))
    odd = nn.Sequential(nn.Linear(12, 8), *model(channels=2))
    with pytest.raises(InvalidArgument, match=r"inputs of shape \(12,\)"):
        train(odd, data, plan())
    layers = nn.Sequential(ap.features.ChannelScaling(3, 4), *model())
    with pytest.raises(InvalidArgument, match="several layers"):
        train(layers, data, plan())
    private_loop = {"model": (head := model()), "optimizer": torch.optim.SGD(head.parameters(), 0.1)}
    with pytest.raises(InvalidArgument, match=r"asked by apportion\.train"):
        ap.make_private(**private_loop, data=data, plan=plan())
    with pytest.raises(ApportionError, match="priced for steps"):
        ap.tune(
            model,
            nn.functional.cross_entropy,
            ap.Public(data),
            plan(),
            space={"lr": [0.1, 0.2]},
            evaluate=ap.Public(data),
            trials=2,
        )
