"""The hand-written loop: same answers as `train`, and no way around the books."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, mse_loss

import apportion as ap
import runs
from apportion.curator import curator as curator_module
from apportion.curator import mechanisms
from apportion.curator.randomness import Randomness
from apportion.releases import ClippedSum

SMALL = {"population": 40, "sample_rate": 0.5, "steps": 5, "seed": 0}


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def private(model, data, budget, *, lr=0.5, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return runs.make_private(model, optimizer, data, budget=budget, **{**SMALL, **options})


def loop(run, loss_fn=cross_entropy):
    """The loop of the documentation. Returns the sizes of the batches it saw."""
    sizes = []
    for x, y in run.batches():
        sizes.append(len(y))
        run.optimizer.zero_grad()
        loss_fn(run.model(x), y).backward()
        run.optimizer.step()
    return sizes


@pytest.mark.parametrize("micro_batch", [1, 3, 7, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_it_trains_exactly_as_train_does(records, budget, micro_batch, reduction):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    second, data = copy.deepcopy(first), (records[0].double(), records[1])
    runs.train(first, cross_entropy, data, budget=budget, lr=0.5, clip=ap.clip.Decay(start=0.4), **SMALL)
    run = private(
        second,
        data,
        budget,
        clip=ap.clip.Decay(start=0.4),
        execution=ap.Execution(micro_batch=micro_batch),
        loss_reduction="sum" if reduction == "sum" else "mean",
    )
    loop(run, lambda outputs, y: cross_entropy(outputs, y, reduction=reduction))
    torch.testing.assert_close(weights(second), weights(first), rtol=1e-10, atol=1e-12)
    assert run.steps == 5


def test_recurrent_models_run_record_by_record(budget):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.output = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.output(self.recurrent(x)[0][:, -1])

    torch.manual_seed(0)
    first = Recurrent().double()
    second, data = copy.deepcopy(first), (torch.randn(12, 5, 3).double(), torch.randint(0, 2, (12,)))
    options = {**SMALL, "population": 12, "steps": 2}
    runs.train(first, cross_entropy, data, budget=budget, lr=0.5, **options)
    loop(private(second, data, budget, **options))
    torch.testing.assert_close(weights(second), weights(first), rtol=1e-10, atol=1e-12)


def test_the_step_waits_for_the_whole_logical_batch(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0, steps=1, execution=ap.Execution(micro_batch=16))
    seen = []
    for x, y in run.batches():
        before = weights(model).clone()
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        seen.append((len(y), torch.equal(weights(model), before)))
    assert seen == [(16, True), (16, True), (8, False)]


def test_empty_draws_are_completed_inside(budget):
    """Ten records at a rate where one draw in three is empty: every step is charged, noised and applied."""
    rate = 1 - (1 / 3) ** (1 / 10)
    steps = 60
    data = (torch.randn(10, 4), torch.randint(0, 2, (10,)))
    randomness = Randomness.seeded(0)
    draws = [int(randomness.next_draw().coins.coins(10, rate).sum()) for _ in range(steps)]
    empty = draws.count(0)
    assert 10 < empty < 30
    model = nn.Linear(4, 2)
    run = private(model, data, budget, population=10, sample_rate=rate, steps=steps)
    assert loop(run) == [size for size in draws if size]
    assert run.steps == steps == len(run.history)
    assert sum(run._session.account.ledger.counts().values()) == steps
    assert run.epsilon() <= 3.0


def test_an_empty_draw_moves_the_model(model, records, budget):
    before = weights(model).clone()
    run = private(model, records, budget, sample_rate=1e-15, steps=3, noise=ap.noise.Constant(1.0))
    assert loop(run) == []
    assert run.steps == 3
    assert (weights(model) != before).all()


def test_training_stops_at_the_budget_by_itself(model, records, budget):
    run = private(model, records, budget)
    loop(run)
    assert run.steps_left == 0
    with pytest.raises(ap.BudgetExhausted, match="5 steps are spent"):
        run.batches()
    with pytest.raises(ap.WrongOrder, match="no batch is open"):
        run.optimizer.step()
    assert run.steps == 5


def test_batches_of_an_epoch_at_a_time(model, records, budget):
    run = private(model, records, budget, steps=4, sample_rate=1.0)
    for epoch in (1, 2):
        for x, y in run.batches(steps=2):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
        assert run.steps == 2 * epoch


def test_a_loop_over_epochs(model, records, budget, tmp_path):
    run = private(model, records, budget, sample_rate=0.5, steps=4, out=tmp_path / "run")
    for epoch in (1, 2):
        for x, y in run.batches(epochs=1):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
        assert run.steps == 2 * epoch
    assert (tmp_path / "run" / "public" / "privacy.md").exists(), "a finished run is saved"
    with pytest.raises(ap.BudgetExhausted, match="batches.epochs=1."):
        run.batches(epochs=1)


def test_parameter_groups_keep_their_learning_rates(model, records, budget):
    first = copy.deepcopy(model)
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.5}]
    run = runs.make_private(model, torch.optim.SGD(groups, lr=1.0), records, budget=budget, **SMALL)
    loop(run)
    assert torch.equal(model[0].weight, first[0].weight)
    assert not torch.equal(model[2].weight, first[2].weight)
    assert run.history[0].learning_rate == (0.0, 0.5)


def test_a_scheduler_is_stepped_once_a_logical_step(model, records, budget):
    """Also after empty draws, and however many micro-batches a draw has: its course is public."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    run = runs.make_private(
        model,
        optimizer,
        records,
        budget=budget,
        scheduler=scheduler,
        execution=ap.Execution(micro_batch=7),
        **{**SMALL, "sample_rate": 0.03},
    )
    loop(run)
    assert [entry.learning_rate[0] for entry in run.history] == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_settings_that_change_inside_the_loop_are_refused(model, records, budget):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    run = runs.make_private(model, optimizer, records, budget=budget, **{**SMALL, "sample_rate": 1.0})
    with pytest.raises(ap.WrongOrder, match="scheduler="):
        for x, y in run.batches():
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            scheduler.step()


