"""No strategy needs a raw value: all of them run beside a curator whose raw tensors cannot be touched from outside."""

import copy
import gc
import itertools
import pickle
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import apportion as ap
from apportion.audit import sealed as sealed_module
from apportion.audit.sealed import Sealed, SealedAccess, inside, seal, sealed, unseal
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records, as_records
from apportion.execution import Execution
from apportion.releases import ClippedSum
from apportion.strategies.recipes import READY, named
from apportion.training.loop import take_steps
from apportion.training.opening import open_session
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Setup
from runs import recipe as recipe_of
from suites import thinned

LOSS = nn.CrossEntropyLoss()
STEPS = 4
CLIPS = {
    "fixed": ap.clip.Fixed(0.1),
    "decay": ap.clip.Decay(start=0.5),
    "linear decay": ap.clip.LinearDecay(start=0.5),
    "sensitivity decay": ap.clip.SensitivityDecay(start=0.5),
    "sequence": ap.clip.Sequence((0.5, 0.2)),
    "quantile": ap.clip.Quantile(share=0.1, groups="layer"),
    "norms": ap.clip.NormBased(groups="layer"),
    "adaclip": ap.clip.AdaClip(),
    "automatic": ap.clip.Automatic(),
    "percentile": ap.clip.NormPercentile(),
    "least error": ap.clip.LeastError(),
}
NOISES = {
    "constant": ap.noise.Constant(),
    "growing": ap.noise.GrowingMu(),
    "time": ap.noise.TimeDecay(),
    "exponential": ap.noise.ExponentialDecay(),
    "step": ap.noise.StepDecay(),
    "polynomial": ap.noise.PolynomialDecay(),
    "geometric": ap.noise.GeometricDecay(),
    "linear": ap.noise.LinearDecay(),
    "influence": ap.noise.InfluenceWeighted(),
    "privacy-utility": ap.noise.PrivacyUtility(),
    "adaptive privacy-utility": ap.noise.AdaptivePrivacyUtility(),
    "validation": ap.noise.Validation(counts=(2, 1)),
}
OWNS_BOTH = ap.clip.FixedDeviation(start=0.5, ramp_steps=3)


UPDATES = {
    "adadp": ap.update.AdaDP(),
    "dp-agd": ap.update.DPAGD(),
    "noisy-btls": ap.update.NoisyBTLS(),
    "adamw": ap.update.AdamW(corrected=True),
    "low-pass": ap.update.LowPass(),
    "rate": ap.update.LearningRate(warm_up=0.5),
    "tail": ap.update.TailAverage(),
    "chain": ap.update.Chain((ap.update.LowPass(), ap.update.LearningRate())),
}
PROTOCOLS = {
    "FeedbackNoise",
    "MultisetNoise",
    "NoiseSchedule",
    "ValidatedNoise",
    "AskingUpdate",
    "SteeringUpdate",
    "Update",
}


def a_session(model, records, clip, noise=None, update=None, *, mode="vmap", micro_batch=7, closed=True):
    setup = Setup(
        model=model,
        optimizer=build_optimizer(model, "momentum" if update is None else "sgd", 0.1),
        records=as_records(records),
        plan=ap.plan(
            recipe_of(clip, noise, update),
            budget=ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.Record()),
            population=40,
            sample_rate=0.5,
            steps=STEPS,
        ),
        choice=EngineChoice(mode),
        execution=Execution(micro_batch),
        randomness=Randomness.seeded(0),
        validation=ap.Public(records),
    )
    return open_session(sealed(setup) if closed else setup)


RECIPES = [name for name in READY if named(name).private]


def by_turns(recipe, mode):
    """In the core suite one engine after the other; those that ask for losses, or for statistics, with both."""
    return mode == ("vmap", "loop")[RECIPES.index(recipe) % 2] or recipe in ("dp-agd", "andrew")


