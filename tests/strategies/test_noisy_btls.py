"""noisy-btls: a backtracking line search on noisy answers; budgets and thresholds follow angles."""

import math

import pytest
import torch

import apportion as ap
from apportion.accounting.rules import RenyiFilter
from apportion.event import Choice, Event
from apportion.releases import FirstGain
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.roles import AskGradient
from apportion.strategies.update.noisy_btls import angle_between
from apportion.training.recipe_state import RecipeState


@pytest.fixture(scope="module")
def plan():
    return make_plan()


def make_plan(**options):
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    recipe = ap.Recipe(clip=ap.clip.Fixed(2.0), update=ap.update.NoisyBTLS(**options))
    return ap.plan(recipe, budget=budget, population=100, sample_rate=1.0, steps=40)


def first_gain(release, loss, weights):
    """What a search without noise finds: the first step size that fulfils Armijo's condition."""
    for index, size in enumerate(release.line.step_sizes):
        gain = loss(weights) - loss(weights - size * release.line.direction["w"])
        if gain >= release.slope * size:
            return index
    return None


class Course:
    """The strategies of a plan, answered as asked for."""

    def __init__(self, plan, weights, rate=8.0):
        self.weights = {"w": torch.tensor(weights, dtype=torch.float64)}
        self.strategies = RecipeState(plan, self.weights, rate)

    def request(self):
        return self.strategies.request(1)

    def gradient(self, *values):
        """A gradient; its noise is added in the length of a right angle, so that it can be told apart."""
        request = self.request()
        assert request.sums
        self._receive(Released(request, {"w": torch.tensor(values, dtype=torch.float64)}))
        return request

    def search(self, index):
        request = self.request()
        assert isinstance(request.selections[0], FirstGain)
        self._receive(Released(request, {}, (), (index,)))
        return request

    def _receive(self, released):
        self.weights = dict(self.strategies.receive(released, self.weights) or self.weights)

    @property
    def state(self):
        return self.strategies.state()["update"]


def loss(weights):
    return float((weights * torch.tensor([1.0, 5.0]).double() * weights).sum() / 2 + torch.cos(weights[0]))


def exact_gradient(weights):
    return weights * torch.tensor([1.0, 5.0]).double() - torch.tensor([float(torch.sin(weights[0])), 0.0]).double()


def armijo(weights, largest, slope=0.1, shrink=0.5, tries=8):
    """Backtracking as in a textbook."""
    gradient = exact_gradient(weights)
    for index in range(tries):
        rate = largest * shrink**index
        moved = weights - rate * gradient
        if loss(weights) - loss(moved) >= slope * rate * float(gradient @ gradient):
            return moved, rate
    return weights, 0.0


def test_with_exact_answers_it_is_backtracking_as_in_a_textbook():
    """Noise is made negligible (z = 10⁻⁶·…), so that ‖g‖² is the gradient's own; searches are answered without noise."""
    tiny = 1e-9
    update = ap.update.NoisyBTLS()
    weights = torch.tensor([3.0, -2.0]).double()
    state, expected = update.init({"w": weights}, 8.0), weights
    context = Context(1, 100, 1.0, 100.0, tiny, {"w": (2,)})
    rates = []
    plan_ = make_plan()
    for _ in range(12):
        assert update.ask(state, context) == AskGradient()
        request = plan_.request(context, None)
        state, moved = update.move(state, Released(request, {"w": exact_gradient(weights)}), {"w": weights})
        assert moved is None
        search = update.ask(state, context)
        found = first_gain(search, loss, weights)
        selection = plan_.request(context, None, search)
        state, moved = update.move(state, Released(selection, {}, (), (found,)), {"w": weights})
        weights = moved["w"]
        expected, rate = armijo(expected, 8.0)
        rates.append(rate)
        assert update.learning_rate(state) == rate
        assert torch.allclose(weights, expected, rtol=1e-12)
    assert len(set(rates)) > 1
    assert loss(weights) < loss(torch.tensor([3.0, -2.0]).double())