def test_settings_may_change_between_calls(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0, steps=2)
    for rate in (0.5, 0.1):
        run.optimizer.param_groups[0]["lr"] = rate
        for x, y in run.batches(steps=1):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
    assert [entry.learning_rate[0] for entry in run.history] == [0.5, 0.1]


# --- raw gradients never reach an optimiser -------------------------------------------------------------------------------


def test_the_original_optimizer_refuses_to_step_by_itself(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0)
    before = weights(model).clone()
    cross_entropy(model(records[0]), records[1]).backward()
    with pytest.raises(ap.WrongOrder, match="belongs to a private run"):
        run.optimizer.original.step()
    assert torch.equal(weights(model), before)


def test_a_parameter_added_to_the_optimizer_later_is_refused(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0)
    run.optimizer.original.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises((ap.InvalidArgument, ap.WrongOrder)):
        loop(run)


def test_a_trained_head_outside_the_model_is_refused(model, records, budget):
    head = nn.Linear(2, 2)
    run = private(model, records, budget, sample_rate=1.0)
    with pytest.raises(ap.UnsupportedModel, match="outside the model's parameters"):
        loop(run, lambda outputs, y: cross_entropy(head(outputs), y))
    assert head.weight.grad is None


def test_a_stale_gradient_of_a_frozen_parameter_is_not_applied(model, records, budget):
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    loop(runs.make_private(model, optimizer, records, budget=budget, **SMALL))
    assert torch.equal(model[0].weight, before)


def test_evaluation_inside_the_loop_uses_the_plain_model(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0)
    for x, y in run.batches():
        run.model.eval()
        assert run.model(records[0][:3]).shape == (3, 2)
        run.model.train()
        with torch.no_grad():
            run.model(records[0][:7])
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
    assert run.steps == 5


def test_a_nan_record_contributes_nothing(records, budget):
    def final(data):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        loop(private(model, data, budget, sample_rate=1.0, steps=2), lambda o, y: cross_entropy(o, y, reduction="none"))
        return weights(model)

    inputs, targets = records
    poisoned = inputs.clone()
    poisoned[-1] = math.nan
    torch.testing.assert_close(final((poisoned, targets)), final((inputs[:-1], targets[:-1])))


# --- mistakes in the loop -------------------------------------------------------------------------------------------------


def mistake_no_step(run, x, y):
    cross_entropy(run.model(x), y).backward()


def mistake_no_backward(run, x, y):
    run.model(x)
    run.optimizer.step()