@pytest.mark.parametrize(("recipe", "mode"), thinned(itertools.product(RECIPES, ["vmap", "loop"]), by_turns))
def test_every_recipe_runs_without_raw_values(model, records, recipe, mode):
    """And gives the same weights as with an ordinary curator: the seals change nothing but who may look."""
    chosen, other = named(recipe), copy.deepcopy(model)
    roles = (
        chosen.clip,
        ap.noise.Validation(counts=(2, 1)) if recipe == "yu-validation" else chosen.noise,
        chosen.update,
    )
    session = a_session(model, records, *roles, mode=mode)
    take_steps(session, LOSS)
    assert session.step == session.plan.steps
    take_steps(a_session(other, records, *roles, mode=mode, closed=False), LOSS)
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        assert type(one.data) is torch.Tensor
        assert torch.equal(one, another)


# Every clip with two noises, which know nothing of each other.
PAIRS = [(clip, noise) for i, clip in enumerate(CLIPS) for j, noise in enumerate(NOISES) if (i - j) % 5 == 0]


@pytest.mark.parametrize(("clip", "noise"), PAIRS)
def test_every_strategy_runs_without_raw_values(model, records, clip, noise):
    session = a_session(model, records, CLIPS[clip], NOISES[noise])
    take_steps(session, LOSS)
    assert session.step == session.plan.steps or session.plan.filtered


def in_core(clip, update):
    """Every clip with one update, and every update with a clip."""
    return list(UPDATES)[list(CLIPS).index(clip) % len(UPDATES)] == update


@pytest.mark.parametrize(("clip", "update"), thinned(itertools.product(CLIPS, UPDATES), in_core))
def test_every_update_runs_without_raw_values(model, records, clip, update):
    session = a_session(model, records, CLIPS[clip], update=UPDATES[update])
    take_steps(session, LOSS)
    assert session.step > 0


def test_a_strategy_of_both_roles_runs_without_raw_values(model, records):
    session = a_session(model, records, OWNS_BOTH)
    take_steps(session, LOSS)
    assert session.step == STEPS


def test_every_built_in_strategy_is_here():
    built_in = {getattr(ap.clip, name) for name in ap.clip.__all__} - {ap.clip.Clip}
    assert built_in == {type(strategy) for strategy in (*CLIPS.values(), OWNS_BOTH)}
    built_in = {getattr(ap.noise, name) for name in ap.noise.__all__ if name not in PROTOCOLS}
    assert built_in == {type(strategy) for strategy in NOISES.values()}
    built_in = {getattr(ap.update, name) for name in ap.update.__all__ if name not in PROTOCOLS}
    assert built_in == {type(strategy) for strategy in UPDATES.values()} | {ap.update.Plain}


@dataclass(frozen=True)
class Nosy:
    """Looks for something in `observe`, and uses whatever it finds."""

    look: object

    def init(self, context):
        return None

    def propose(self, state, context):
        return (ClippedSum(1.0),)

    def observe(self, state, released):
        if not any(value.any() for value in released.gradient.values()):
            return  # rehearsed: nothing has been read yet
        for tensor in self.look():
            try:
                float(tensor.sum())
            except Exception:  # a strategy that hides its curiosity
                continue


def caller(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def records_in_frames():
    return caller("session").curator._records.batch(np.arange(3))


def an_open_draw():
    session = caller("session")
    draw = session.curator.open(session.next_request())
    gradients = gradients_by_name()
    draw.add(gradients, torch.arange(len(next(iter(gradients.values())))))
    return draw._sums.values()


def micro_batches_of_a_draw():
    session = caller("session")
    return next(session.curator.open(session.next_request()).micro_batches()).batch


def gradients_by_name():
    engine, (inputs, targets) = caller("session").engine, caller("records_of_the_test")
    with inside():
        engine.record_losses(LOSS, engine.forward(seal(inputs)), seal(targets)).sum().backward()
        return engine.gradients()


def gradients():
    return gradients_by_name().values()


def outputs():
    engine, (inputs, _) = caller("session").engine, caller("records_of_the_test")
    with inside():
        result = engine.forward(seal(inputs))
    return [result]


def everything_in_memory():
    return [thing for thing in gc.get_objects() if type(thing) is Sealed]


@pytest.mark.parametrize(
    "look", [records_in_frames, an_open_draw, micro_batches_of_a_draw, gradients, outputs, everything_in_memory]
)
def test_a_nosy_strategy_raises(model, records, look):
    records_of_the_test = records
    session = a_session(model, records_of_the_test, Nosy(look))
    with pytest.raises(SealedAccess, match="a raw tensor was"):
        take_steps(session, LOSS)


def ordinary_tensors_with_a_record(inputs):
    gc.collect()
    everything = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and thing is not inputs]
    valued = [
        tensor for tensor in everything if tensor.device == inputs.device
    ]  # other tests leave some without values
    shaped = [tensor for tensor in valued if tensor.dim() == 2 and tensor.shape[1:] == inputs.shape[1:]]
    return [tensor for tensor in shaped if (tensor.unsqueeze(1) == inputs).all(-1).any()]


