"""The second piece, chunk, micro-batch, input, group and draw: what holds for the first holds for those that follow.

Work is cut into pieces that most tests are too small to fill. Here the pieces are small, and what comes late is odd.
"""

import copy
import stat

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting import run_filter
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.gaussian import gaussian_delta
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan
from apportion.curator import clipping
from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.curator import Curator
from apportion.curator.gradients import embedding, layer_use
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument, UnsupportedModel, WrongOrder
from apportion.event import Event
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, Frame
from apportion.request import Request
from apportion.training.exact import ExactCurator
from items import Items
from runs import Gaussian, Recovery

BOUND = 1 + FLOAT32_HEADROOM
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def product(outputs, targets):
    """A loss whose gradient is whatever the target says."""
    return (outputs * targets).sum()


def weights(model):
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


def moved(model, items, odd, budget, **options):
    """By how much one record more moves the sum of a step of `train`: the noise of equal seeds is the same."""
    after = []
    for data in ([*items, odd], items):
        trained = copy.deepcopy(model)
        runs.train(
            trained,
            product,
            Items(data),
            budget=budget,
            population=1,
            sample_rate=1.0,
            steps=1,
            lr=1.0,
            seed=0,
            execution=ap.Execution(**options),
        )
        after.append(weights(trained))
    return float((after[0] - after[1]).norm())


# -- pieces --