def mistake_two_forwards(run, x, y):
    run.model(x)
    run.model(x)


def mistake_two_backwards(run, x, y):
    loss = cross_entropy(run.model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()


def mistake_two_steps(run, x, y):
    cross_entropy(run.model(x), y).backward()
    run.optimizer.step()
    run.optimizer.step()


def mistake_part_of_the_batch(run, x, y):
    run.model(x[:-1])


def mistake_other_records(run, x, y):
    run.model(torch.cat([x, x]))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (mistake_no_step, "left without private.optimizer.step.*Gradients are accumulated already"),
        (mistake_no_backward, "before each private.optimizer.step"),
        (mistake_two_forwards, "called twice"),
        (mistake_two_backwards, "twice on one batch"),
        (mistake_two_steps, "before each private.optimizer.step"),
        (mistake_part_of_the_batch, "the batch has 40"),
        (mistake_other_records, "the batch has 40"),
    ],
)
def test_a_loop_that_breaks_the_guarantee_is_stopped(model, records, budget, mistake, words):
    run = private(model, records, budget, sample_rate=1.0)
    with pytest.raises(ap.WrongOrder, match=words):
        for x, y in run.batches():
            mistake(run, x, y)


def test_a_forward_pass_outside_the_loop_is_stopped(model, records, budget):
    run = private(model, records, budget)
    with pytest.raises(ap.WrongOrder, match="no batch is open"):
        run.model(records[0])


@pytest.mark.parametrize(
    ("declared", "loss"),
    [
        ("mean", lambda o, y: cross_entropy(o, y, reduction="sum")),
        ("sum", cross_entropy),
        ("mean", lambda o, y: mse_loss(o[:, 0], y.float(), reduction="sum")),
        ("sum", lambda o, y: cross_entropy(o, y, reduction="none").mean()),
        ("mean", lambda o, y: cross_entropy(o, y) + cross_entropy(o, y, reduction="sum")),
    ],
)
def test_a_reduction_that_is_not_the_declared_one_is_refused(model, records, budget, declared, loss):
    run = private(model, records, budget, sample_rate=1.0, loss_reduction=declared)
    with pytest.raises(ap.InvalidArgument, match="loss_reduction"):
        loop(run, loss)


MIXING = {
    "class weights": lambda o, y: cross_entropy(o, y, weight=torch.tensor([1.0, 2.0])),
    "ignored targets": lambda o, y: cross_entropy(o, torch.where(torch.arange(len(y)) < 3, -100, y)),
    "wrong shape": lambda o, y: cross_entropy(o, y, reduction="none").reshape(-1, 2),
    "root mean square": lambda o, y: mse_loss(o[:, 0], y.float()).sqrt(),
    "logarithm of a mean": lambda o, y: mse_loss(o[:, 0], y.float()).log(),
    "norm": lambda o, y: (o[:, 0] - y.float()).norm(),
    "divided by a count": lambda o, y: cross_entropy(o, y, reduction="none").sum() / (y == 1).sum(),
    "divided by the size": lambda o, y: cross_entropy(o, y, reduction="none").sum() / len(y),
    "mean then sum": lambda o, y: (o - y.unsqueeze(1)).square().mean(0).sum(),
    "batchmean": lambda o, y: kl_div(o.log_softmax(1), torch.full_like(o, 0.5), reduction="batchmean"),
    "contrastive": lambda o, y: (o @ o.T).logsumexp(1),
    "standardised": lambda o, y: cross_entropy((o - o.mean(0)) / (o.std(0) + 1), y),
    "normalised by the total": lambda o, y: cross_entropy(o, y, reduction="none").softmax(0).square(),
}


@pytest.mark.parametrize("declared", ["mean", "sum"])
@pytest.mark.parametrize("name", MIXING)
def test_losses_that_mix_records_are_refused(model, records, budget, name, declared):
    before = weights(model).clone()
    with pytest.raises((ap.UnsupportedModel, ap.InvalidArgument), match="loss"):
        loop(private(model, records, budget, sample_rate=1.0, loss_reduction=declared), MIXING[name])
    assert torch.equal(weights(model), before), "an update was made"


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        lambda o, y: cross_entropy(o, y) + mse_loss(o[:, 0], y.float()),
        lambda o, y: -cross_entropy(o, y),
        lambda o, y: cross_entropy(o, y, weight=torch.tensor([1.0, 2.0]), label_smoothing=0.1, reduction="none"),
        lambda o, y: (
            0.5 * cross_entropy(o, y, reduction="none") + mse_loss(o[:, 0], y.float(), reduction="none").sqrt()
        ),
        lambda o, y: torch.nn.functional.binary_cross_entropy_with_logits(o[:, 0], y.float()),
        lambda o, y: (o - 1).square().sum(1).mean(),
    ],
)
def test_ordinary_losses_pass(model, records, budget, loss):
    loop(private(model, records, budget, sample_rate=1.0, steps=2), loss)


