"""dp-agd: which candidate step is best, and gradients that get more exact until one helps."""

import math

import pytest
import torch

import apportion as ap
from apportion.accounting.rules import ConcentratedFilter, RenyiFilter
from apportion.event import Choice, Event
from apportion.releases import LowestLoss
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.roles import AskGradient
from apportion.training.recipe_state import RecipeState

SIZE, SCALE = 100.0, 4.0
CONTEXT = Context(1, 20, 0.1, SIZE, SCALE, {"w": (3,)})


@pytest.fixture(scope="module")
def plan():
    """Full batches: every event has its own price under the zCDP filter."""
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    return ap.plan("dp-agd", budget=budget, population=100, sample_rate=1.0, steps=40)


class Course:
    """The strategies of a plan on a problem whose answers are given exactly, as with an infinite budget."""

    def __init__(self, plan, weights, rate, loss):
        self.weights, self.loss = {"w": torch.tensor(weights, dtype=torch.float64)}, loss
        self.strategies = RecipeState(plan, self.weights, rate)
        self.requests = []

    def step(self, *, gradient=None, index=None):
        """One draw; what is given is answered, the rest exactly. Returns the request."""
        request = self.strategies.request(1)
        self.requests.append(request)
        values, selected = {}, ()
        if request.noised:
            values = {"w": self._gradient() if gradient is None else torch.tensor(gradient, dtype=torch.float64)}
        else:
            line = request.selections[0].line
            losses = [float(self.loss(self.weights["w"] - size * line.direction["w"])) for size in line.step_sizes]
            selected = (losses.index(min(losses)) if index is None else index,)
        moved = self.strategies.receive(Released(request, values, (), selected), self.weights)
        self.weights = dict(moved or self.weights)
        return request

    def _gradient(self):
        weights = self.weights["w"].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(weights), weights)
        return gradient

    @property
    def state(self):
        return self.strategies.state()["update"]


def quadratic(weights):
    return 0.5 * weights.square().sum()


def test_with_exact_answers_the_best_step_of_the_grid_is_taken(plan):
    """At distance 1.5 along the normalised gradient, with 20 candidates up to 2: the nearest is j = 14, α = 28/19."""
    course = Course(plan, [1.5, 0.0, 0.0], 2.0, quadratic)
    assert course.step().sums
    assert course.weights["w"].tolist() == [1.5, 0.0, 0.0], "a gradient alone moves nothing"
    asked = course.step().selections[0]
    assert isinstance(asked, LowestLoss)
    assert asked.line.direction["w"].tolist() == [1.0, 0.0, 0.0]
    assert asked.line.step_sizes == pytest.approx([2 * j / 19 for j in range(20)])
    assert asked.bound == 3.0
    assert course.weights["w"].tolist() == pytest.approx([1.5 - 28 / 19, 0.0, 0.0])


def test_candidate_0_means_to_stay_and_to_ask_for_a_better_gradient(plan):
    course = Course(plan, [1.0, 0.0, 0.0], 2.0, quadratic)
    course.step(gradient=[0.0, 1.0, 0.0])
    course.step(index=0)
    assert course.weights["w"].tolist() == [1.0, 0.0, 0.0]
    assert course.step(gradient=[1.0, 0.0, 0.0]).sums, "another gradient at the same weights"
    direction = course.step(index=1).selections[0].line.direction["w"]
    weights = torch.tensor([0.1, 1.0, 0.0]).double()  # precisions: the top-up has γ = 0.1 of the budget of the first
    assert direction.tolist() == pytest.approx((weights / weights.norm()).tolist())
    expected = torch.tensor([1.0, 0.0, 0.0]).double() - 2 / 19 * direction
    assert course.weights["w"].tolist() == pytest.approx(expected.tolist())


def rho(event):
    return ConcentratedFilter.cost(None, event)


def test_a_top_up_costs_the_difference(plan):
    course = Course(plan, [1.0, 0.0, 0.0], 2.0, quadratic)
    first = rho(course.step().event())
    budget = first
    for _ in range(3):
        course.step(index=0)
        added = rho(course.step().event())
        assert added == pytest.approx(0.1 * budget)
        budget += added
    course.step(index=3)
    assert rho(course.step().event()) == pytest.approx(budget), "what grew stays: the next gradient has it all"
    assert budget == pytest.approx(1.1**3 * first)


def test_the_averaged_gradient_has_the_noise_of_one_release_at_the_grown_budget(plan):
    """On two hundred thousand numbers: the empirical variance, and the precision that the strategy believes in."""
    numbers, generator = 200_000, torch.Generator().manual_seed(0)
    weights = {"w": torch.zeros(numbers, dtype=torch.float64)}
    strategies = RecipeState(plan, weights, 1.0)
    shares = []
    for draw in range(7):
        request = strategies.request(1)
        gradient = {}
        if request.noised:
            deviation = request.standard_deviation(request.sums[0]) / request.expected_batch_size
            shares.append(deviation**-2)
            gradient = {"w": deviation * torch.randn(numbers, generator=generator, dtype=torch.float64)}
        strategies.receive(Released(request, gradient, (), () if request.noised else (0,)), weights)
        state = strategies.state()["update"]
        if draw == 6:
            break
    assert len(shares) == 4
    one = 1 / (1.1**3 * shares[0])
    assert state["precision"]["w"] == pytest.approx(1 / one)
    assert float(state["gradient"]["w"].var()) == pytest.approx(one, rel=0.02)
    assert float(state["gradient"]["w"].var()) != pytest.approx(1 / sum([shares[0]] * 4), rel=0.5)


