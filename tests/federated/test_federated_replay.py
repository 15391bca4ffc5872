"""The replay audit of federated runs finds nothing in the library, for every recipe, and finds each broken piece."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.curator import mechanisms
from apportion.federated import federated_curator, reception
from apportion.federated.clients import Reply
from apportion.federated.federated_curator import FederatedCurator
from apportion.federated.reception import Reception
from apportion.federated.simulated_clients import SimulatedClients
from apportion.strategies.recipes import READY, named
from suites import thinned

LOCAL = ap.federated.LocalSGD(lr=0.5, batch_size=3)
PRIVATE = [
    name
    for name in READY
    if named(name).private and not isinstance(named(name).update, ap.AskingUpdate) and name != "papernot"
]
CORE = ("abadi", "du-dynamic", "andrew", "adaclip", "he-equal", "dc-sgd-p", "fay-adaptive", "adadp", "yu-validation")
GROUPS = {"flat": "flat", "layers": "layer", "two": (("0.weight",), ("0.bias", "2.*"))}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.fixture
def clients():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(13, 6, 4, generator=generator)
    return [(one, (one.sum(1) > 0).long()) for one in inputs]


def recipe_of(name, grouping="flat"):
    recipe = named(name)
    clip = replace(recipe.clip, groups=GROUPS[grouping])
    noise = replace(recipe.noise, counts=(1, 1, 1)) if name == "yu-validation" else recipe.noise
    return replace(recipe, clip=clip, noise=noise)


@pytest.mark.parametrize("name", thinned(PRIVATE, lambda name: name in CORE))
def test_every_recipe_holds(model, clients, name):
    grouping = list(GROUPS)[PRIVATE.index(name) % 3]
    report = ap.federated.replay(
        model, clients, LOCAL, recipe_of(name, grouping), steps=3, validation=ap.Public(clients[0])
    )
    report.require()
    assert report.sharp
    assert report.notes == ()


@pytest.mark.parametrize(
    "people", [ap.people.Scale(), pytest.param(ap.people.Sample(), marks=pytest.mark.slow)], ids=["scale", "sample"]
)
def test_clients_with_budgets_of_their_own_hold(model, clients, people):
    report = ap.federated.replay(model, clients, LOCAL, replace(named("andrew"), people=people), steps=3)
    report.require()
    assert report.sharp


def kinds(report):
    return {finding.kind for finding in report.findings}


def audited(model, clients, server=FederatedCurator, recipe="abadi"):
    return ap.federated.replay(model, clients, LOCAL, recipe, steps=3, server=server)


@pytest.mark.parametrize("factor", [0.95, 0.0])
def test_noise_that_is_too_small_is_found(model, clients, monkeypatch, factor):
    wide = nn.Sequential(nn.Linear(4, 900), nn.Tanh(), nn.Linear(900, 2))
    real = mechanisms.add_gaussian_noise

    def small(exact_sum, standard_deviation, noise, divisor):
        return real(exact_sum, factor * standard_deviation, noise, divisor)

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", small)
    assert "noise" in kinds(audited(wide, clients))


def test_updates_that_are_clipped_5_percent_too_loosely_are_found(model, clients, monkeypatch):
    class Loose(Reception):
        def __init__(self, draw, asked, problems):
            super().__init__(draw, asked, problems)
            clip = draw._clipped
            draw._clipped = lambda gradients, owners: {key: 1.05 * one for key, one in clip(gradients, owners).items()}

    monkeypatch.setattr(federated_curator, "Reception", Loose)
    assert "sensitivity" in kinds(audited(model, clients))


def test_a_round_that_is_not_charged_is_found(model, clients):
    class Free(FederatedCurator):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            account, self._charges, self.rounds = self._charges, self, 0
            self._account = account

        def charge(self, event):
            self.rounds += 1
            if self.rounds != 2:
                self._account.charge(event)

    report = audited(model, clients, Free)
    assert "charge" in kinds(report)


def test_a_client_that_counts_twice_is_found(model, clients, monkeypatch):
    class Generous(Reception):
        def receive(self, reply):
            waiting = set(self._waiting)
            super().receive(reply)
            self._waiting = waiting

    monkeypatch.setattr(federated_curator, "Reception", Generous)
    report = audited(model, clients)
    assert "sensitivity" in kinds(report)
    assert {finding.neighbour for finding in report.findings} >= {"client that answers twice added"}


def test_an_update_that_ends_the_server_is_found(model, clients, monkeypatch):
    class Strict(Reception):
        def receive(self, reply):
            _, client, update = reply
            self._draw.add(reception.read_update(update, self._trained), torch.tensor([client]))

    monkeypatch.setattr(federated_curator, "Reception", Strict)
    assert "error" in kinds(audited(model, clients))


def test_division_by_those_who_answered_is_found(model, clients):
    class Realised(FederatedCurator):
        def _ask(self, draw):
            asked = super()._ask(draw)
            self.last = len(asked.clients)
            return asked

        def answer(self, request, loss_fn):
            released = super().answer(request, loss_fn)
            for value in released.gradient.values():
                value *= request.expected_batch_size / max(1, self.last)
            return released

    assert "release" in kinds(audited(model, clients, Realised))


def test_topping_up_is_found(model, clients):
    class ToppedUp(FederatedCurator):
        def _ask(self, draw):
            asked = super()._ask(draw)
            return asked if asked.seeds else replace(asked, seeds={0: 1})

    assert "sampling" in kinds(audited(model, clients, ToppedUp))


def test_local_training_in_the_server_itself_is_found(model, clients, monkeypatch):
    class InPlace(SimulatedClients):
        def train(self, asked):
            for client in asked.clients:
                before = {name: value.detach().clone() for name, value in asked.model.named_parameters()}
                LOCAL(asked.model, self._data[client])
                update = {name: value.detach() - before[name] for name, value in asked.model.named_parameters()}
                yield Reply(asked.name, client, update)

    from apportion.federated import federated_replay

    monkeypatch.setattr(federated_replay, "SimulatedClients", InPlace)
    with pytest.raises(Exception) as caught:
        audited(model, clients).require()
    assert isinstance(caught.value, (ap.PrivacyViolation, ap.InvalidArgument))


def test_training_that_draws_from_elsewhere_cannot_be_compared(model, clients):
    import os

    def wild(copy, data):
        with torch.no_grad():
            for value in copy.parameters():
                value += int.from_bytes(os.urandom(2)) / 65536

    with pytest.raises(ap.InvalidArgument, match="local"):
        ap.federated.replay(model, clients, wild, "abadi", steps=2)


def test_what_cannot_run_is_refused_before_it_is_audited(model, clients):
    with pytest.raises(ap.InvalidArgument, match="DPAGD"):
        ap.federated.replay(model, clients, LOCAL, "dp-agd")
    with pytest.raises(ap.InvalidArgument, match="steps"):
        ap.federated.replay(model, clients, LOCAL, "abadi", steps=1)