def test_no_ordinary_tensor_with_a_record_is_left_after_an_answer(model):
    """The seals are on all that the curator leaves behind, so looking through the whole memory helps nobody."""
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(5))
    session = a_session(model, (inputs, torch.zeros(40, dtype=torch.int64)), ap.clip.Fixed(1.0))
    session.curator.answer(session.next_request(), LOSS)
    assert not ordinary_tensors_with_a_record(inputs)
    kept = inputs[3:5].clone()
    assert ordinary_tensors_with_a_record(inputs)[0] is kept


def reachable(start, *avoided):
    """All that an object leads to, but for code, and not through what is avoided."""
    seen, waiting = {id(one): None for one in avoided}, [start]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(
            one, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
        ):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
    return seen.values()


def test_records_are_reached_through_the_curator_alone(model):
    session = a_session(model, (torch.randn(40, 4), torch.zeros(40, dtype=torch.int64)), ap.clip.Fixed(1.0))
    held = {name: value for name, value in vars(session).items() if name != "curator"}
    assert any(isinstance(one, Records) for one in reachable(session.curator))
    assert not any(isinstance(one, Records) for one in reachable(held, session, session.curator))


USES = {
    "method": lambda t: t.sum(),
    "operator": lambda t: t + 1,
    "right operator": lambda t: 1 + t,
    "function": lambda t: torch.add(torch.ones(2), t),
    "unbound method": lambda t: torch.Tensor.sum(t),
    "comparison": lambda t: t == t,
    "index": lambda t: t[0],
    "length": len,
    "iteration": list,
    "truth": bool,
    "number": float,
    "item": lambda t: t.item(),
    "list": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "array": np.asarray,
    "data": lambda t: t.data,
    "gradient": lambda t: t.grad,
    "shape": lambda t: t.shape,
    "detach": lambda t: t.detach(),
    "another class": lambda t: torch.Tensor.as_subclass(t, torch.Tensor),
    "constructor": lambda t: torch.tensor(t),
    "old constructor": lambda t: torch.Tensor(t),
    "parameter": lambda t: nn.Parameter(t),
    "written elsewhere": lambda t: torch.zeros(2).copy_(t),
    "memory shared": lambda t: torch.zeros(2).set_(t),
    "memory": lambda t: t.untyped_storage(),
    "exported": torch.from_dlpack,
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "formatted": lambda t: f"{t:.2f}",
    "unsealed": unseal,
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("use", USES)
def test_a_sealed_tensor_refuses_every_use(use):
    tensor = seal(torch.ones(2))
    with pytest.raises(SealedAccess):
        USES[use](tensor)


def test_a_sealed_tensor_shows_nothing():
    assert repr(seal(torch.full((2,), 7.0))) == str(seal(torch.full((2,), 7.0))) == "Sealed(...)"


def test_inside_what_is_computed_stays_sealed():
    tensor = seal(torch.ones(2))
    with inside():
        result = (2 * tensor).sum()
        assert float(result) == 4
        assert type(unseal(result)) is torch.Tensor
    assert type(result) is Sealed
    with pytest.raises(SealedAccess):
        float(result)


def test_only_noise_opens_a_seal():
    total = seal(torch.zeros(1000, dtype=torch.float64))
    with inside():
        noisy = sealed_module.DeclassifyingMechanisms().add_gaussian_noise(
            total, 2.0, Randomness.seeded(0).next_draw().noise, 1.0
        )
    assert type(noisy) is torch.Tensor
    assert 1.8 < float(noisy.std()) < 2.2
