"""The update role: any optimiser on released gradients; averages and divisions of them are free."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.training.evaluation import accuracy


class Logged(ap.clip.Decay):
    """A clip that writes down what was released, as any strategy may; not the zeros with which a run is rehearsed."""

    def observe(self, state, released):
        if any(value.any() for value in released.gradient.values()):
            self.log.append(released)


def logged_clip(**options):
    clip = Logged(**options)
    object.__setattr__(clip, "log", [])
    return clip


def train(model, records, budget, seed=3, lr=0.5, **options):
    return runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=0.4,
        steps=6,
        lr=lr,
        seed=seed,
        progress=False,
        **options,
    )


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("momentum", lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)),
    ],
)
def test_a_private_optimiser_is_the_ordinary_one_on_released_gradients(model, records, budget, name, by_hand):
    """Bit for bit, with a learning-rate scheduler: nothing but what was released reaches the optimiser."""
    twin, clip = copy.deepcopy(model), logged_clip(start=0.7)
    train(model, records, budget, optimizer=name, lr=0.01, clip=clip, scheduler=halving)
    optimizer = by_hand(twin.parameters(), lr=0.01)
    scheduler = halving(optimizer)
    for released in clip.log:
        for parameter_name, parameter in twin.named_parameters():
            parameter.grad = released.gradient[parameter_name].clone()
        optimizer.step()
        scheduler.step()
    assert len(clip.log) == 6
    assert same(weights(model), weights(twin))


def test_a_learning_rate_of_the_plan_is_that_of_an_ordinary_optimiser(model, records, budget):
    """Bit for bit with momentum, which a longer gradient in its place would remember."""
    twin, clip = copy.deepcopy(model), logged_clip(start=0.7)
    update = ap.update.LearningRate(warm_up=0.5, decay="linear")
    run = train(model, records, budget, optimizer="momentum", lr=0.3, clip=clip, update=update)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3, momentum=0.9)
    factors = (1 / 3, 2 / 3, 1.0, 1.0, 1 - 1 / 3, 1 - 2 / 3)
    for released, factor in zip(clip.log, factors, strict=True):
        optimizer.param_groups[0]["lr"] = 0.3 * factor
        for name, parameter in twin.named_parameters():
            parameter.grad = released.gradient[name].clone()
        optimizer.step()
    assert same(weights(model), weights(twin))
    assert [entry.learning_rate for entry in run.history] == [(0.3 * factor,) for factor in factors]


def halving(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def test_the_average_has_the_stated_weights_and_does_not_touch_training(model, records, budget):
    """θ̄_t = (1 − β)·Σ_s β^(t−s)·θ_s / (1 − β^t), over the course of plain SGD on the same released values."""
    twin, start, clip = copy.deepcopy(model), weights(model), logged_clip(start=0.7)
    run = train(model, records, budget, clip=clip, update=ap.update.Plain(average=0.8))
    plain = train(twin, records, budget, clip=ap.clip.Decay(start=0.7))
    assert same(weights(model), weights(twin)), "averaging changed the training"
    assert plain.averaged is None
    course, now = [], start
    for released in clip.log:
        now = {name: value - 0.5 * released.gradient[name] for name, value in now.items()}
        course.append(now)
    norm = math.fsum(0.8 ** (6 - step) for step in range(1, 7))
    for name, value in run.averaged.named_parameters():
        expected = sum(0.8 ** (6 - step) * course[step - 1][name] for step in range(1, 7)) / norm
        torch.testing.assert_close(value.detach(), expected)
        assert not torch.equal(value, course[-1][name])


def test_the_average_of_one_step_is_that_step(model, records, budget):
    """Without the bias correction it would be (1 − β)·θ_1."""
    run = runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=0.4,
        steps=1,
        lr=0.5,
        seed=0,
        progress=False,
        update=ap.update.Plain(average=0.999),
    )
    for name, value in run.averaged.named_parameters():
        torch.testing.assert_close(value, dict(model.named_parameters())[name])


def test_evaluation_measures_the_averaged_weights(model, records, budget):
    public = ap.Public((torch.randn(400, 4), torch.randint(0, 2, (400,))))
    run = train(model, records, budget, lr=20.0, update=ap.update.Plain(average=0.9), evaluate=public)
    assert accuracy(run.averaged, public) != accuracy(run.model, public), "the test cannot tell them apart"
    assert run.history[-1].test_accuracy == accuracy(run.averaged, public)


def test_both_weights_are_saved(model, records, budget, tmp_path):
    run = train(model, records, budget, update=ap.update.Plain(average=0.9), out=tmp_path / "run")
    public = tmp_path / "run" / "public"
    assert same(load_file(public / "weights.safetensors"), weights(model))
    assert same(load_file(public / "averaged.safetensors"), weights(run.averaged))
    assert json.loads((public / "configuration.json").read_text())["plan"]["recipe"]["update"] == {
        "kind": "Plain",
        "average": 0.9,
        "divide_by_clip": False,
    }
    assert len(json.loads((public / "privacy.json").read_text())["averaged_weights_sha256"]) == 64
    train(model, records, budget, out=tmp_path / "other")
    assert not (tmp_path / "other" / "public" / "averaged.safetensors").exists()


def test_the_average_survives_a_crash(model, records, budget, tmp_path):
    def private(resume, average=0.9):
        return runs.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            records,
            budget=budget,
            population=40,
            sample_rate=0.4,
            steps=6,
            out=tmp_path / "run",
            update=ap.update.Plain(average=average),
            recovery=runs.Recovery(every=1, spare=1),
            resume=resume,
        )

    def go_on(run, **how_far):
        for x, y in run.batches(**how_far):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()

    first = private(resume=False)
    go_on(first, steps=3)
    before = weights(first.run.averaged)
    with pytest.raises(ap.InvalidArgument, match="the run was started with plan.recipe.update.average"):
        private(resume=True, average=0.8)
    second = private(resume=True)
    assert same(weights(second.run.averaged), before)
    go_on(second)
    assert not same(weights(second.run.averaged), before)


@pytest.mark.parametrize("groups", ["flat", "layer"])
def test_divided_by_the_clip_a_learning_rate_keeps_its_meaning(model, records, budget, groups):
    """The first SGD step is g̃/C, with the overall threshold C = √(Σ_k C_k²) = 0.7 for one group and for one a layer."""
    start, clip = weights(model), logged_clip(start=0.7, groups=groups)
    train(model, records, budget, lr=0.3, clip=clip, update=ap.update.Plain(divide_by_clip=True))
    now = start
    for released, threshold in zip(clip.log, (0.7, 0.7, 0.7 / 2**0.5), strict=False):  # two steps an epoch
        overall = math.sqrt(sum(one.threshold**2 for one in released.request.sums))
        assert overall == pytest.approx(threshold)
    for released in clip.log:
        overall = math.sqrt(sum(one.threshold**2 for one in released.request.sums))
        now = {name: value - 0.3 * released.gradient[name] / overall for name, value in now.items()}
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), now[name])


def test_a_clip_without_a_threshold_cannot_be_divided_by(model, records, budget, tmp_path):
    with pytest.raises(ap.InvalidArgument, match=r"update.divide_by_clip=True.*no threshold to divide by"):
        train(
            model,
            records,
            budget,
            clip=ap.clip.AdaClip(),
            update=ap.update.Plain(divide_by_clip=True),
            out=tmp_path / "run",
        )
    assert not list(tmp_path.rglob("ledger.sqlite"))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ap.update.Plain(average=0.0), "update.average=0.0"),
        (lambda: ap.update.Plain(average=1.0), "never takes up new ones"),
        (lambda: ap.update.Plain(average=math.nan), "update.average=nan"),
        (lambda: ap.update.Plain(average="much"), "a number is needed"),
        (lambda: ap.update.Plain(divide_by_clip=1), "update.divide_by_clip=1"),
    ],
)
def test_out_of_range(build, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        build()


def test_something_else_is_no_update(model, records, budget):
    with pytest.raises(ap.InvalidArgument, match="update='plain': it is not an update strategy"):
        train(model, records, budget, update="plain")
