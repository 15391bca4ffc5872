"""Models that strangers wrote: what the library answers is the clipped sum of the records' own gradients, or it refuses in a sentence.

The truth does not come from the library. The gradient of a record is that of one ordinary backward pass on this record alone, in a fresh
model in float64; a record without a finite gradient counts as zero.
"""

from __future__ import annotations

import copy
import random
import re
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch.utils._pytree import tree_map

import apportion as ap
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.tree import call_model, tensor_leaves
from apportion.errors import InvalidArgument, UnsupportedModel
from apportion.models.memory import resolve_micro_batch
from apportion.models.vetting import VettedEngine
from apportion.releases import FLOAT32_HEADROOM, ClippedSum
from apportion.request import Request
from apportion.training.opening import require_trainable
from items import Items
from runs import Gaussian
from strangers import KINDS, STRANGERS
from strangers.stranger import APART

BOUND = 1 + FLOAT32_HEADROOM
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
ROUGH = 2e-2
MICRO_BATCHES = (2, 3, 7, "auto")
CHANGES = ("loud", "nan", "between", "removed", "front", "repeated", "behind")
RECORDS = 9


@dataclass
class Outcome:
    """What became of a model.

    Args:
        choice: the engine that was chosen; `None` if the model was refused.
        sentence: of a refusal.
        error: the largest distance from the truth, relative to it.
        moved: the largest change by one record, in clipping thresholds.
    """

    choice: EngineChoice | None
    sentence: str = ""
    error: float = 0.0
    moved: float = 0.0

    @property
    def kind(self):
        if self.choice is None:
            return "refused"
        return "alone" if self.choice.mode in ("vmap", "loop") else "together"


class Case:
    """One stranger in one type of number, with its data set, the truth about it, and the library's answer."""

    def __init__(self, stranger, dtype=torch.float64):
        self.stranger, self.dtype = stranger, dtype
        self.model = self.build(dtype)
        torch.manual_seed(0)
        self.items = [self.record(wide=number % 2 == 1) for number in range(RECORDS)]
        self.items.append(copy.deepcopy(self.items[3]))
        self.items *= stranger.crowd
        self.known = {}
        self.example = as_records(
            together(self.items)
        ).example  # what the engine is proved for; a neighbour's is the same
        norms = torch.stack([self.gradient(item).norm() for item in self.items])
        self.threshold = float(norms.median())  # so that some are clipped and others are not

    def build(self, dtype):
        """With the same weights every time."""
        with quiet(0):
            model = self.stranger.model()
            return model.to(dtype) if self.stranger.exact else model

    def typed(self, leaf, dtype):
        """Numbers in this type, where the model bears it."""
        return leaf.to(dtype) if self.stranger.exact and leaf.is_floating_point() else leaf

    def record(self, wide):
        return tree_map(lambda leaf: self.typed(leaf, self.dtype), self.stranger.record(wide))

    def odd(self, how):
        """A record that is loud, or not a number, where it has any."""
        inputs, target = self.record(wide=True)
        factor = {"loud": 1e4, "nan": float("nan")}[how]
        if how == "loud" and target.is_floating_point():
            return inputs, factor * target
        return tree_map(lambda leaf: factor * leaf if leaf.is_floating_point() else leaf, (inputs, target))

    def gradient(self, item):
        """Of this record alone."""
        if id(item) not in self.known:
            self.known[id(item)] = item, self._gradient(item)
        return self.known[id(item)][1]

    def _gradient(self, item):
        model = self.build(torch.float64).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        inputs, target = tree_map(lambda leaf: self.typed(leaf, torch.float64).clone().unsqueeze(0), item)
        nothing = torch.zeros(sum(parameter.numel() for parameter in trained), dtype=torch.float64)
        try:
            with quiet(0):
                loss = self.stranger.loss(call_model(model, inputs), target).sum()
                loss.backward()
        except Exception:
            return nothing
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
        whole = torch.cat([part.double().flatten() for part in parts])
        return whole if whole.isfinite().all() else nothing

    def truth(self, items):
        gradients = [self.gradient(item) for item in items]
        return sum(gradient * min(1.0, self.threshold / max(float(gradient.norm()), 1e-300)) for gradient in gradients)

    def admit(self):
        """As `train` does before it charges anything."""
        with quiet(0):
            return require_trainable(self.model, self.stranger.loss, as_records(together(self.items)), ap.Execution())

    def answer(self, choice, items, micro_batch):
        """What would get noise if all records were drawn."""
        sums = []

        def noiseless(exact, deviation, noise, divisor):
            sums.append(exact.double().flatten().clone())
            return exact

        with quiet(0):
            records = as_records(together(items))
            execution = resolve_micro_batch(
                ap.Execution(micro_batch=micro_batch), self.model, choice, self.example[0], float(len(items))
            )
            engine = VettedEngine(self.model, choice, *self.example)
            curator = Curator(records, engine, Books(), Randomness.seeded(0), execution, mechanisms=Gaussian(noiseless))
            curator.answer(Request(1.0, 1.0, 1.0, (ClippedSum(self.threshold),)), self.stranger.loss)
        return torch.cat(sums)

    def neighbour(self, how):
        """The data set with one record more or less."""
        items = list(self.items)
        if how == "removed":
            del items[between(1, len(items) - 1)]
            return items
        extra = {
            "loud": lambda: self.odd("loud"),
            "nan": lambda: self.odd("nan"),
            "repeated": lambda: copy.deepcopy(items[between(0, len(items) - 1)]),
        }.get(how, lambda: self.record(wide=True))()
        items.insert({"front": 0, "behind": len(items)}.get(how, between(1, len(items) - 1)), extra)
        return items