class Restless:
    """A badly behaved strategy: not frozen, and changed from outside while a batch is open."""

    threshold = 0.5

    def init(self, context):
        return None

    def propose(self, state, context):
        return (ClippedSum(self.threshold),)

    def observe(self, state, released):
        return None


def test_a_threshold_changed_inside_a_logical_batch_waits_for_the_next_one(model, records, budget, monkeypatch):
    """Clip and noise of one draw come from its one frozen request, whatever happens to the strategy meanwhile."""
    deviations, clips = [], []
    noise, sums = mechanisms.add_gaussian_noise, curator_module.clip_and_sum
    monkeypatch.setattr(
        mechanisms,
        "add_gaussian_noise",
        lambda t, deviation, *rest: deviations.append(deviation) or noise(t, deviation, *rest),
    )
    monkeypatch.setattr(
        curator_module, "clip_and_sum", lambda r, releases, *_: clips.append(releases[0].threshold) or sums(r, releases)
    )
    strategy = Restless()
    run = private(
        model, records, budget, sample_rate=1.0, steps=2, clip=strategy, execution=ap.Execution(micro_batch=20)
    )
    for number, (x, y) in enumerate(run.batches()):
        strategy.threshold = 10.0 + number
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
    multiplier = run.history[0].noise_multiplier * (1 + 1e-4)
    assert clips == [0.5, 0.5, 11.0, 11.0]
    assert deviations == pytest.approx([0.5 * multiplier] * 4 + [11.0 * multiplier] * 4)
    assert [entry.clip for entry in run.history] == [(0.5,), (11.0,)]


# --- one open iterator ------------------------------------------------------------------------------------------------------


def one_step(run, batch):
    x, y = batch
    cross_entropy(run.model(x), y).backward()
    run.optimizer.step()


def halves(model, records, budget, steps=4):
    """Every draw has all forty records, in two micro-batches."""
    return private(model, records, budget, sample_rate=1.0, steps=steps, execution=ap.Execution(micro_batch=20))


def test_a_second_iterator_is_refused_while_the_first_is_open(model, records, budget):
    """Rows of one draw would be added to the sum of another."""
    run = halves(model, records, budget)
    first = run.batches()
    one_step(run, next(first))
    with pytest.raises(ap.WrongOrder, match=r"another batches\(\) is open"):
        next(run.batches())
    for batch in first:  # which goes on as if nothing had happened
        one_step(run, batch)
    assert run.steps == 4


def test_two_iterators_side_by_side_are_refused_before_a_second_charge(model, records, budget):
    run = halves(model, records, budget)
    with pytest.raises(ap.WrongOrder, match="is open"):
        for one, _ in zip(run.batches(), run.batches(), strict=True):
            one_step(run, one)
    assert sum(run._session.account.ledger.counts().values()) == 1
    assert len(run.history) == 0


def test_iterators_that_were_not_begun_are_no_hindrance(model, records, budget):
    run = halves(model, records, budget)
    waiting = run.batches(steps=2)
    for batch in run.batches(steps=2):
        one_step(run, batch)
    for batch in waiting:
        one_step(run, batch)
    assert run.steps == 4


def test_an_iterator_that_is_begun_too_late_ends_with_the_plan(model, records, budget):
    run = halves(model, records, budget)
    waiting = run.batches()
    loop(run)
    assert list(waiting) == []
    assert run.steps == 4


def closed(run):
    batches = run.batches()
    one_step(run, next(batches))
    batches.close()


def broken_off(run):
    for batch in run.batches():
        one_step(run, batch)
        break


def raised(run):
    with pytest.raises(ZeroDivisionError):
        for batch in run.batches():
            one_step(run, batch)
            raise ZeroDivisionError


