"""The five methods that decide by what was released, in whole runs: prices, order of events, crashes, loops of one's own, combinations."""

import functools
import json
import math
import os
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import ConcentratedFilter, FixedPlan, Multiset, charge
from apportion.audit import check_strategy
from apportion.compare.networks import build
from apportion.curator import mechanisms
from apportion.curator.curator import Curator, Draw
from apportion.curator.records import Records
from apportion.event import Event
from apportion.releases import FirstGain, Line, LowestLoss
from apportion.request import Released, Request
from apportion.strategies.roles import AskGradient
from apportion.training import checkpoint
from apportion.training.evaluation import accuracy
from apportion.training.packing import digest, pack
from apportion.training.run import Run
from apportion.training.session import Session
from suites import thinned

LOSS = nn.CrossEntropyLoss()
METHODS = ("yu-validation", "fay-adaptive", "adadp", "dp-agd", "noisy-btls")
FILTERED = ("fay-adaptive", "dp-agd", "noisy-btls")
BUDGET = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
every_method = pytest.mark.parametrize("name", METHODS)


@functools.cache
def planned(recipe, steps=10, rate=0.25, epsilon=3.0, spare=0):
    budget = replace(BUDGET, epsilon=epsilon)
    return ap.plan(recipe, budget=budget, population=40, sample_rate=rate, steps=steps, spare=spare)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def train(plan, records, model=None, **options):
    options = {"lr": 0.5, "validation": ap.Public(records), "progress": False} | options
    return ap.train(model or make_model(), LOSS, records, plan, **options)


def events_of(run):
    session = run._session
    return list(session.account.ledger.events(session.account.run))


def require_within(plan, events):
    """The events fit into a new copy of the plan's rule, one after the other, and their own price is below the promise."""
    rule = plan.rule()
    for step, event in enumerate(events, start=1):
        charge(rule, event, min(step, plan.steps))
    if plan.sampling.sample_rate < 1 and not any(event.choices for event in events):  # which PLD prices higher
        assert PrivacyLossAccountant().epsilon(count_events(events), plan.budget.delta) <= plan.budget.epsilon


# --- strategies of one's own -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spender:
    """Noise that falls with every release: a `FeedbackNoise`."""

    multiplier: float | None = None

    def init(self, context):
        return 0

    def choose(self, state, context):
        return 0.9**state

    def observe(self, state, released):
        return state + 1