@pytest.mark.parametrize("few", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", ["one-pass", "loop"])
def test_a_framed_sum_is_the_same_in_pieces_of_any_size(model, records, monkeypatch, few, mode):
    """Every record has a weight of its own, so that one that meets another's row shows."""
    generator = torch.Generator().manual_seed(0)
    trained = dict(model.named_parameters())
    centre = {name: 0.1 * torch.randn(value.shape, generator=generator) for name, value in trained.items()}
    scale = {name: 0.02 + 0.3 * torch.rand(value.shape, generator=generator) for name, value in trained.items()}
    release = ClippedSum(1.0, NAMES, frame=Frame(centre, scale))

    def sums():
        engine = build_engine(model, mode)
        engine.record_losses(cross_entropy, engine.forward(records[0][:11]), records[1][:11]).sum().backward()
        found = clip_and_sum(engine.gradients(), (release,))
        return torch.cat([found[name].flatten() for name in NAMES])

    whole = sums()
    monkeypatch.setattr(clipping, "FRAME_CHUNK_NUMBERS", few * max(value.numel() for value in trained.values()))
    torch.testing.assert_close(sums(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("per_chunk", [1, 2, 3])
def test_faint_images_of_later_chunks_have_their_own_norms(monkeypatch, per_chunk):
    """Images so faint that their squares vanish in float32 are computed again: those of the second chunk as those of the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False))
    images = torch.randn(7, 64, 4, 4) * torch.logspace(-2, 0, 7)[:, None, None, None]
    images[[1, 2, 4, 6]] *= 1e-14
    targets = torch.randn(7, 64, 4, 4)

    def norms(mode, dtype):
        engine = build_engine(copy.deepcopy(model).to(dtype), mode)
        engine.record_losses(product, engine.forward(images.to(dtype)), targets.to(dtype)).sum().backward()
        gradients = engine.gradients()
        return (
            gradients["0.weight"].flatten(1).norm(dim=1)
            if mode == "loop"
            else gradients.squared_norms()["0.weight"].sqrt()
        )

    exact = norms("loop", torch.float64)
    monkeypatch.setattr(layer_use, "CHUNK_NUMBERS", per_chunk * 2 * 36**2)
    torch.testing.assert_close(norms("one-pass", torch.float32), exact, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("per_chunk", [1, 4, 6])
def test_equal_tokens_of_neighbouring_records_stay_apart(per_chunk, monkeypatch):
    """The last repeated token of a record is the first one of the next: they are two tokens, each with a norm of its own."""
    monkeypatch.setattr(layer_use, "CHUNK_NUMBERS", per_chunk * embedding.TEMPORARIES * 9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 3))
    tokens = torch.tensor([[5, 5, 1], [5, 5, 6], [5, 5, 5], [0, 5, 5], [6, 6, 5], [6, 6, 6]])
    targets = torch.randn(6, 3, 3, dtype=torch.float64)

    def norms(mode):
        engine = build_engine(copy.deepcopy(model).double(), mode)
        engine.record_losses(product, engine.forward(tokens), targets).sum().backward()
        return as_gradients(engine.gradients()).squared_norms()["0.weight"]

    torch.testing.assert_close(norms("one-pass"), norms("loop"), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("side", ["inputs", "gradients"])
def test_a_side_that_vanishes_in_float32_is_made_up_for(side):
    """Inputs of 1e-25 with gradients of 1e20, and the other way round: squares of one side are 0, those of the product are not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    small, large = torch.randn(5, 2, 16, dtype=torch.float64) * 1e-25, torch.randn(5, 2, 16, dtype=torch.float64) * 1e18
    inputs, targets = (small, large) if side == "inputs" else (large, small)

    def norms(mode, dtype):
        engine = build_engine(copy.deepcopy(model).to(dtype), mode)
        engine.record_losses(product, engine.forward(inputs.to(dtype)), targets.to(dtype)).sum().backward()
        return as_gradients(engine.gradients()).squared_norms()["0.weight"].sqrt()

    torch.testing.assert_close(norms("one-pass", torch.float32), norms("loop", torch.float64), rtol=1e-3, atol=0.0)


# -- micro-batches --


def test_what_many_micro_batches_add_is_not_rounded_between_them(books):
    """Gradients below the threshold are added as they are. In float32 the sum of four hundred of them would be off by 1e-4."""
    torch.manual_seed(0)
    inputs = torch.rand(400, 1) + 0.1
    sums = []

    def exact(exact_sum, standard_deviation, noise, divisor):
        sums.append(float(exact_sum))
        return exact_sum

    model, execution = nn.Sequential(nn.Linear(1, 1, bias=False)), ap.Execution(micro_batch=1)
    held_back = Curator(
        as_records((inputs, torch.ones(400, 1))),
        build_engine(model, "one-pass"),
        books,
        Randomness.seeded(0),
        execution,
        Gaussian(exact),
    )
    held_back.answer(Request(1.0, 1.0, 1.0, (ClippedSum(2.0),)), product)
    assert sums == [pytest.approx(float(inputs.double().sum()), rel=1e-12)]


@pytest.mark.parametrize("late", [0, 1, 9, 35])
@pytest.mark.parametrize("mode", ["one-pass", "loop"])
def test_a_loss_that_takes_up_weights_of_its_own_later_leaves_no_gradient_in_them(model, records, books, mode, late):
    """In whichever micro-batch: a raw gradient would be left in them."""
    scale, calls = nn.Parameter(torch.ones(())), []

    def loss(outputs, targets):
        calls.append(1)
        return (scale if len(calls) > late else 1.0) * cross_entropy(outputs, targets)

    held = Curator(
        as_records(records), build_engine(model, mode), books, Randomness.seeded(0), ap.Execution(micro_batch=1)
    )
    held.answer(Request(1.0, 1.0, 40.0, (ClippedSum(1.0),)), loss)
    assert len(calls) > late
    assert scale.grad is None


@pytest.mark.parametrize("late", [0, 1, 9, 35])
def test_a_head_that_a_loop_takes_up_later_is_refused_then(model, records, budget, late):
    torch.manual_seed(0)
    head, seen = nn.Linear(2, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = runs.make_private(
        model,
        optimizer,
        records,
        budget=budget,
        population=40,
        sample_rate=1.0,
        steps=2,
        seed=0,
        execution=ap.Execution(micro_batch=2),
    )
    with pytest.raises(UnsupportedModel, match="outside the model's parameters"):
        for x, y in run.batches():
            outputs = run.model(x)
            seen.append(1)
            cross_entropy(head(outputs) if len(seen) > late else outputs, y).backward()
            run.optimizer.step()
    assert len(seen) == late + 1
    assert head.weight.grad is None


def test_a_gradient_that_lies_in_a_frozen_weight_is_applied_in_no_step(model, records, budget):
    """Not in the first one either, in a loop that clears nothing itself."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    run = runs.make_private(model, optimizer, records, budget=budget, population=40, sample_rate=1.0, steps=3, seed=0)
    for x, y in run.batches():
        model[0].weight.grad = torch.ones_like(model[0].weight)
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        assert torch.equal(model[0].weight, before)


# -- inputs --


class ConfusesContexts(nn.Module):
    """Two inputs. The second is brought from (b, T, d) to (T, b, d) without a transposition: right for T = 1 alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, context):
        steps = context.reshape(context.shape[1], context.shape[0], context.shape[2])
        return self.layer(x + steps.cumsum(0)[-1])


@pytest.mark.parametrize("named", [False, True], ids=["in order", "by name"])
def test_another_shape_of_the_second_input_alone_is_another_shape(budget, named):
    """The first input of all records has one shape. A record with a longer context runs with others only if it stays apart."""
    torch.manual_seed(0)
    model = ConfusesContexts()

    def record(steps):
        inputs = (torch.randn(3), torch.randn(steps, 3))
        return dict(zip(("x", "context"), inputs, strict=True)) if named else inputs, 1e3 * torch.randn(2)

    first, longer = record(1), [record(8) for _ in range(9)]
    found = [moved(model, [first, *longer[:at]], longer[at], budget, micro_batch=4) for at in (4, 5, 6)]
    assert 0.9 <= max(found) <= BOUND


# -- draws --


def test_an_exact_run_has_other_bits_for_every_purpose_of_every_draw(model, records, budget, tmp_path, monkeypatch):
    """Coins, noise and dropout, of all steps: no word twice, neither at the beginning of a stream nor shifted by a few words."""
    seen, original = [], ExactCurator.next_draw

    def watched(self):
        streams = original(self)
        seen.append([stream.words(16).tolist() for stream in (streams.coins, streams.noise, streams.model)])
        return original(self)  # the same draw once more, from its beginning

    monkeypatch.setattr(ExactCurator, "next_draw", watched)
    runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=1.0,
        steps=3,
        lr=0.1,
        out=tmp_path / "run",
        recovery=Recovery(mode="exact", every=1),
    )
    words = [word for draw in seen for stream in draw for word in stream]
    assert len(seen) == 3
    assert len(set(words)) == len(words) == 3 * 3 * 16


def test_a_forked_process_of_an_exact_run_gets_no_bits(model, records, budget, tmp_path, monkeypatch):
    """Parent and child would add the same noise to different steps."""
    with pytest.raises(WrongOrder, match="forked"):
        runs.train(
            model,
            cross_entropy,
            records,
            budget=budget,
            population=40,
            sample_rate=1.0,
            steps=3,
            lr=0.1,
            out=tmp_path / "run",
            recovery=Recovery(mode="exact", every=1),
            on_step=lambda entry: monkeypatch.setattr("os.getpid", lambda: -1),
        )


def test_nobody_else_may_read_what_an_exact_run_keeps_secret(model, records, budget, tmp_path):
    """The key above all, from the first step on: the noise follows from it."""
    seen = set()

    def look(entry):
        secret = tmp_path / "run/secret"
        for path in (secret, *secret.iterdir()):
            seen.add(path.name)
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path.name

    runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=1.0,
        steps=2,
        lr=0.1,
        out=tmp_path / "run",
        recovery=Recovery(mode="exact", every=1),
        on_step=look,
    )
    assert {"secret", "key", "checkpoint", "ledger.sqlite", "draws.sqlite"} <= seen


@pytest.mark.parametrize("change", ["less noise", "another order", "one less"])
def test_a_run_goes_on_with_the_tokens_that_it_was_admitted_with(budget, change):
    tokens = [Event(1.0, 20.0), Event(1.0, 30.0), Event(1.0, 40.0)]
    ledger = Ledger.create()
    started = Account(budget, FixedPlan(tokens), ledger, identifier="mine")
    started.charge(tokens[0])
    others = {
        "less noise": [*tokens[:2], Event(1.0, 39.9)],
        "another order": [tokens[0], tokens[2], tokens[1]],
        "one less": tokens[:2],
    }[change]
    with pytest.raises(InvalidArgument, match="with another plan"):
        Account(budget, FixedPlan(others), ledger, identifier="mine", position=1)
    assert Account(budget, FixedPlan(tokens), ledger, identifier="mine", position=1).left == 2


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_reading_of_epsilon_counts_every_charge(budget, every):
    """However often ε was read before, and although no two steps are alike."""
    tokens = [Event(0.05, 2.0 + 0.1 * step) for step in range(7)]
    account = Account(budget, FixedPlan(tokens), Ledger.create())
    for step, token in enumerate(tokens, 1):
        account.charge(token)
        if step % every == 0:
            expected = PrivacyLossAccountant().epsilon(dict.fromkeys(tokens[:step], 1), budget.delta)
            assert expected * (1 - 1e-6) <= account.epsilon() <= expected * 1.02


# -- groups --


@pytest.mark.parametrize("groups", [("a", "a"), ("a", "b", "a"), ("a", "b", "c", "b"), ("a", "b", "c", "d", "a")])
def test_a_parameter_in_any_two_groups_is_refused(groups):
    with pytest.raises(InvalidArgument, match="released twice"):
        Request(1.0, 1.0, 1.0, tuple(ClippedSum(1.0, (name,), 1 / len(groups)) for name in groups))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_frame_of_any_parameter_must_be_usable(odd):
    def frame(value):
        return {f"p{i}": torch.tensor([1.0, value if i == odd else 1.0]) for i in range(3)}

    shapes = {f"p{i}": (2,) for i in range(3)}
    Frame(frame(1.0), frame(1.0)).require_usable(shapes)
    for centre, scale in (
        (frame(float("nan")), frame(1.0)),
        (frame(1.0), frame(0.0)),
        (frame(1.0), frame(float("inf"))),
    ):
        with pytest.raises(InvalidArgument, match="frame"):
            Frame(centre, scale).require_usable(shapes)
    with pytest.raises(InvalidArgument, match="frame"):
        Frame(frame(1.0), frame(1.0)).require_usable(shapes | {f"p{odd}": (3,)})


# -- runs --


@pytest.mark.parametrize("points", [1, 2, 5, 16, 2048])
@pytest.mark.parametrize("plan", [{Event(0.004, 1.2): 3000}, {Event(0.2, 2.1): 20}], ids=["long", "short"])
def test_the_price_of_a_run_bounds_its_curve_between_the_points_too(monkeypatch, points, plan):
    """However few points are looked at. δ_run(e) ≤ (1−d)·δ_μ(e) + d is wanted for every e ≥ 0; fewer points may only cost more."""
    failure = 1e-8
    finest = run_filter.gaussian_cost(plan, failure)
    monkeypatch.setattr(run_filter, "_POINTS", points)
    cost = run_filter.gaussian_cost(plan, failure)
    assert cost.main >= finest.main * (1 - 1e-9)
    curves = [PrivacyLossAccountant().curve(plan, delta) for delta in (1e-7, 1e-5, 1e-3, 0.1)]
    last = PrivacyLossAccountant().epsilon(plan, failure)
    for epsilon in np.linspace(0.0, last, 257):
        truth = min(curve.delta(float(epsilon)) for curve in curves)
        bound = (1 - failure) * gaussian_delta(cost.main**0.5, float(epsilon)) + failure
        assert bound >= truth * (1 - 1e-6), epsilon
