"""The replay audit of selections: it finds nothing in the library, and finds each broken piece."""

import dataclasses
import itertools
from contextlib import contextmanager

import pytest
from torch import nn

import apportion as ap
from apportion.audit import PrivacyViolation
from apportion.curator import candidate_losses
from apportion.curator import curator as curator_module
from apportion.curator.curator import Draw
from apportion.curator.randomness import Stream
from apportion.event import Choice, Event
from apportion.request import Request
from runs import replay
from suites import thinned

LOSS = nn.CrossEntropyLoss()
UPDATES = {
    "lowest loss": ap.update.DPAGD(loss_bound=0.05, candidates=4),
    "first gain": ap.update.NoisyBTLS(loss_bound=0.05),
}


def replayed(model, records, update="lowest loss", **options):
    return replay(model, LOSS, records, clip=ap.clip.Fixed(0.1), update=UPDATES[update], **options)


def in_core(update, engine):
    """One choice on two engines, the other one on the third; all of them in the long suite."""
    return (update == "lowest loss") == (engine != "vmap")


@pytest.mark.parametrize(
    ("update", "engine"), thinned(itertools.product(UPDATES, ["one-pass", "vmap", "loop"]), in_core)
)
def test_selections_hold_on_every_engine(model, records, update, engine):
    report = replayed(model, records, update, engine=engine, execution=ap.Execution(micro_batch=5))
    report.require()
    assert report.sharp


def clipped_by(function):
    def apply(monkeypatch):
        def losses(engine, loss_fn, batch, bound):
            inputs, targets = batch
            return function(engine.record_losses(loss_fn, engine.forward(inputs), targets).detach().double(), bound)

        monkeypatch.setattr(candidate_losses, "_clipped_losses", losses)

    return apply


def charged(replacement):
    def apply(monkeypatch):
        event = Request.event
        monkeypatch.setattr(Request, "event", lambda self: replacement(event(self)) if self.selections else event(self))

    return apply


def cheaper(event):
    return Event(event.sample_rate, event.noise_multiplier, (Choice(event.choices[0].epsilon / 2, True),))


def uncharged(event):
    return Event(event.sample_rate, 1e6)


def replaced(owner, name, replacement):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))


def one_batch_for_all(original):
    kept = []

    def sample(records, *arguments):
        drawn = original(records, *arguments)
        if not kept or max(kept[0], default=0) >= records:
            kept[:] = [drawn]
        return kept[0]

    return sample


def from_one_seed(original):
    def select(self, release, totals):
        self._streams = dataclasses.replace(self._streams, noise=Stream(bytes(32)))
        return original(self, release, totals)

    return select


def without_noise(original):
    return lambda self, release, totals: int(totals.argmin())


def moved_for_good(original):
    @contextmanager
    def moved(engine, direction, step_size):
        with original(engine, direction, step_size):
            yield
        next(iter(dict(engine.model.named_parameters()).values())).data.add_(1e-3)

    return moved


def chosen_twice(original):
    def select(self, release, totals):
        original(self, release, totals.clone())  # a look, and then another one
        return original(self, release, totals)

    return select


BROKEN = {
    "losses are not clipped": (clipped_by(lambda losses, bound: losses.nan_to_num(bound, bound, bound)), "sensitivity"),
    "losses are clipped at twice the bound": (
        clipped_by(lambda losses, bound: losses.nan_to_num(bound).clamp(0.0, 2 * bound)),
        "sensitivity",
    ),
    "a choice is not charged": (charged(uncharged), "charge"),
    "another choice is charged": (charged(cheaper), "charge"),
    "one batch for all questions": (replaced(curator_module, "poisson_sample", one_batch_for_all), "sampling"),
    "noise of one seed": (replaced(Draw, "_select", from_one_seed), "noise"),
    "the best candidate itself": (replaced(Draw, "_select", without_noise), "calls"),
    "the weights stay moved": (replaced(candidate_losses, "_moved", moved_for_good), "state"),
    "two answers from one batch": (replaced(Draw, "_select", chosen_twice), "calls"),
}


@pytest.mark.parametrize("breakage", BROKEN)
def test_a_broken_piece_is_found(model, records, monkeypatch, breakage):
    apply, kind = BROKEN[breakage]
    apply(monkeypatch)
    report = replayed(model, records, steps=6)
    assert kind in {finding.kind for finding in report.findings}, report.findings
    with pytest.raises(PrivacyViolation, match="does not hold"):
        report.require()


def test_losses_that_move_both_ways_are_found(model, records, monkeypatch):
    """Each moves by no more than the bound, but the noisy minimum is ε₀-DP only if all of them move one way."""
    calls = itertools.count()

    def both_ways(losses, bound):
        return (-1) ** next(calls) * losses.nan_to_num(bound, bound, bound).clamp(0.0, bound)

    clipped_by(both_ways)(monkeypatch)
    assert "sensitivity" in {finding.kind for finding in replayed(model, records, steps=6).findings}