@dataclass(frozen=True)
class Alternating:
    """Two levels, the order of which follows the sign of what was released: a `MultisetNoise`."""

    multiplier: float | None = None

    def levels(self, steps):
        return (1.0, 0.5) * (steps // 2)

    def init(self, context):
        return {"left": [context.steps // 2] * 2, "wanted": 0}

    def choose(self, state, context):
        return (1.0, 0.5)[self._current(state)]

    def observe(self, state, released):
        current = self._current(state)
        left = [count - (level == current) for level, count in enumerate(state["left"])]
        return {"left": left, "wanted": int(float(next(iter(released.gradient.values())).sum()) > 0)}

    def _current(self, state):
        return state["wanted"] if state["left"][state["wanted"]] else 1 - state["wanted"]


@dataclass(frozen=True)
class Shrinking:
    """Step sizes 1/t: a `SteeringUpdate`."""

    draws = 1

    def init(self, parameters, learning_rate):
        return {"rate": learning_rate, "number": 1}

    def learning_rate(self, state):
        return state["rate"] / state["number"]

    def move(self, state, released, parameters):
        rate = self.learning_rate(state)
        moved = {name: value - rate * released.gradient[name] for name, value in parameters.items()}
        return {**state, "number": state["number"] + 1}, moved


@dataclass(frozen=True)
class TwoChoices:
    """A gradient, then one of two steps along it: an `AskingUpdate`."""

    grid: tuple[float, ...] = (0.0, 1.0)
    draws = 1

    def init(self, parameters, learning_rate):
        return {"rate": learning_rate, "gradient": None}

    def learning_rate(self, state):
        return state["rate"]

    def ask(self, state, context):
        if state["gradient"] is None:
            return AskGradient()
        return LowestLoss(Line(state["gradient"], self.grid), 2.0, 1 / context.noise_multiplier)

    def reference(self, events):
        return events

    def move(self, state, released, parameters):
        if state["gradient"] is None:
            return {**state, "gradient": dict(released.gradient)}, None
        step = state["rate"] * self.grid[released.selected[0]]
        moved = {name: value - step * state["gradient"][name] for name, value in parameters.items()}
        return {**state, "gradient": None}, moved


OWN = {"feedback": Spender(), "multiset": Alternating(), "steering": Shrinking(), "asking": TwoChoices()}


# --- what is asked, and when -------------------------------------------------------------------------------------------------------------


class Watch:
    """Every request and its answer, and the weights around it."""

    def __init__(self, monkeypatch):
        self.requests, self.released, self.before, self.after = [], [], [], []
        apply = Session.apply

        def watched(session, released):
            self.requests.append(released.request)
            self.released.append(released)
            self.before.append({name: value.detach().clone() for name, value in session.model.named_parameters()})
            entry = apply(session, released)
            self.after.append({name: value.detach().clone() for name, value in session.model.named_parameters()})
            return entry

        monkeypatch.setattr(Session, "apply", watched)


@every_method
def test_what_is_charged_is_what_was_asked(name, records, monkeypatch):
    watch = Watch(monkeypatch)
    run = train(planned(name), records)
    assert events_of(run) == [request.event() for request in watch.requests]
    require_within(planned(name), events_of(run))
    assert run.epsilon() <= 3.0
    assert (run.epsilon() == 3.0) == (name in FILTERED), "a filter promises its budget, whatever was spent"


def test_the_noise_of_a_step_follows_the_release_before_it(records, monkeypatch):
    watch = Watch(monkeypatch)
    plan = planned("fay-adaptive", rate=0.5, epsilon=20.0)
    train(plan, records)
    multipliers = [request.noise_multiplier for request in watch.requests]
    assert multipliers[0] == plan.scale
    assert len(set(multipliers)) > 3
    for released, following in zip(watch.released, multipliers[1:], strict=False):
        request = released.request
        deviation = request.standard_deviation(request.sums[0]) / request.expected_batch_size
        numbers = sum(value.numel() for value in released.gradient.values())
        signal = max(
            0.0,
            sum(float(value.double().square().sum()) for value in released.gradient.values()) - numbers * deviation**2,
        )
        wanted = request.noise_multiplier * math.sqrt(signal / (numbers * deviation**2)) / plan.scale
        assert following == pytest.approx(plan.scale * min(max(wanted, 0.5), 4.0))


def test_a_request_is_fixed_before_its_coins(records, monkeypatch):
    """Everything that prices a batch is decided before it is drawn, and is not decided again while it is open."""
    order = []
    choose, opened = ap.noise.AdaptivePrivacyUtility.choose, Curator.open
    monkeypatch.setattr(
        ap.noise.AdaptivePrivacyUtility, "choose", lambda *given: order.append("choose") or choose(*given)
    )
    observe = ap.noise.AdaptivePrivacyUtility.observe
    monkeypatch.setattr(
        ap.noise.AdaptivePrivacyUtility, "observe", lambda *given: order.append("observe") or observe(*given)
    )

    def watched(self, request):
        order.append("coins")
        return opened(self, request)

    monkeypatch.setattr(Curator, "open", watched)
    train(planned("fay-adaptive"), records)
    told = "".join({"choose": "", "coins": "c", "observe": "o"}[one] for one in order)
    told = told[told.index("c") :]
    assert set(told.split("co")) == {""}, "an answer is seen after its coins, and before the next ones"
    for index, one in enumerate(order):
        if one == "coins":
            assert order[index + 1] == "observe", "nothing is chosen between the coins and the answer"


def test_adadp_takes_two_charged_draws_for_every_step(records):
    plan = planned("adadp")
    run = train(plan, records)
    events = events_of(run)
    assert len(events) == run.steps == plan.steps == 2 * (plan.steps // 2)
    assert set(events) == set(plan.tokens)
    rates = [entry.learning_rate[0] for entry in run.history]
    assert all(first == before for first, before in zip(rates[2::2], rates[1::2], strict=False)), (
        "η moves at every second draw"
    )
    assert run.statement()["draws_charged"] == plan.steps


def test_the_second_draw_of_adadp_has_a_batch_of_its_own(records, monkeypatch):
    batches = []
    read = Records.read

    def watched(self, members, *rest):
        batches.append(tuple(members.tolist()))
        return read(self, members, *rest)

    monkeypatch.setattr(Records, "read", watched)
    train(planned("adadp"), records)
    pairs = list(zip(batches[::2], batches[1::2], strict=True))
    assert all(first != second for first, second in pairs)


def test_a_run_of_rejected_steps_leaves_the_weights_bit_for_bit(records, monkeypatch):
    watch = Watch(monkeypatch)
    model = make_model()
    start = digest(dict(model.state_dict()))
    run = train(planned(ap.Recipe(update=ap.update.AdaDP(tolerance=1e-12))), records, model)
    assert digest(dict(model.state_dict())) == start
    assert all(digest(one) != digest(watch.before[0]) for one in watch.after[::2]), (
        "the second gradient is asked for at θ_half"
    )
    assert run.history[-1].learning_rate[0] == pytest.approx(0.5 * 0.9**5)


@pytest.fixture
def noiseless(monkeypatch):
    """Mechanisms as with budgets without bounds."""
    monkeypatch.setattr(mechanisms, "add_gaussian_noise", lambda total, deviation, noise, divisor: total / divisor)
    monkeypatch.setattr(mechanisms, "noisy_argmin", lambda totals, release, noise: int(totals.argmin()))

    def first(gains, release, noise):
        above = (gains >= 0).nonzero()
        return int(above[0]) if len(above) else None

    monkeypatch.setattr(mechanisms, "above_threshold", first)


def mean_loss(weights, records):
    model = make_model()
    model.load_state_dict(weights)
    losses = nn.functional.cross_entropy(model(records[0]), records[1], reduction="none")
    return float(losses.detach().double().clamp(0, 3).mean())


def test_without_noise_dp_agd_takes_the_best_step_of_its_grid(records, monkeypatch, noiseless):
    watch = Watch(monkeypatch)
    run = train(planned(ap.Recipe(clip=ap.clip.Fixed(100.0), update=ap.update.DPAGD()), rate=1.0), records, lr=2.0)
    taken = 0
    for released, before, after in zip(watch.released, watch.before, watch.after, strict=True):
        if not released.request.selections:
            assert digest(before) == digest(after)
            continue
        line = released.request.selections[0].line
        losses = [
            mean_loss({name: value - size * line.direction[name] for name, value in before.items()}, records)
            for size in line.step_sizes
        ]
        best = line.step_sizes[losses.index(min(losses))]
        assert all(torch.allclose(after[name], before[name] - best * line.direction[name]) for name in before)
        taken += best > 0
    assert taken >= 3
    assert mean_loss(watch.after[-1], records) < mean_loss(watch.before[0], records) - 0.1
    assert [entry.selected for entry in run.history[:2]] == [None, run.history[1].learning_rate[0]]


def test_without_noise_noisy_btls_is_armijo_backtracking(records, monkeypatch, noiseless):
    """g̃ is the gradient, and α·η·‖g‖² is asked for but for what is believed to be noise in it, which is tiny at ε = 10⁶."""
    watch = Watch(monkeypatch)
    plan = planned(
        ap.Recipe(clip=ap.clip.Fixed(10.0), update=ap.update.NoisyBTLS(loss_bound=50.0)), rate=1.0, epsilon=1e6
    )
    train(plan, records, lr=8.0)
    rates = []
    for number, released in enumerate(watch.released):
        if not released.request.selections:
            continue
        before = watch.before[number]
        model = make_model()
        model.load_state_dict(before)
        loss = LOSS(model(records[0]), records[1])
        gradient = dict(zip(before, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        power = sum(float(value.double().square().sum()) for value in gradient.values())

        def gain(rate, model=model, before=before, gradient=gradient, loss=loss):
            model.load_state_dict({name: value - rate * gradient[name] for name, value in before.items()})
            return float(loss.detach()) - float(LOSS(model(records[0]), records[1]).detach())

        rate = next((rate for rate in (8.0 * 0.5**i for i in range(8)) if gain(rate) >= 0.1 * rate * power), 0.0)
        moved = {name: value - rate * gradient[name] for name, value in before.items()}
        assert all(torch.allclose(watch.after[number][name], moved[name], atol=1e-5) for name in moved)
        rates.append(rate)
    assert len(rates) >= 4
    assert all(rates)


# --- filters end runs --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_growing_budgets_end_at_the_filter_and_not_beyond(records, rate, monkeypatch):
    """If to stay is always best, the budget of a gradient grows until the next one does not fit."""
    monkeypatch.setattr(mechanisms, "noisy_argmin", lambda totals, release, noise: 0)
    recipe = ap.Recipe(update=ap.update.DPAGD(growth=0.5))
    plan = planned(recipe, steps=40, rate=rate)
    run = train(plan, records)
    events = events_of(run)
    assert 0 < len(events) == run.steps < plan.steps, "it ended before its last step"
    require_within(plan, events)
    multipliers = [event.noise_multiplier for event in events if not event.choices]
    assert multipliers[-1] < plan.scale < multipliers[1], "top-ups are cheap at first, and grow"
    if rate == 1.0:
        rule = plan.rule()
        spent = sum(rule.cost(event) for event in events)
        assert isinstance(rule, ConcentratedFilter)
        assert 0.5 * rule.total < spent <= rule.total
    assert run.history[-1].epsilon == run.epsilon() == 3.0
    with pytest.raises(ap.BudgetExhausted):  # what comes next does not fit
        require_within(plan, [*events, run._session.next_request().event()])


def test_a_filter_that_is_exhausted_leaves_no_step_to_a_loop(records):
    plan = planned(ap.Recipe(noise=Spender()), steps=30, rate=0.25)
    private = private_run(plan, records)
    taken = loop(private, records)
    assert 0 < taken < plan.steps
    assert private.steps_left == 0
    with pytest.raises(ap.BudgetExhausted, match=f"{taken} steps are spent, all that the plan affords"):
        private.batches()


def test_a_run_that_a_filter_ended_has_no_key(records, tmp_path):
    plan = planned(ap.Recipe(noise=Spender()), steps=30)
    storage = ap.Storage(tmp_path / "run", recovery="exact", every=4)
    run = train(plan, records, storage=storage)
    assert 0 < run.steps < plan.steps
    assert not (tmp_path / "run" / "secret" / "key").exists()
    again = train(plan, records, storage=replace(storage, resume=True))
    assert again.steps == run.steps
    assert len(events_of(again)) == run.steps


def test_a_plan_of_a_filter_promises_its_budget():
    for name in FILTERED:
        assert planned(name).epsilon == 3.0
        assert planned(name).filtered
    assert isinstance(planned("yu-validation").rule(), Multiset)
    assert isinstance(planned("adadp").rule(), FixedPlan)


# --- public data -------------------------------------------------------------------------------------------------------------------------


def test_noise_follows_accuracy_on_the_public_data_alone(records, monkeypatch):
    """Public data on which the model is always right, or never: the private records are the same."""
    multipliers = {}
    for label, rising in (("rising", True), ("constant", False)):
        calls = []

        validation = ap.Public(records)

        def measured(model, public, rising=rising, calls=calls, validation=validation):
            assert public is validation
            calls.append(public)
            return 0.09 * len(calls) if rising else 0.0

        with monkeypatch.context() as patch:
            patch.setattr("apportion.training.session.accuracy", measured)
            run = train(planned("yu-validation"), records, validation=validation)
        multipliers[label] = [entry.noise_multiplier for entry in run.history]
        assert len(calls) == 10
    scale = planned("yu-validation").scale
    order = {round(scale * 0.7**level, 9): level for level in range(4)}
    levels = {label: [order[round(value, 9)] for value in found] for label, found in multipliers.items()}
    assert levels == {"rising": [0, 0, 0, 0, 1, 1, 1, 2, 2, 3], "constant": [0, 1, 2, 3, 2, 1, 1, 0, 0, 0]}


def test_missing_or_private_validation_data_is_refused_before_a_record_is_read(records):
    class Unread(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 40

        def __getitem__(self, index):
            Unread.reads += index > 0  # the first one's shape is an example
            return records[0][index], records[1][index]

    plan = planned("yu-validation")
    with pytest.raises(ap.InvalidArgument, match=r"^validation=None: Validation chooses the noise by the accuracy"):
        ap.train(make_model(), LOSS, Unread(), plan, lr=0.1, progress=False)
    with pytest.raises(
        ap.InvalidArgument, match=r"^validation=.tuple.: a score on private records is an un-noised read"
    ):
        ap.train(make_model(), LOSS, Unread(), plan, lr=0.1, validation=records, progress=False)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ap.InvalidArgument, match=r"^validation=None"):
        ap.make_private(model, optimizer, Unread(), plan)
    with pytest.raises(ap.InvalidArgument, match=r"^validation=.tuple."):
        ap.make_private(model, optimizer, Unread(), plan, validation=records)
    assert Unread.reads == 0


@pytest.mark.parametrize(
    ("door", "argument"), [("train", "evaluate"), ("train", "validation"), ("make_private", "validation")]
)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.randn(0, 4), torch.zeros(0, dtype=torch.long)), "positive number of rows"),
        ((torch.randn(5, 7), torch.zeros(5, dtype=torch.long)), "the model fails on this data"),
        ((torch.randn(5, 4), torch.randn(5, 2)), "accuracy needs outputs"),
        (({"x": torch.randn(5, 4)}, torch.zeros(5, dtype=torch.long)), "the model fails on this data"),
    ],
    ids=["empty", "other shape", "no classes", "other names"],
)
def test_public_data_that_cannot_be_measured_is_refused_by_its_name(door, argument, data, words, records):
    """Before anything is charged, and the model's training mode is as before."""
    model, plan = make_model(), planned("yu-validation")
    given = {"validation": ap.Public(records)} | {argument: ap.Public(data)}
    with pytest.raises(ap.InvalidArgument, match=rf"^{argument}=.*{words}"):
        if door == "train":
            ap.train(model, LOSS, records, plan, lr=0.1, progress=False, **given)
        else:
            ap.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), records, plan, **given)
    assert model.training