def test_the_slope_leaves_out_what_is_noise(plan):
    course = Course(plan, [1.0, 0.0])
    request = course.request()
    power = 2 * (request.standard_deviation(request.sums[0]) / request.expected_batch_size) ** 2
    course.gradient(3.0, 4.0)
    search = course.request().selections[0]
    assert search.slope == pytest.approx(0.1 * (25.0 - power))
    assert search.line.direction["w"].tolist() == [3.0, 4.0]
    assert search.line.step_sizes == tuple(8.0 * 0.5**i for i in range(8))
    weak = Course(plan, [1.0, 0.0])
    weak.gradient(math.sqrt(power) / 2, 0.0)
    assert weak.request().selections[0].slope == 0.0, "less than the noise: any gain will do"


@pytest.mark.parametrize("index", [0, 3, 7])
def test_the_step_that_was_found_is_taken(plan, index):
    course = Course(plan, [1.0, 0.0])
    course.gradient(3.0, 4.0)
    course.search(index)
    rate = 8.0 * 0.5**index
    assert course.weights["w"].tolist() == [1.0 - 3.0 * rate, -4.0 * rate]
    assert plan.recipe.update.learning_rate(course.state) == rate


def test_what_is_spent_does_not_depend_on_how_many_step_sizes_fail(plan):
    events = []
    for indices in ((0, 0), (7, 7)):
        course = Course(plan, [1.0, 0.0])
        spent = []
        for index in indices:
            spent += [course.gradient(3.0, 4.0).event(), course.search(index).event()]
        events.append(spent)
    assert events[0] == events[1]
    (choice,) = events[0][1].choices
    assert choice == Choice(plan.recipe.update.search_epsilon(plan.scale))
    assert choice.epsilon**2 / 2 == pytest.approx(1 / (2 * plan.scale**2)), "ρ as of a gradient"


def test_far_apart_gradients_raise_the_budget_of_gradients_and_lower_the_thresholds_once(plan):
    course = Course(plan, [1.0, 0.0])
    before = course.gradient(1.0, 0.0)
    search = course.search(None)
    course.gradient(-1.0, 0.1)
    assert (course.state["gradient_budget"], course.state["search_budget"]) == (1.2, 1.0)
    assert course.state["threshold"] == 0.95
    again = course.search(None)
    assert again.event() == search.event(), "searches cost what they did"
    assert again.selections[0].bound == pytest.approx(0.95 * search.selections[0].bound)
    second = course.gradient(-1.0, -5.0)
    assert second.noise_multiplier == pytest.approx(before.noise_multiplier / math.sqrt(1.2))
    assert second.sums[0].threshold == pytest.approx(0.95 * before.sums[0].threshold)
    assert course.state["gradient_budget"] == pytest.approx(1.2**2)
    assert course.state["threshold"] == 0.95, "once an update"
    course.search(None)  # no retries are left
    assert course.weights["w"].tolist() == [1.0, 0.0]
    course.gradient(1.0, 0.0)
    course.search(None)
    course.gradient(-1.0, 0.0)
    assert course.state["threshold"] == pytest.approx(0.95**2), "once more in the next one"


def test_gradients_that_agree_raise_the_budget_of_the_search(plan):
    course = Course(plan, [1.0, 0.0])
    gradient = course.gradient(1.0, 0.0)
    before = course.search(None)
    course.gradient(1.0, 0.1)
    assert (course.state["gradient_budget"], course.state["search_budget"]) == (1.0, 1.2)
    assert course.state["threshold"] == 1.0
    after = course.search(2)
    assert after.selections[0].epsilon == pytest.approx(math.sqrt(1.2) * before.selections[0].epsilon)
    assert course.request().event() == gradient.event(), "gradients cost what they did"