def raised_before_the_step(run):
    with pytest.raises(ZeroDivisionError):
        for x, y in run.batches():
            cross_entropy(run.model(x), y).backward()
            raise ZeroDivisionError


def left_by_mistake(run):
    with pytest.raises(ap.WrongOrder, match="left without"):
        for _ in run.batches():
            pass


@pytest.mark.parametrize("leave", [closed, broken_off, raised, raised_before_the_step, left_by_mistake])
def test_what_was_read_of_a_draw_that_was_left_reaches_no_other(model, records, budget, monkeypatch, leave):
    seen = []
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(
        mechanisms, "add_gaussian_noise", lambda total, *rest: seen.append(total.clone()) or right(total, *rest)
    )

    def totals(before):
        run = halves(copy.deepcopy(model), records, budget, steps=2)
        before(run)
        with pytest.raises(ap.WrongOrder, match="no batch is open"):
            run.optimizer.step()
        seen.clear()
        for batch in run.batches(steps=1):
            one_step(run, batch)
        return torch.cat([total.flatten() for total in seen])

    assert torch.equal(totals(leave), totals(lambda run: None))


@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_a_loss_of_a_batch_that_was_left_is_refused(model, records, budget, engine):
    run = private(model, records, budget, sample_rate=1.0, execution=ap.Execution(20, engine=engine))
    for x, y in run.batches():
        stale = cross_entropy(run.model(x), y)
        break
    for x, y in run.batches(steps=1):
        loss = cross_entropy(run.model(x), y)
        with pytest.raises(ap.WrongOrder, match="a batch that is over"):
            stale.backward()
        loss.backward()
        run.optimizer.step()
    assert len(run.history) == 1


def test_a_closure_is_refused(model, records, budget):
    run = private(model, records, budget, sample_rate=1.0)
    for x, y in run.batches(steps=1):
        cross_entropy(run.model(x), y).backward()
        with pytest.raises(ap.InvalidArgument, match="closure=.*another question.*without one"):
            run.optimizer.step(lambda: 0.0)
        run.optimizer.step()
    assert run.steps == 1


# --- schedulers -------------------------------------------------------------------------------------------------------------


class Timetable:
    """Not torch's, but it steps without an argument."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.param_groups[0]["lr"] /= 2

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class NeedsALoss(Timetable):
    def step(self, loss):
        pass


class Stepless:
    pass


ODD_SCHEDULERS = {
    "plateau": (torch.optim.lr_scheduler.ReduceLROnPlateau, "follows a score.*released or public"),
    "a step with a loss": (NeedsALoss, r"step\(\) without arguments"),
    "no step": (lambda optimizer: Stepless(), r"step\(\) without arguments"),
    "a number": (lambda optimizer: 0.1, r"step\(\) without arguments"),
    "a class": (lambda optimizer: torch.optim.lr_scheduler.StepLR, r"step\(\) without arguments"),
    "of another optimizer": (
        lambda optimizer: torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), 1),
        "another optimizer",
    ),
}


@pytest.mark.parametrize("kind", ODD_SCHEDULERS)
def test_an_odd_scheduler_is_refused_before_anything_is_charged(model, records, budget, kind, tmp_path):
    make, words = ODD_SCHEDULERS[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ap.InvalidArgument, match=f"scheduler=.*{words}"):
        runs.make_private(
            model, optimizer, records, budget=budget, scheduler=make(optimizer), out=tmp_path / "run", **SMALL
        )
    with pytest.raises(ap.InvalidArgument, match=f"scheduler=.*{words}"):
        runs.train(model, cross_entropy, records, budget=budget, lr=1.0, scheduler=make, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_train_takes_a_function_that_makes_the_scheduler(model, records, budget):
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
    with pytest.raises(ap.InvalidArgument, match="scheduler='StepLR'.*lambda optimizer"):
        runs.train(model, cross_entropy, records, budget=budget, lr=1.0, scheduler=scheduler, **SMALL)


@pytest.mark.parametrize("make", [Timetable, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)])
def test_whatever_steps_without_an_argument_is_accepted(model, records, budget, make):
    run = runs.train(model, cross_entropy, records, budget=budget, lr=1.0, scheduler=make, **{**SMALL, "steps": 2})
    assert [entry.learning_rate for entry in run.history] == [(1.0,), (0.5,)]
