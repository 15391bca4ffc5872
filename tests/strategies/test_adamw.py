"""AdamW on released gradients: torch's own, and with the variance of the noise taken off its second moment."""

import math

import pytest
import torch

import apportion as ap
from apportion.releases import ClippedSum, Frame
from apportion.request import Released, Request

BATCH = 50.0


def released(gradient, multiplier=1.0, threshold=1.0, frame=None):
    request = Request(0.1, multiplier, BATCH, (ClippedSum(threshold, frame and ("w",), frame=frame),))
    return Released(request, {name: torch.as_tensor(value) for name, value in gradient.items()})


def follow(update, weights, answers, rate=0.1):
    """The directions and weights of SGD behind the update."""
    state, course = update.init(weights), []
    for answer in answers:
        directions = update.transform(state, answer)
        weights = {name: value - rate * directions[name] for name, value in weights.items()}
        state = update.observe(state, answer, weights)
        course.append((dict(directions), weights))
    return course


def noisy(steps, size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [{"w": torch.randn(size, generator=generator, dtype=torch.float64)} for _ in range(steps)]


def test_it_is_the_adamw_of_torch():
    """Ten steps with weight decay, to eleven digits."""
    update, start = ap.update.AdamW(decay=0.3, first=0.8, second=0.95), torch.linspace(-1, 1, 6, dtype=torch.float64)
    gradients = noisy(10)
    *_, (_, ours) = follow(update, {"w": start}, [released(gradient) for gradient in gradients])
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.1, betas=(0.8, 0.95), eps=1e-12, weight_decay=0.3)
    for gradient in gradients:
        theirs.grad = gradient["w"].clone()
        optimizer.step()
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-11, atol=1e-11)


def test_decay_shrinks_the_weights_and_is_not_scaled():
    """With a gradient of 0 a step is θ ← (1 − η·λ)·θ, whatever v̂ was."""
    update = ap.update.AdamW(decay=0.5)
    [(_, first), (_, second)] = follow(update, {"w": torch.tensor([4.0])}, [released({"w": [0.0]})] * 2)
    assert (first["w"].item(), second["w"].item()) == pytest.approx((4 * 0.95, 4 * 0.95**2))


def test_the_noise_is_taken_off_the_second_moment():
    """g̃ = (3s, −1.1s, 0.5s): v̂ − s² = (8s², 0.21s²), and γ·s² where less would be left. s has some headroom in its last digits."""
    deviation = 2.0 * 0.5 / BATCH
    gradient = [3 * deviation, -1.1 * deviation, 0.5 * deviation]
    update = ap.update.AdamW(decay=0.0, corrected=True, floor=0.04)
    [(direction, _)] = follow(update, {"w": torch.zeros(3)}, [released({"w": gradient}, 2.0, 0.5)])
    assert direction["w"].tolist() == pytest.approx([3 / math.sqrt(8), -1.1 / math.sqrt(0.21), 0.5 / 0.2], rel=1e-3)


def test_noise_that_changes_is_taken_off_as_it_was_averaged():
    """v̂ is a mean over the steps with weights β₂^(t−s): so is what the noise adds to it."""
    update = ap.update.AdamW(decay=0.0, first=0.0, second=0.5, corrected=True, floor=1e-3)
    multipliers, value = (1.0, 4.0, 2.0), 0.1
    answers = [released({"w": [value]}, multiplier) for multiplier in multipliers]
    (direction, _) = follow(update, {"w": torch.zeros(1, dtype=torch.float64)}, answers)[-1]
    weights = [0.125, 0.25, 0.5]
    noise = sum(w * (z / BATCH) ** 2 for w, z in zip(weights, multipliers, strict=True)) / sum(weights)
    assert direction["w"].item() == pytest.approx(value / math.sqrt(value**2 - noise), rel=1e-4)


def test_coordinates_with_noise_of_their_own_are_corrected_by_it():
    """In a frame the noise of coordinate j is b_j·z/B."""
    scale = torch.tensor([1.0, 5.0], dtype=torch.float64)
    frame = Frame({"w": torch.zeros(2)}, {"w": scale})
    update = ap.update.AdamW(decay=0.0, corrected=True, floor=1e-3)
    gradient = {"w": torch.full((2,), 0.2)}
    [(direction, _)] = follow(update, {"w": torch.zeros(2)}, [released(gradient, frame=frame)])
    expected = 0.2 / (0.04 - (scale / BATCH) ** 2).sqrt()
    torch.testing.assert_close(direction["w"], expected.float(), rtol=1e-4, atol=0)


def test_the_state_is_not_a_view_of_the_weights():
    update, weights = ap.update.AdamW(decay=1.0), {"w": torch.tensor([2.0])}
    state = update.init(weights)
    weights["w"].zero_()
    assert update.transform(state, released({"w": [0.0]}))["w"].item() == 2.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"decay": -0.1}, "decay"),
        ({"first": 1.0}, "first"),
        ({"second": 0.0}, "second"),
        ({"second": 1.0}, "second"),
        ({"corrected": 1}, "corrected"),
        ({"floor": 0.0}, "floor"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.{named}"):
        ap.update.AdamW(**wrong)