def test_at_the_usual_angle_nothing_grows(plan):
    course = Course(plan, [1.0, 0.0])
    course.gradient(1.0, 0.0)
    course.search(None)
    course.gradient(0.0, 1.0)
    assert (course.state["gradient_budget"], course.state["search_budget"], course.state["threshold"]) == (
        1.0,
        1.0,
        1.0,
    )


def test_the_usual_angle_is_a_moving_average_between_consecutive_gradients(plan):
    course = Course(plan, [1.0, 0.0])
    course.gradient(1.0, 0.0)
    assert course.state["angle"] == math.pi / 2, "there was none before"
    course.search(0)
    course.gradient(1.0, 1.0)
    assert course.state["angle"] == pytest.approx(0.9 * math.pi / 2 + 0.1 * math.pi / 4)


def test_two_gradients_are_averaged_by_precision(plan):
    course = Course(plan, [1.0, 0.0])
    course.gradient(1.0, 0.0)
    course.search(None)
    course.gradient(0.0, 1.0)  # the same noise: half and half
    assert course.request().selections[0].line.direction["w"].tolist() == [0.5, 0.5]
    precision = course.state["precision"]["w"]
    course.search(None)
    course.gradient(1.0, 1.0)
    assert course.state["precision"]["w"] == pytest.approx(1.5 * precision)


def test_without_a_step_the_weights_stay_and_a_new_update_begins(plan):
    course = Course(plan, [1.0, -0.0])
    course.gradient(1.0, 0.0)
    for _ in range(2):
        course.search(None)
        course.gradient(0.0, 1.0)
    course.search(None)
    assert course.weights["w"].tolist() == [1.0, -0.0]
    assert course.state["gradient"] is None
    assert plan.recipe.update.learning_rate(course.state) == 0.0


def test_thresholds_have_a_floor():
    course = Course(make_plan(lower=0.9), [1.0, 0.0])
    for _ in range(4):
        course.gradient(1.0, 0.0)
        course.search(None)
        course.gradient(-1.0, 0.0)
        course.search(0)
    assert course.state["threshold"] == 0.01


@pytest.mark.parametrize(
    ("one", "other", "angle"),
    [
        ([1.0, 0.0], [0.0, 2.0], math.pi / 2),
        ([1.0, 1.0], [3.0, 3.0], 0.0),
        ([1e-100, 0.0], [-1e-100, 0.0], math.pi),
        ([1e200, 0.0], [1e200, 0.0], math.pi / 2),  # too long to be told
        ([0.0, 0.0], [1.0, 0.0], math.pi / 2),
        ([1.0, 0.0], [1.0, 1.0], math.pi / 4),
    ],
)
def test_angles(one, other, angle):
    pair = [{"w": torch.tensor(values, dtype=torch.float64)} for values in (one, other)]
    assert angle_between(*pair) == pytest.approx(angle, abs=1e-7)


def test_a_typical_run_searches_at_every_second_draw(budget):
    typical = ap.update.NoisyBTLS().reference({Event(0.1, 4.0): 7})
    assert sorted((len(event.choices), count) for event, count in typical.items()) == [(0, 4), (1, 3)]
    plan = ap.plan("noisy-btls", budget=budget, population=1000, sample_rate=0.2, steps=4)
    assert type(plan.rule()) is RenyiFilter


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"loss_bound": 0.0}, "loss_bound"),
        ({"slope": 1.0}, "slope"),
        ({"shrink": 1.0}, "shrink"),
        ({"shrink": 0.0}, "shrink"),
        ({"tries": 0}, "tries"),
        ({"growth": 0.0}, "growth"),
        ({"memory": 1.0}, "memory"),
        ({"far": 0.9}, "near"),
        ({"near": 1.1, "far": 1.2}, "near"),
        ({"near": 0.0}, "near"),
        ({"lower": 1.0}, "lower"),
        ({"search": 0.0}, "search"),
        ({"retries": -1}, "retries"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.{named}"):
        ap.update.NoisyBTLS(**wrong)
