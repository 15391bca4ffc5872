import copy
import json
import math
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.curator import mechanisms
from apportion.event import Event
from apportion.request import Request
from apportion.sampling import Sampling
from apportion.training.evaluation import accuracy

SMALL = {"population": 40, "sample_rate": 0.25, "steps": 6, "lr": 0.5, "seed": 0}


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(model, data, budget, **options):
    return runs.train(model, cross_entropy, data, budget=budget, **{**SMALL, **options})


# --- what a run is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [ap.clip.Fixed(0.5), ap.clip.Decay(start=0.5)])
def test_a_run_ends_just_inside_its_budget(model, records, budget, clip):
    run = train(model, records, budget, clip=clip)
    assert 0.998 * 3.0 <= run.epsilon() <= 3.0
    assert run.steps == 6
    assert [entry.step for entry in run.history] == [1, 2, 3, 4, 5, 6]
    assert run.epsilon(1e-7) > run.epsilon()


def test_one_step_by_hand(model, records, budget):
    """θ − lr·(Σ clip(g_i) + z·C·noise)/(q·N), with the sum from single-record passes and the noise from the same stream."""
    from apportion.curator.randomness import Randomness

    start = copy.deepcopy(model)
    run = train(model, records, budget, steps=1, clip=ap.clip.Fixed(0.3), sample_rate=0.5)
    draw = Randomness.seeded(0).next_draw()
    total = torch.zeros_like(weights(start))
    for index in np.flatnonzero(draw.coins.coins(40, 0.5)):
        start.zero_grad()
        cross_entropy(start(records[0][index : index + 1]), records[1][index : index + 1]).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in start.parameters()])
        total += gradient * min(1.0, 0.3 / gradient.norm().item())
    noise = torch.cat([torch.from_numpy(draw.noise.normals(parameter.numel())) for parameter in start.parameters()])
    deviation = run.history[0].noise_multiplier * 0.3 * (1 + 1e-4)
    expected = weights(start) - 0.5 * (total + deviation * noise).float() / 20
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)


def test_training_learns(records, budget):
    torch.manual_seed(0)
    inputs = torch.randn(2000, 4)
    data = (inputs, (inputs.sum(1) > 0).long())
    model = nn.Linear(4, 2)
    run = runs.train(
        model,
        cross_entropy,
        data,
        budget=budget,
        population=2000,
        batch_size=400,
        epochs=6,
        lr=1.0,
        evaluate=ap.Public(data),
        seed=0,
    )
    assert run.history[-1].test_accuracy > 0.9


def test_a_decaying_clip_moves_threshold_and_noise_together(model, records, budget, monkeypatch):
    deviations = []
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(
        mechanisms,
        "add_gaussian_noise",
        lambda t, deviation, *rest: deviations.append(deviation) or right(t, deviation, *rest),
    )
    run = train(model, records, budget, clip=ap.clip.Decay(start=0.8), sample_rate=1.0)
    per_step = deviations[::4]
    ratios = [deviation / entry.clip[0] for deviation, entry in zip(per_step, run.history, strict=True)]
    assert ratios == pytest.approx([run.history[0].noise_multiplier * (1 + 1e-4)] * 6)
    assert run.history[0].clip[0] > run.history[3].clip[0]


def test_micro_batches_change_nothing(records, budget):
    def final(micro_batch):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        data = (records[0].double(), records[1])
        train(model, data, budget, execution=ap.Execution(micro_batch=micro_batch))
        return weights(model)

    torch.testing.assert_close(final(1), final(1000), rtol=1e-12, atol=1e-14)


def test_a_seed_repeats_and_secret_randomness_does_not(model, records, budget):
    def final(seed):
        copied = copy.deepcopy(model)
        run = train(copied, records, budget, seed=seed)
        assert run.private is (seed is None)
        return weights(copied)

    assert torch.equal(final(5), final(5))
    assert not torch.equal(final(5), final(6))
    torch.manual_seed(0)
    one = final(None)
    torch.manual_seed(0)
    assert not torch.equal(one, final(None))


def test_global_generators_are_left_alone(model, records, budget):
    before = torch.get_rng_state()
    train(model, records, budget, seed=None)
    assert torch.equal(before, torch.get_rng_state())


def test_optimizer_names_and_factories(model, records, budget):
    train(model, records, budget, optimizer="adam", lr=0.01, steps=2)
    train(model, records, budget, optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), steps=2)


def test_own_datasets_and_arrays(model, records, budget):
    def final(data):
        copied = copy.deepcopy(model)
        train(copied, data, budget)
        return weights(copied)

    expected = final(records)
    assert torch.equal(final(TensorDataset(*records)), expected)
    assert torch.equal(final((records[0].numpy(), records[1].numpy())), expected)


class Branches(nn.Module):
    """Takes integers and numbers by name; one of its layers is frozen, one is never used."""

    def __init__(self):
        super().__init__()
        self.words, self.output = nn.Embedding(5, 3), nn.Linear(7, 2)
        self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, ids, features):
        return self.output(torch.cat([self.words(ids).mean(1), self.frozen(features)], 1))


