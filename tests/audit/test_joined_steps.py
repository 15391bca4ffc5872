"""What several ranks did in a step, put together: the worst of them counts."""

import pytest
import torch

from apportion.audit.joined_steps import Division, side_by_side
from apportion.audit.recording import NoiseCall, Recording, Step
from apportion.audit.replay_comparison import Declared, inspect_noise, inspect_run
from apportion.pipeline.pipeline_replay import by_stages
from apportion.releases import ClippedSum, UnclippedCount
from apportion.request import Released, Request

NAMES = ("0.weight", "1.weight")
SHARES = (ClippedSum(1.0, NAMES[:1], 0.4), ClippedSum(2.0, NAMES[1:], 0.5), UnclippedCount(1.0, NAMES[1:], 0.1))
REQUEST = Request(0.5, 1.0, 10.0, SHARES)


def call(values, deviation, divisor=10.0):
    exact = torch.as_tensor(values, dtype=torch.float64)
    return NoiseCall(exact, deviation, divisor, (exact + deviation) / divisor, True, torch.float64)


def step(calls, gradient, statistics=(), members=(0, 1), read=(0, 1)):
    released = Released(REQUEST, {name: value.float() for name, value in gradient.items()}, statistics)
    return Step({}, (REQUEST.event(),), [(3, (0.5,))], set(members), set(read), calls, [], released)


def stages(members=(0, 1), read=(0, 1), factor=1.0):
    """Two stages, of which the second also counts."""
    first, second, count = (
        call([1.0, 2.0, 3.0], REQUEST.standard_deviation(SHARES[0])),
        call([4.0, 5.0], factor * REQUEST.standard_deviation(SHARES[1])),
        call(0.5, REQUEST.standard_deviation(SHARES[2])),
    )
    told = (float(count.answer),)
    return [
        step([first], {NAMES[0]: first.answer}, told),
        step([second, count], {NAMES[1]: second.answer}, told, members, read),
    ]


class Named(torch.nn.Module):
    """Parameters by the names of a pipeline."""

    def __init__(self, *sizes):
        super().__init__()
        for number, size in enumerate(sizes):
            stage = torch.nn.Module()
            stage.weight = torch.nn.Parameter(torch.zeros(size))
            self.add_module(str(number), stage)


def kinds(steps, sizes=(3, 2)):
    run = Recording([by_stages(steps)], {}, (REQUEST.event(),))
    return {finding.kind for finding in inspect_run(run, "D", Declared(Named(*sizes), 10.0), 3)}


def test_stages_that_did_what_was_charged():
    assert kinds(stages()) == set()


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (stages(members=(0, 2)), "sampling"),
        (stages(read=(0, 1, 2)), "sampling"),
        (stages(factor=0.99), "multiplier"),
        ([stages()[0], step(stages()[1].calls[:1], {NAMES[1]: torch.ones(2)}, (0.1,))], "calls"),
    ],
    ids=["other coins", "the last one reads more", "less noise in one", "a count without noise"],
)
def test_stages_that_did_not(broken, kind):
    assert kind in kinds(broken)


def test_an_answer_that_is_not_all_of_a_parameter_is_found():
    assert kinds(stages(), sizes=(3, 3)) == {"release"}


def test_of_parts_the_smallest_noise_is_that_of_the_whole():
    parts = [
        Step(
            {}, (), [(2, (0.5,))], {rank}, {rank}, [call([[1.0 + rank, 2.0]], 1.0 - 0.05 * rank), call(1.0 + rank, 3.0)]
        )
        for rank in range(2)
    ]
    asked = Request(0.5, 1.0, 10.0, (ClippedSum(1.0, share=0.9), UnclippedCount(1.0, share=0.1)))
    told = sum(float(one.calls[1].answer) for one in parts)
    for one in parts:
        one.released = Released(asked, {"weight": one.calls[0].answer.float()}, (told * (1 + 1e-16),))
    joined = side_by_side(parts, {"weight": 0})
    weight, count = joined.calls
    assert weight.exact_sum.tolist() == [[1.0, 2.0], [2.0, 2.0]]
    assert weight.standard_deviation == pytest.approx(0.95)
    assert joined.released.gradient["weight"].shape == (2, 2)
    assert (joined.coins, joined.members) == ([(4, (0.5,))], {0, 1})
    assert float(count.exact_sum) == 3.0
    assert count.standard_deviation == pytest.approx(3.0 * 2**0.5)
    parts[1].calls.pop()
    assert side_by_side(parts, {"weight": 0}).calls == []


def test_what_ranks_share_and_what_is_their_own():
    division = Division(lambda steps: steps[0], frozenset({"model"}))
    states = [{"model.w": "a", "step": "1"}, {"model.w": "b", "step": "1"}]
    assert division.state(states) == {"model.w": "a", "step": "1", "model.w (rank 1)": "b"}
    assert division.shared(states[1]) == {"step": "1"}


def test_noise_that_is_used_twice_is_found():
    torch.manual_seed(0)
    noises = [torch.randn(5, dtype=torch.float64) for _ in range(400)]

    def found(noises):
        calls = [NoiseCall(torch.zeros(len(one)), 1.0, 1.0, one, True, torch.float64) for one in noises]
        half = len(calls) // 2
        steps = [Step({}, (), calls=calls[:half]), Step({}, (), calls=calls[half:])]
        parts = [Recording([one]) for one in steps]
        whole = Recording(steps[:1], parts=parts)
        return [finding.kind for finding in inspect_noise(whole, "D")]

    assert found(noises) == []
    assert found([*noises, noises[7].float()[:3].double()]) == ["noise"]  # on another rank, in a shorter part