class Books:
    def charge(self, event):
        pass


class quiet:  # noqa: N801
    """Neither warnings nor what was drawn before: the same seeds every time."""

    def __init__(self, seed):
        self.seed, self.warnings = seed, warnings.catch_warnings()

    def __enter__(self):
        self.warnings.__enter__()
        warnings.simplefilter("ignore")
        self.state = torch.get_rng_state()
        torch.default_generator.manual_seed(self.seed)  # the function of torch also writes down who calls it
        random.seed(self.seed)

    def __exit__(self, *error):
        torch.set_rng_state(self.state)
        self.warnings.__exit__(*error)


def between(low, high):
    return int(torch.randint(low, high + 1, ()))


def shapes(item):
    return [tensor.shape for tensor in tensor_leaves(item)]


def ragged(items):
    return any(shapes(item) != shapes(items[0]) for item in items)


def together(items):
    """Tensors with all records, or a data set of records of different shapes."""
    return Items(items) if ragged(items) else tree_map(lambda *leaves: torch.stack(leaves), *items)


def shuffled(items):
    """In another order; where shapes differ, the first stays, because the shape of the first is public."""
    first = 1 if ragged(items) else 0
    return items[:first] + [items[first + int(place)] for place in torch.randperm(len(items) - first)]


def examine(stranger, changes, micro_batches, dtype=torch.float64, seed=0):
    """Run it on its data set and on neighbours."""
    case = Case(stranger, dtype)
    try:
        outcome = Outcome(case.admit())
    except (UnsupportedModel, InvalidArgument) as refusal:
        return Outcome(None, str(refusal))
    assert case.threshold > 0  # otherwise nothing would be compared
    torch.manual_seed(seed)
    (_random if stranger.random else _repeatable)(case, outcome, changes, micro_batches)
    return outcome


def _repeatable(case, outcome, changes, micro_batches):
    found = [case.answer(outcome.choice, case.items, micro_batch) for micro_batch in micro_batches]
    truth = case.truth(case.items)
    outcome.error = max(float((one - truth).norm() / truth.norm()) for one in found)
    for number, how in enumerate(changes):
        items = case.neighbour(how)
        if how not in ("front", "behind"):
            items = shuffled(items)
        answer = case.answer(outcome.choice, items, micro_batches[number % len(micro_batches)])
        truth = case.truth(items)
        outcome.error = max(outcome.error, float((answer - truth).norm() / max(float(truth.norm()), case.threshold)))
        for one in found:
            outcome.moved = max(outcome.moved, float((answer - one).norm()) / case.threshold)