@pytest.mark.parametrize("name", ["dp-agd", "noisy-btls"])
def test_a_run_too_short_to_move_is_refused(name, records):
    with pytest.raises(ap.InvalidArgument, match=r"^steps=1: the weights move after two draws"):
        planned(name, steps=1)
    assert train(planned(name, steps=2), records).statement()["draws_charged"] == 2


def test_a_run_whose_first_draw_does_not_fit_is_refused_and_leaves_nothing(records, tmp_path):
    recipe = replace(ap.recipes.fay_adaptive(), noise=ap.noise.AdaptivePrivacyUtility(least=0.02, most=0.02))
    plan = ap.plan(recipe, budget=BUDGET, population=40, sample_rate=0.25, steps=10)
    with pytest.raises(ap.InvalidArgument, match=r"first draw does not fit into epsilon=3 under the weighted Rényi"):
        train(plan, records, storage=ap.Storage(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# --- optimisers --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adadp", "dp-agd", "noisy-btls"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "momentum"},
        {"optimizer": "adam"},
        {"optimizer": functools.partial(torch.optim.SGD, weight_decay=0.1)},
        {"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)},
    ],
    ids=["momentum", "adam", "weight decay", "scheduler"],
)
def test_what_would_contradict_a_steering_update_is_refused(name, wrong, records):
    plan = planned(name)
    kind = type(plan.recipe.update).__name__
    argument = "scheduler" if "scheduler" in wrong else "optimizer"
    with pytest.raises(ap.InvalidArgument, match=rf"^{argument}=.*{kind} chooses the step sizes.*optimizer=.sgd"):
        train(plan, records, **wrong)


@pytest.mark.parametrize("name", ["yu-validation", "fay-adaptive"])
def test_noise_that_follows_releases_goes_with_any_optimiser(name, records):
    for optimizer in ("momentum", "adam"):
        assert train(planned(name), records, optimizer=optimizer, lr=0.01).epsilon() <= 3.0


# --- loops of one's own ------------------------------------------------------------------------------------------------------------------


def private_run(plan, records, seed=None):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return ap.make_private(model, optimizer, records, plan, validation=ap.Public(records), seed=seed)


def loop(private, records):
    taken = 0
    while private.steps_left:
        for inputs, targets in private.batches(steps=3):
            private.optimizer.zero_grad()
            LOSS(private.model(inputs), targets).backward()
            private.optimizer.step()
        assert private.steps > taken
        taken = private.steps
    return taken


@pytest.mark.parametrize("name", ["adadp", "yu-validation", "fay-adaptive"])
def test_a_loop_of_ones_own_does_what_train_does(name, records):
    plan = planned(name)
    private = private_run(plan, records, seed=3)
    loop(private, records)
    run = train(plan, records, seed=3)
    assert private.steps == run.steps
    for ours, theirs in zip(private.model.module.parameters(), run.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert [entry.learning_rate for entry in private.history] == [
        pytest.approx(entry.learning_rate, rel=1e-4) for entry in run.history
    ]


@pytest.mark.parametrize(("name", "kind"), [("dp-agd", "DPAGD"), ("noisy-btls", "NoisyBTLS")])
def test_a_loop_of_ones_own_cannot_answer_questions_about_losses(name, kind, records):
    with pytest.raises(
        ap.InvalidArgument, match=rf"^plan='{name}': {kind} also asks for losses.*apportion.train, or .*adadp"
    ):
        private_run(planned(name), records)


# --- plans as files, command line, experiments -------------------------------------------------------------------------------------------


@every_method
def test_a_plan_survives_its_file(name):
    plan = planned(name)
    assert ap.Plan.from_json(plan.to_json()) == plan
    assert type(ap.Plan.from_json(plan.to_json()).rule()) is type(plan.rule())


def test_a_file_cannot_promise_less_than_its_filter():
    content = json.loads(planned("dp-agd").to_json())
    content["epsilon"] = 2.0
    with pytest.raises(ap.InvalidArgument, match="its multipliers cost ε = 3"):
        ap.Plan.from_json(json.dumps(content))
    content["epsilon"] = 3.0
    content["multipliers"] = [[0.5 * z, times] for z, times in content["multipliers"]]
    with pytest.raises(ap.InvalidArgument, match="its reference run does not fit into its filter"):
        ap.Plan.from_json(json.dumps(content))


def run_command(*arguments):
    from apportion.cli.main import main

    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


QUICK = ("--data", "digits", "--model", "linear", "--sample-rate", "0.1", "--steps", "4", "--lr", "1")
STATED = ("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437")


def test_the_command_line_takes_settings_of_the_update(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        run_command(
            "train", *QUICK, *STATED, "--recipe", "adadp", "--set", "update.tolerance=0.5", "--json", "--out", "run"
        )
        == 0
    )
    shown = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert shown["epsilon"] <= 3
    assert shown["draws"] == 4
    kept = json.loads((tmp_path / "run" / "public" / "plan.json").read_text())
    assert kept["recipe"]["update"] == {"kind": "AdaDP", **vars(ap.update.AdaDP(tolerance=0.5))}
    assert run_command("train", *QUICK, *STATED, "--recipe", "adadp", "--set", "update.tolerance=0") == 2
    assert "update.tolerance=0" in capsys.readouterr().err


def test_an_experiment_file_compares_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'data = "digits"\nmodel = "linear"\nepsilon = 3.0\ndelta = 1e-5\nunit = "record"\npopulation = 1437\n'
        "sample_rate = 0.1\nsteps = 10\nlr = 1.0\nseeds = [0]\n"
        '[[recipe]]\nname = "adadp"\nupdate = { tolerance = 0.5, exponent = 1.0 }\n'
        '[[recipe]]\nname = "dp-agd"\nupdate = { candidates = 5 }\n'
        '[[recipe]]\nname = "yu-validation"\nnoise = { counts = [2, 1], warmup = 1 }\n'
    )
    assert run_command("compare", "mine.toml", "--out", "out") == 0
    found = {run["recipe"]: run for run in json.loads((tmp_path / "out" / "results.json").read_text())["runs"]}
    assert set(found) == {"adadp", "dp-agd", "yu-validation"}
    assert all(run["epsilon"] <= 3 for run in found.values())
    kept = {name: json.dumps(run) for name, run in found.items()}
    assert '"tolerance": 0.5' in kept["adadp"]
    assert '"candidates": 5' in kept["dp-agd"]
    assert '"counts": [2, 1]' in kept["yu-validation"]


# --- crashes -----------------------------------------------------------------------------------------------------------------------------


def long(name):
    """On forty records fay-adaptive finds little but noise, and spends what it has in a small part of the steps."""
    return 150 if name == "fay-adaptive" else 10


class Died(BaseException):
    """Stands for a crash that the process survives, so that a test can look."""


@pytest.fixture
def dies(monkeypatch):
    """Kill a run in step `at`: after its charge, or after its answer was handed out. Nothing is written afterwards, as after a SIGKILL."""
    dead = []
    write, save, answer, apply = checkpoint.Checkpoints.write, Run.save, Draw.release, Session.apply
    monkeypatch.setattr(checkpoint.Checkpoints, "write", lambda *given: None if dead else write(*given))
    monkeypatch.setattr(Run, "save", lambda *given, **named: None if dead else save(*given, **named))

    def kill(at, point):
        counted = []

        def die():
            counted.append(True)
            if len(counted) == at:
                dead.append(True)
                raise Died

        def watched(*given):
            if point == "charged":
                die()
            return answer(*given)

        def handed_out(*given):
            if point == "handed out":
                die()
            return apply(*given)

        monkeypatch.setattr(Draw, "release", watched)
        monkeypatch.setattr(Session, "apply", handed_out)

    def revive():
        dead.clear()
        monkeypatch.setattr(Draw, "release", answer)
        monkeypatch.setattr(Session, "apply", apply)

    return kill, revive


def charges(folder):
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    try:
        assert ledger.verify() is None
        return list(ledger.charges())
    finally:
        ledger.close()


KILLED = [
    ("yu-validation", 3),
    ("fay-adaptive", 3),
    ("adadp", 3),  # the first draw of a step
    ("adadp", 4),  # the second
    ("dp-agd", 3),  # a gradient, or a top-up
    ("dp-agd", 4),  # a choice
    ("noisy-btls", 3),
    ("noisy-btls", 4),
]


def in_core(name, at, point, mode):
    """Everyone in every mode and at every point; two of these four pairs, by turns."""
    return (KILLED.index((name, at)) + (point == "charged") + (mode == "fresh")) % 2 == 0


@pytest.mark.parametrize(
    ("name", "at", "point", "mode"),
    thinned(
        [(*one, point, mode) for one in KILLED for point in ("charged", "handed out") for mode in ("fresh", "exact")],
        in_core,
    ),
)
def test_a_killed_run_goes_on_within_its_budget(name, at, point, mode, records, tmp_path, dies):
    kill, revive = dies
    plan = planned(name, long(name), spare=0 if name in FILTERED else 3)
    storage = ap.Storage(tmp_path / "run", recovery=mode, every=2)
    kill(at, point)
    with pytest.raises(Died):
        train(plan, records, storage=storage)
    revive()
    lost = charges(tmp_path / "run")
    assert len(lost) == at, "paid before anything was computed"
    run = train(plan, records, storage=replace(storage, resume=True))
    paid = charges(tmp_path / "run")
    assert paid[:at] == lost
    require_paid_once(plan, paid)
    assert run.epsilon() <= 3.0
    taken = len(run.history)
    assert taken == plan.steps or name in FILTERED
    burnt = {
        ("fresh", "charged"): at - 2,
        ("fresh", "handed out"): at - 2,
        ("exact", "charged"): 1,
        ("exact", "handed out"): 0,
    }
    assert len(paid) == taken + burnt[mode, point], "the checkpoint is that of step 2"


def require_paid_once(plan, paid):
    """No number twice, and all of it under the plan's rule."""
    assert len({token for token, _ in paid}) == len(paid)
    rule = plan.rule()
    for token, event in paid:
        rule.require(token, token, event)
        rule.spend(token, event)


@every_method
def test_an_exact_run_is_the_same_with_and_without_a_crash(name, records, tmp_path, dies, monkeypatch):
    """The key is fixed here, so that two runs can be compared: all weights, states and charges, bit for bit."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    kill, revive = dies
    plan = planned(name, long(name))
    whole = train(plan, records, storage=ap.Storage(tmp_path / "whole", recovery="exact", every=3))
    storage = ap.Storage(tmp_path / "torn", recovery="exact", every=3)
    for number, at in enumerate((2, 3, 1)):
        kill(at, "handed out")
        with pytest.raises(Died):
            train(plan, records, storage=replace(storage, resume=number > 0))
        revive()
    torn = train(plan, records, storage=replace(storage, resume=True))
    assert pack(torn._session.state()) == pack(whole._session.state())
    assert charges(tmp_path / "torn") == charges(tmp_path / "whole")
    assert [replace(one, epsilon=None) for one in torn.history] == [replace(one, epsilon=None) for one in whole.history]


def test_a_repeated_choice_that_comes_out_different_is_burnt(records, tmp_path, dies):
    """On other records the same noise would hand out another index: two answers under one noise."""
    kill, revive = dies
    plan = planned("dp-agd", rate=1.0)
    storage = ap.Storage(tmp_path / "run", recovery="exact", every=1)
    kill(2, "handed out")
    with pytest.raises(Died):
        train(plan, records, storage=storage)
    revive()
    first = charges(tmp_path / "run")
    assert [len(event.choices) for _, event in first] == [0, 1]
    select, seen = mechanisms.noisy_argmin, []

    def other(totals, release, noise):
        index = select(totals, release, noise)
        seen.append(index)
        return (index + 1) % len(totals) if len(seen) == 1 else index

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "noisy_argmin", other)
        run = train(plan, records, storage=replace(storage, resume=True))
    paid = charges(tmp_path / "run")
    assert len(paid) == len(run.history) + 1, "the burnt draw is paid for, and its answer was not used"


@every_method
def test_the_state_survives_the_file_bit_for_bit(name, records, tmp_path, dies, monkeypatch):
    kill, revive = dies
    plan = planned(name, long(name))
    for at in (3, 4, 5):
        storage = ap.Storage(tmp_path / f"{at}", every=1)
        kill(at, "charged")
        with pytest.raises(Died):
            train(plan, records, storage=storage)
        revive()
        saved = checkpoint.read_checkpoint(tmp_path / f"{at}" / "secret" / "checkpoint")
        seen = {}
        with monkeypatch.context() as patch:
            patch.setattr("apportion.training.train.take_steps", lambda session, *given: seen.update(session.state()))  # noqa: B023
            train(plan, records, storage=replace(storage, resume=True))
        keys = ("step", "model", "optimizer", "clip", "noise", "update")
        assert saved["step"] == at - 1
        assert pack({key: saved[key] for key in keys}) == pack({key: seen[key] for key in keys})


def test_spare_tokens_of_a_multiset_are_not_steps_of_their_own(records):
    plan = planned("yu-validation", spare=4)
    run = train(plan, records)
    assert run.steps == plan.steps == 10
    spent = Counter(events_of(run))
    declared = Counter(plan.tokens)
    assert sum(declared.values()) == 14
    assert declared - spent == Counter({min(plan.tokens, key=lambda token: token.noise_multiplier): 4})


# --- conformance and replay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        ap.update.AdaDP(),
        OWN["feedback"],
        pytest.param(OWN["multiset"], marks=pytest.mark.slow),
        pytest.param(OWN["steering"], marks=pytest.mark.slow),
        pytest.param(ap.noise.AdaptivePrivacyUtility(), marks=pytest.mark.slow),  # Rényi curves of many multipliers
        pytest.param(ap.update.DPAGD(), marks=pytest.mark.slow),
        pytest.param(ap.update.NoisyBTLS(), marks=pytest.mark.slow),
        pytest.param(OWN["asking"], marks=pytest.mark.slow),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_strategy_passes_the_conformance_suite(strategy):
    report = check_strategy(strategy)
    assert report.ok, str(report)


@pytest.mark.slow
@every_method
def test_a_recipe_passes_the_replay(name, records):
    report = ap.audit.replay(make_model(), LOSS, records, name, steps=10)
    report.require()
    assert report.noise_calls


@pytest.mark.parametrize("kind", OWN)
def test_strategies_of_ones_own_run_under_the_rule_of_their_type(kind, records):
    strategy = OWN[kind]
    role = "noise" if hasattr(strategy, "choose") else "update"
    plan = planned(ap.Recipe(**{role: strategy}))
    rules = {
        "feedback": "weighted Rényi filter",
        "multiset": Multiset.name,
        "steering": FixedPlan.name,
        "asking": "weighted Rényi filter",
    }
    assert plan.rule().name == rules[kind]
    run = train(plan, records)
    require_within(plan, events_of(run))


def test_a_grid_without_0_ends_before_anything_is_charged(records, tmp_path):
    plan = planned(ap.Recipe(update=TwoChoices(grid=(0.5, 1.0))))
    with pytest.raises(ap.InvalidArgument, match=r"^step_sizes=\(0.5, 1.0\): 0 is not among them"):
        train(plan, records, storage=ap.Storage(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# --- combinations ------------------------------------------------------------------------------------------------------------------------

CLIPS = [
    ap.clip.Fixed(0.2),
    ap.clip.Decay(start=0.5),
    ap.clip.Quantile(share=0.05),
    ap.clip.Quantile(share=0.02, groups="layer", allocation="global"),
    ap.clip.NormBased(groups="layer"),
    ap.clip.AdaClip(),
    ap.clip.Automatic(0.3),
]
NOISES = [
    ap.noise.Constant(),
    ap.noise.StepDecay(factor=0.6, period=3, per="step"),
    ap.noise.Validation(counts=(2, 1), window=2),
    ap.noise.AdaptivePrivacyUtility(),
]
UPDATES = [
    ap.update.Plain(),
    ap.update.AdaDP(tolerance=0.1),
    ap.update.DPAGD(candidates=4),
    ap.update.NoisyBTLS(tries=4),
]
NAMED = [
    (CLIPS[3], NOISES[0], UPDATES[1]),  # adadp with quantiles per layer
    (CLIPS[1], NOISES[2], UPDATES[0]),  # yu-validation with Decay
    (CLIPS[5], NOISES[3], UPDATES[0]),  # fay-adaptive with AdaClip
]


def no_rule(noise, update):
    return isinstance(noise, ap.noise.Validation) and isinstance(update, (ap.update.DPAGD, ap.update.NoisyBTLS))


def follows_releases(noise, update):
    return isinstance(noise, (ap.noise.Validation, ap.noise.AdaptivePrivacyUtility)) or not isinstance(
        update, ap.update.Plain
    )


def combinations(number):
    draw, found = random.Random(18), list(NAMED)
    while len(found) < number:
        clip, noise, update = draw.choice(CLIPS), draw.choice(NOISES), draw.choice(UPDATES)
        if not no_rule(noise, update) and follows_releases(noise, update) and (clip, noise, update) not in found:
            found.append((clip, noise, update))
    return found


@pytest.mark.parametrize(
    ("clip", "noise", "update"),
    [pytest.param(*one, marks=() if number < 3 else pytest.mark.slow) for number, one in enumerate(combinations(15))],
    ids=lambda one: type(one).__name__,
)
def test_a_combination_is_within_budget_and_holds(clip, noise, update, records, budget):
    recipe = ap.Recipe(clip=clip, noise=noise, update=update)
    plan = ap.plan(recipe, budget=budget, population=400, sample_rate=0.3, steps=6, count_usable=False)
    run = train(plan, records, lr=0.1)
    require_within(plan, events_of(run))
    assert 0.98 * budget.epsilon <= run.epsilon() <= budget.epsilon
    report = ap.audit.replay(make_model(), LOSS, records, recipe, steps=6)
    report.require()
    assert report.noise_calls


@pytest.mark.parametrize("noise", [ap.noise.Validation(), Alternating()], ids=["validation", "own"])
@pytest.mark.parametrize("update", [ap.update.DPAGD(), ap.update.NoisyBTLS(), TwoChoices()], ids=["agd", "btls", "own"])
def test_what_no_rule_covers_is_refused_with_the_pair_and_the_rules_that_would_do(noise, update):
    with pytest.raises(
        ap.InvalidArgument,
        match=rf"^update='{type(update).__name__}'.* and {type(noise).__name__} spends declared tokens, which no rule covers.*"
        "a schedule, which a filter covers.*another update, which a multiset covers",
    ):
        ap.Recipe(noise=noise, update=update)


# --- the price of a search ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "found"), [(0.0, False), (1e6, True)], ids=["one passes", "none passes"])
def test_a_search_costs_the_same_however_many_step_sizes_fail(slope, found, records, books):
    del found
    from apportion.curator.gradients.reference import ReferenceGradients
    from apportion.curator.randomness import Randomness
    from apportion.curator.records import as_records

    model = make_model()
    direction = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    line = Line(direction, (1.0, 0.5, 0.25))
    request = Request(0.5, math.inf, 20.0, (FirstGain(line, 2.0, 0.7, slope=slope),))
    asked = Curator(as_records(records), ReferenceGradients(model, "vmap"), books, Randomness.seeded(0))
    answer = asked.answer(request, LOSS)
    assert isinstance(answer, Released)
    assert books.events == [Event(0.5, math.inf, (request.releases[0].choice(),))]
    assert (answer.selected == (None,)) == (slope > 0)


# --- digits ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [METHODS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS[1:])])
def test_the_defaults_train_digits(name):
    digits = ap.data.load("digits")
    torch.manual_seed(0)
    inputs, targets = digits.test.data
    half = len(targets) // 2
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan(name, budget=budget, population=1437, sample_rate=0.2, steps=200)
    run = ap.train(
        build("mlp", digits),
        LOSS,
        digits.train,
        plan,
        lr=2.0,
        validation=ap.Public((inputs[:half], targets[:half])),
        seed=0,
        progress=False,
    )
    assert run.epsilon() <= 3.0
    require_within(plan, events_of(run))
    assert accuracy(run.model, ap.Public((inputs[half:], targets[half:]))) >= 0.85