def test_dict_inputs_frozen_and_unused_parameters(records, budget):
    model = Branches()
    before = copy.deepcopy(model)
    data = ({"ids": torch.randint(0, 5, (40, 6)), "features": records[0]}, records[1])
    train(model, data, budget)
    assert torch.equal(model.frozen.weight, before.frozen.weight)
    for name in ("words", "output", "unused"):
        assert not torch.equal(getattr(model, name).weight, getattr(before, name).weight), f"{name} was not updated"


# --- the configuration is public ------------------------------------------------------------------------------------------


def test_neighbouring_data_sets_have_the_same_configuration(model, records, budget):
    inputs, targets = records

    def configuration(data):
        run = train(copy.deepcopy(model), data, budget)
        public = [(entry.clip, entry.noise_multiplier, entry.epsilon, entry.epoch) for entry in run.history]
        return run.configuration(), run.statement(), public

    assert configuration((inputs, targets)) == configuration((inputs[:-1], targets[:-1]))


def test_the_denominator_is_the_declared_size(model, records, budget):
    """Half the records, same declaration: an update from noise alone is exactly the same."""

    def update(data):
        copied = copy.deepcopy(model)
        train(copied, data, budget, sample_rate=1e-15, steps=1, noise=ap.noise.Constant(1.0))
        return weights(copied) - weights(model)

    assert torch.equal(update(records), update((records[0][:20], records[1][:20])))


@pytest.mark.parametrize(
    ("declared", "rate", "steps"),
    [
        ({"batch_size": 100, "epochs": 3}, 0.1, 30),
        ({"sample_rate": 0.3, "epochs": 2}, 0.3, 6),
        ({"batch_size": 100, "steps": 7}, 0.1, 7),
        ({"sample_rate": 1.0, "steps": 1}, 1.0, 1),
    ],
)
def test_declared_sampling(declared, rate, steps):
    sampling = Sampling.declare(population=1000, **declared)
    assert (sampling.sample_rate, sampling.steps) == (rate, steps)
    assert sampling.expected_batch_size == pytest.approx(1000 * rate)


# --- the budget is a limit ------------------------------------------------------------------------------------------------


def test_a_given_multiplier_stops_at_the_budget(model, records):
    budget = ap.Budget(epsilon=5.0, delta=1e-5, unit=ap.Record())
    run = train(model, records, budget, steps=500, noise=ap.noise.Constant(1.0))
    assert 0 < run.steps < 500
    assert run.epsilon() <= 5.0


def test_a_multiplier_that_affords_no_step_is_refused(model, records, budget):
    with pytest.raises(ap.InvalidArgument, match="a single step costs more"):
        train(model, records, budget, sample_rate=1.0, noise=ap.noise.Constant(0.3))


def test_a_request_that_costs_more_than_planned_is_refused_before_any_update(model, records, budget, monkeypatch):
    before = weights(model).clone()
    right = Request.event
    monkeypatch.setattr(Request, "event", lambda self: Event(right(self).sample_rate, right(self).noise_multiplier / 2))
    with pytest.raises(ap.BudgetExhausted, match="the plan declared"):
        train(model, records, budget)
    assert torch.equal(weights(model), before)


def test_evaluation_is_on_public_data_only(model, records, budget):
    with pytest.raises(ap.InvalidArgument, match=r"evaluate=apportion.Public"):
        train(model, records, budget, evaluate=records)


def test_user_hooks_do_not_touch_the_accounting(model, records, budget):
    expected = train(copy.deepcopy(model), records, budget).epsilon()
    model.register_forward_hook(lambda *_: None)
    assert train(model, records, budget, optimizer=_hooked).epsilon() == expected


def test_a_loss_module_keeps_nothing(model, records, budget):
    class Curious(nn.Module):
        def forward(self, outputs, targets):
            self.seen = outputs
            return cross_entropy(outputs, targets)

    curious = Curious()
    runs.train(model, curious, records, budget=budget, **SMALL)
    assert not hasattr(curious, "seen")


def _hooked(parameters, lr):
    optimizer = torch.optim.SGD(parameters, lr=lr)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def test_history_holds_no_raw_value(model, records, budget):
    run = train(model, records, budget, evaluate=ap.Public(records))
    allowed = {"step", "epoch", "clip", "noise_multiplier", "learning_rate", "epsilon", "test_accuracy"}
    assert all(set(entry.as_json()) == allowed for entry in run.history)
    assert all(math.isfinite(entry.epsilon) for entry in run.history)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_one_logit_is_scored_by_its_sign(records, shape):
    inputs, targets = records
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    assert accuracy(model, ap.Public((inputs, targets.float().reshape(shape)))) == 1.0
    with torch.no_grad():
        model.weight.fill_(-1.0)
    assert accuracy(model, ap.Public((inputs, targets.reshape(shape)))) == 0.0


def test_the_training_flag_is_put_back(model, records, budget):
    train(model.eval(), records, budget)
    assert not model.training


def test_an_interrupted_run_is_kept(model, records, budget, tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) > 40:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        runs.train(model, loss, records, budget=budget, out=tmp_path / "run", **{**SMALL, "steps": 500, "seed": None})
    charged = len(list(Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite").events()))
    statement = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())
    assert 0 < charged < 500
    assert statement["draws_charged"] == charged
    assert statement["epsilon"] > statement["epsilon_spent"], "the guarantee is that of the whole plan"
