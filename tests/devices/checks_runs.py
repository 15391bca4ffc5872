"""Whole runs: the model on the second device and the records on the CPU. A seeded run ends with the weights that it has on the CPU."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import apportion as ap
import second_device
from apportion import devices
from apportion.curator.curator import Draw
from apportion.models.synthetic import fix_seed
from apportion.teachers.teaching import Fit, ask_model, fit_model
from second_device import SECOND, move

second_device.install()

POPULATION = 48
BUDGET = ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.Record())


def records(size=POPULATION):
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs.sum(1) > 0).long()


def build(place, dropout=0.3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 2))
    return move(model) if place == SECOND else model


def plan_of(recipe, budget=BUDGET, steps=4, **more):
    return ap.plan(recipe, budget=budget, population=POPULATION, batch_size=16, steps=steps, **more)


def weights_of(model):
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def close(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


RECIPES = {
    "default": (ap.recipes.default, "momentum"),
    "abadi": (lambda: ap.recipes.abadi(threshold=0.5), "adam"),
    "andrew": (ap.recipes.andrew, "sgd"),
    "dc-sgd-e": (ap.recipes.dc_sgd_e, "sgd"),
    "adaclip": (ap.recipes.adaclip, "sgd"),
    "lin-transfer": (lambda: ap.recipes.lin_transfer(thresholds=(0.5, 0.4)), "sgd"),
    "adadp": (ap.recipes.adadp, "sgd"),
    "adamw-bc": (ap.recipes.adamw_bc, "sgd"),
    "auto-s": (ap.recipes.auto_s, "adamw"),
    "he-equal": (ap.recipes.he_equal, "rmsprop"),
    "dp-agd": (ap.recipes.dp_agd, "sgd"),
    "noisy-btls": (ap.recipes.noisy_btls, "sgd"),
}


def trained(place, recipe, optimizer="sgd", **options):
    model = build(place)
    run = ap.train(model, cross_entropy, records(), plan_of(recipe), lr=0.2, optimizer=optimizer, seed=5, **options)
    return model, run


LONG = [name for name in RECIPES if name != "default"]  # a run without float64 has another one


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in RECIPES])
def test_a_seeded_run_has_the_weights_of_the_cpu(name):
    """Dropout included: the device's generator is seeded by the draw, and this device turns seeds into the numbers of the CPU."""
    recipe, optimizer = RECIPES[name]
    public = ap.Public(records(20))
    (here, run_here), (there, run_there) = (
        trained(place, recipe(), optimizer, evaluate=public, evaluate_every=1) for place in ("cpu", SECOND)
    )
    assert all(value.device.type == "second" for value in there.state_dict().values())
    close(weights_of(there), weights_of(here))
    assert [entry.score for entry in run_there.history] == [entry.score for entry in run_here.history]
    assert not torch.equal(weights_of(there)["0.weight"], weights_of(build("cpu"))["0.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_with_another_engine(engine):
    execution = ap.Execution(engine=engine, micro_batch=5)  # several, which are added in float64
    found = [weights_of(trained(place, ap.recipes.abadi(), execution=execution)[0]) for place in ("cpu", SECOND)]
    close(*found[::-1])


@pytest.mark.slow
def test_users():
    def go(place):
        users = np.arange(POPULATION) % 12
        budget = ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.User(ids=users, k_max=6))
        plan = ap.plan(ap.recipes.abadi(), budget=budget, population=12, batch_size=6, steps=3)
        model = build(place)
        ap.train(model, cross_entropy, records(), plan, lr=0.2, seed=5, execution=ap.Execution(micro_batch=4))
        return weights_of(model)

    close(go(SECOND), go("cpu"))


@pytest.mark.slow
def test_records_may_be_on_the_device_too():
    def go(place):
        model = build(place)
        data = tuple(part.to(place) for part in records())
        ap.train(
            model, cross_entropy, data, plan_of(ap.recipes.abadi()), lr=0.2, seed=5, domain=ap.Domain(inputs=(-1, 1))
        )
        return weights_of(model)

    close(go(SECOND), go("cpu"))


def own_loop(place):
    model = build(place)
    private = ap.make_private(
        model, torch.optim.Adam(model.parameters(), lr=0.05), records(), plan_of(ap.recipes.andrew()), seed=5
    )
    for inputs, targets in private.batches():
        assert inputs.device.type == targets.device.type == torch.device(place).type
        private.optimizer.zero_grad()
        cross_entropy(private.model(inputs), targets).backward()
        private.optimizer.step()
    return weights_of(model)


def test_a_loop_of_ones_own():
    close(own_loop(SECOND), own_loop("cpu"))


def test_a_run_is_continued_where_it_was(tmp_path):
    """From a checkpoint: weights, the optimiser's state, the strategies' and the averaged weights are on the device again."""

    class Stopped(Exception):
        pass

    def stop(entry):
        if entry.step == 3:
            raise Stopped

    def go(place, resume, progress=None):
        model = build(place)
        plan = plan_of(
            ap.Recipe(clip=ap.clip.AdaClip(), update=ap.recipes.default().update), spare=2, count_usable=False
        )
        storage = ap.Storage(tmp_path / "run", every=1, resume=resume)
        return model, ap.train(
            model, cross_entropy, records(), plan, lr=0.2, optimizer="adam", storage=storage, progress=progress
        )

    with pytest.raises(Stopped):
        go(SECOND, resume=False, progress=stop)
    model, run = go(SECOND, resume=True)
    assert run.steps == 4
    assert {value.device.type for value in model.state_dict().values()} == {"second"}
    assert {value.device.type for value in run.model.state_dict().values()} == {"second"}


def test_teachers():
    def votes(place):
        torch.manual_seed(4)
        return ask_model(
            fit_model(lambda: build(place, dropout=0.0), records(), Fit(epochs=2, lr=0.01)), records(20)[0]
        )

    assert votes(SECOND).tolist() == votes("cpu").tolist()


# generators


def test_the_secret_seed_of_a_draw_reaches_the_device_and_leaves_it():
    """Dropout on a device comes from that device's generator. It must toss from the draw's stream, and be as before afterwards."""

    class Streams:
        class model:  # noqa: N801
            @staticmethod
            def words(count):
                return np.full(count, 123 << 1, dtype=np.uint64)

    draw = Draw.__new__(Draw)
    draw._streams, draw._devices = Streams, {torch.device(SECOND)}
    before = second_device.module.get_rng_state().clone(), torch.get_rng_state()
    with draw.secret_dropout():
        found = torch.rand(5, device=SECOND).cpu(), torch.rand(5)
    assert torch.equal(found[0], torch.rand(5, generator=torch.Generator().manual_seed(123)))
    assert torch.equal(found[1], torch.rand(5, generator=torch.Generator().manual_seed(123)))
    assert torch.equal(second_device.module.get_rng_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_private_run_leaves_the_generators_as_they_were():
    second_device.module.manual_seed(8)
    torch.manual_seed(8)
    model = build(SECOND)
    torch.manual_seed(8)
    before = second_device.module.get_rng_state().clone(), torch.get_rng_state()
    ap.train(model, cross_entropy, records(), plan_of(ap.recipes.abadi(), steps=2, count_usable=False), lr=0.2)
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.equal(second_device.module.get_rng_state(), before[0])


def test_what_models_are_compared_by_is_fixed_on_the_device():
    def drawn():
        with fix_seed(3, torch.device(SECOND)):
            return torch.rand(4, device=SECOND).cpu()

    assert torch.equal(drawn(), drawn())


# a device without float64, as "mps"


@pytest.fixture
def narrow():
    devices.has_float64.cache_clear()
    with second_device.without_float64():
        yield
    devices.has_float64.cache_clear()


@pytest.mark.parametrize(
    "name", ["adaclip", pytest.param("default", marks=pytest.mark.slow), pytest.param("dp-agd", marks=pytest.mark.slow)]
)
def test_a_run_without_float64(narrow, name):
    recipe, optimizer = RECIPES[name]
    execution = ap.Execution(micro_batch=5)
    here, there = (weights_of(trained(place, recipe(), optimizer, execution=execution)[0]) for place in ("cpu", SECOND))
    close(there, here)


def test_records_in_float64_are_refused_before_anything_is_charged(narrow, tmp_path):
    inputs, targets = records()
    storage = ap.Storage(tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match="float64"):
        ap.train(
            build(SECOND),
            cross_entropy,
            (inputs.double(), targets),
            plan_of(ap.recipes.abadi()),
            lr=0.1,
            storage=storage,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BERT", "GPT-2", "T5"])
def test_a_model_of_transformers_is_fine_tuned_on_the_device(kind):
    """Its masks, its positions, and what it is tried on before anything is charged are made where it is."""
    pytest.importorskip("transformers")
    from integrations.small_transformers import build, items

    weights = []
    for place in ("cpu", SECOND):
        model = move(build(kind)) if place == SECOND else build(kind)
        ap.integrations.fine_tune(model, items(kind, POPULATION), plan_of("abadi", steps=2), lr=1e-2, seed=5)
        weights.append(weights_of(model))
    close(*weights[::-1])