@pytest.mark.parametrize("retries", [1, 3])
def test_after_so_many_top_ups_a_new_gradient_is_taken(budget, retries):
    recipe = ap.Recipe(update=ap.update.DPAGD(retries=retries, growth=0.5))
    plan = ap.plan(recipe, budget=budget, population=100, sample_rate=1.0, steps=40)
    course = Course(plan, [1.0, 0.0, 0.0], 2.0, quadratic)
    first = rho(course.step().event())
    for _ in range(retries):
        course.step(index=0)
        course.step(gradient=[0.0, 1.0, 0.0])
    course.step(index=0)
    course.step(gradient=[0.0, 0.0, 1.0])
    assert rho(course.requests[-1].event()) == pytest.approx(1.5 ** (retries + 1) * first)
    assert course.state["direction"]["w"].tolist() == [0.0, 0.0, 1.0], "nothing of the old one is left"


def test_the_price_of_a_choice_is_its_share_of_a_gradients(plan):
    update = plan.recipe.update
    gumbel = Choice(update.choice_epsilon(SCALE), bounded_range=True)
    assert gumbel.rho == pytest.approx(0.5 * rho(Event(1.0, SCALE)))
    exponential = ap.update.DPAGD(noise="exponential")
    assert Choice(exponential.choice_epsilon(SCALE)).rho == pytest.approx(0.5 * rho(Event(1.0, SCALE)), rel=0.01)
    course = Course(plan, [1.0, 0.0, 0.0], 2.0, quadratic)
    gradient, choice = course.step().event(), course.step().event()
    assert choice.noise_multiplier == math.inf
    assert choice.choices[0].bounded_range
    assert rho(choice) == pytest.approx(0.5 * rho(gradient))


def test_the_grid_narrows_around_what_was_chosen_and_never_exceeds_the_learning_rate():
    update = ap.update.DPAGD(candidates=5, shrink_every=3)
    state = update.init({"w": torch.zeros(1)}, 2.0)

    def largest(*chosen):
        nonlocal state
        for step_size in chosen:
            state = update._after_step(state, step_size)
        assert update.learning_rate(state) == chosen[-1]
        return state["largest"]

    assert largest(2.0, 0.5) == 2.0
    assert largest(0.1) == 2.0, "2.2, but for the learning rate"
    assert largest(0.1, 0.5, 0.3) == pytest.approx(0.55), "the largest of these three: 2.0 was before"
    assert largest(0.5, 0.5, 0.55) == pytest.approx(0.605), "it may grow again"


def test_a_gradient_of_zero_leads_nowhere(plan):
    course = Course(plan, [1.0, 2.0, 0.0], 2.0, quadratic)
    course.step(gradient=[0.0, 0.0, 0.0])
    course.step(index=7)
    assert course.weights["w"].tolist() == [1.0, 2.0, 0.0]


def test_weight_decay_is_part_of_the_direction(budget):
    recipe = ap.Recipe(update=ap.update.DPAGD(decay=0.25))
    plan = ap.plan(recipe, budget=budget, population=100, sample_rate=1.0, steps=4)
    course = Course(plan, [2.0, 0.0, 4.0], 1.0, quadratic)
    course.step(gradient=[0.0, 3.0, 0.0])
    assert course.state["direction"]["w"].tolist() == [0.5, 1.0, 1.0]


def test_the_zcdp_budget_of_the_published_example():
    budget = ap.Budget(epsilon=1.0, delta=1e-8, unit=ap.Record())
    plan = ap.plan("dp-agd", budget=budget, population=30_000, sample_rate=1.0, steps=60)
    rule = plan.rule()
    assert isinstance(rule, ConcentratedFilter)
    assert rule.total == pytest.approx(0.013215, abs=1e-6)
    typical = plan.recipe.update.reference({plan.tokens[0]: 60})
    spent = sum(count * rho(event) for event, count in typical.items())
    assert 0.999 * rule.total <= spent <= rule.total
    sampled = ap.plan("dp-agd", budget=budget, population=30_000, sample_rate=0.1, steps=10)
    assert type(sampled.rule()) is RenyiFilter


def test_a_typical_run_chooses_at_every_second_draw():
    update = ap.update.DPAGD()
    typical = update.reference({Event(0.1, 4.0): 7, Event(0.1, 5.0): 1})
    choices = {event: count for event, count in typical.items() if event.choices}
    assert sum(typical.values()) == 8
    assert sum(choices.values()) == 3


def test_it_begins_with_an_ordinary_gradient():
    update = ap.update.DPAGD()
    assert update.ask(update.init({"w": torch.zeros(3)}, 1.0), CONTEXT) == AskGradient()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"loss_bound": 0.0}, "loss_bound"),
        ({"loss_bound": -3.0}, "loss_bound"),
        ({"candidates": 1}, "candidates"),
        ({"growth": 0.0}, "growth"),
        ({"selection": 0.0}, "selection"),
        ({"retries": 0}, "retries"),
        ({"shrink_every": 0}, "shrink_every"),
        ({"decay": -0.1}, "decay"),
        ({"noise": "laplace"}, "noise"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.{named}"):
        ap.update.DPAGD(**wrong)


def test_a_grid_without_0_is_refused(plan):
    """A strategy of one's own that forgets it learns so before a record is read: the question cannot be made."""
    line = Course(plan, [1.0, 0.0, 0.0], 2.0, quadratic)
    line.step()
    asked = line.step().selections[0].line
    with pytest.raises(ap.InvalidArgument, match=r"^step_sizes=.*0 is not among them.*Add 0.0"):
        LowestLoss(type(asked)(asked.direction, (0.5, 1.0)), 3.0, 0.5)