def _random(case, outcome, changes, micro_batches):
    """In place of a record one that is not a number and counts as zero: the batch keeps its size, and the others their draws."""
    for number, how in enumerate(changes):
        micro_batch = micro_batches[number % len(micro_batches)]
        items, place = list(case.items), between(0, len(case.items) - 1)
        if how == "loud":
            items[place] = case.odd("loud")
        silent = [*items[:place], case.odd("nan"), *items[place + 1 :]]
        answers = [case.answer(outcome.choice, every, micro_batch) for every in (items, silent)]
        assert answers[0].norm() > 0
        outcome.moved = max(outcome.moved, float((answers[0] - answers[1]).norm()) / case.threshold)


def in_company(case, items, own=None):
    """The gradient of the records' losses, or of one of them, when all run together through the plain model."""
    inputs, targets = tree_map(lambda leaf: case.typed(leaf, torch.float64).clone(), together(items))
    with quiet(0):
        model = case.build(torch.float64).train()
        pair = call_model(model, inputs), targets
        chosen = range(len(items)) if own is None else (own,)
        sum(case.stranger.loss(*tree_map(lambda leaf, i=i: leaf[i : i + 1], pair)).sum() for i in chosen).backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([one.new_zeros(one.numel()) if one.grad is None else one.grad.flatten() for one in trained])


def judge(stranger, outcome, tolerance):
    assert outcome.kind in stranger.allowed, outcome
    if outcome.kind == "refused":
        assert re.search(stranger.says, outcome.sentence), outcome.sentence
        return
    assert outcome.moved <= BOUND, outcome
    assert outcome.error <= (tolerance if stranger.exact else ROUGH), outcome


def installed(stranger):
    for module in stranger.needs:
        pytest.importorskip(module, reason=f"needs {module}")


IN_TIME = ("BERT", "GPT-2", "Llama", "ViT")
"""Of the models of libraries; the others take longer and stand in the long version."""


def in_core(name):
    """Of those of one kind with one outcome every other one; the long version has all of them, with more neighbours."""
    if STRANGERS[name].needs:
        return name in IN_TIME
    (kind,) = (kind.ENTRIES for kind in KINDS if name in kind.ENTRIES)
    return [other for other in kind if outcome_of(other) == outcome_of(name)].index(name) % 2 == 0


def outcome_of(name):
    one = STRANGERS[name]
    return one.needs, one.allowed, one.random, one.exact, one.crowd


@pytest.mark.parametrize("name", list(filter(in_core, STRANGERS)))
def test_a_stranger_is_exact_or_refused(name):
    stranger = STRANGERS[name]
    installed(stranger)
    turn = list(STRANGERS).index(name) % (len(CHANGES) - 2)
    outcome = examine(stranger, (*CHANGES[:2], CHANGES[2 + turn]), (3, 7))
    judge(stranger, outcome, TOLERANCE[torch.float64])


@pytest.mark.parametrize(
    "name", [name for name, one in STRANGERS.items() if one.allowed == APART and not one.random and not one.needs]
)
def test_a_stranger_that_must_not_run_together_does_mix(name):
    """Otherwise nothing is learned from it."""
    case = Case(STRANGERS[name])
    items = [*case.items, case.odd("loud")]
    alone = [case.gradient(item) for item in items]
    pairs = [(in_company(case, items), sum(alone))] + [(in_company(case, items, own), alone[own]) for own in (1, 4)]
    assert not all((one - other).norm() <= 1e-3 * case.threshold for one, other in pairs)  # NaN is a difference, too


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_exact_or_refused_whatever_the_neighbour(name, dtype):
    stranger = STRANGERS[name]
    installed(stranger)
    changes = [CHANGES[number % len(CHANGES)] for number in range(20)]
    judge(stranger, examine(stranger, changes, MICRO_BATCHES, dtype), TOLERANCE[dtype])
