"""Runs that keep an account for each record: who takes part, what is clipped, what is said."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.individual_accounts import IndividualAccounts
from apportion.curator import curator as curator_module
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.individual_bounds import IndividualBounds
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.releases import ClippedSum
from apportion.request import Request
from apportion.training.storage import CHECKPOINT

FILTER = ap.people.IndividualFilter(stretch=3.0, refresh=4, floor=0.2)
ESTIMATE = ap.people.IndividualEstimate(refresh=5)
N = 24


def data(scale=1.0):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(N, 4, generator=generator)
    inputs[: N // 2] *= 0.05 * scale  # short gradients
    return inputs, (torch.arange(N) % 3)


def make_model():
    torch.manual_seed(0)
    return nn.Linear(4, 3, bias=False)


def plan_of(people=FILTER, steps=30, rate=0.5, **options):
    budget = ap.Budget(epsilon=3.0, delta=1e-3, unit=options.pop("unit", ap.Record()))
    recipe = ap.Recipe(clip=options.pop("clip", ap.clip.Fixed(1.0)), people=people)
    return ap.plan(recipe, budget=budget, population=N, sample_rate=rate, steps=steps, **options)


class Spy:
    """Watches who is charged, who is read, and what each added."""

    def __init__(self, monkeypatch):
        self.taking, self.members, self.clips = [], [], []
        charge, clip = IndividualBounds.charge, curator_module.clip_and_sum

        def charged(bounds, event):
            self.taking.append(charge(bounds, event))
            self.scales = bounds.accounts.scales.copy()
            self.members.append(set())
            return self.taking[-1]

        def clipped(gradients, releases, clips, *_):
            self.clips.append(clips)
            return clip(gradients, releases, clips)

        read = Curator._add_records

        def added(curator, draw, piece, loss_fn):
            self.members[-1].update(piece.members.tolist())
            assert torch.equal(self.scales_of(piece.members), draw._clips(piece.members.numpy()))
            return read(curator, draw, piece, loss_fn)

        monkeypatch.setattr(IndividualBounds, "charge", charged)
        monkeypatch.setattr(curator_module, "clip_and_sum", clipped)
        monkeypatch.setattr(Curator, "_add_records", added)

    def scales_of(self, members):
        return torch.from_numpy(self.scales)[members]


def test_whoever_cannot_pay_takes_no_part_and_the_others_go_on(monkeypatch):
    spy = Spy(monkeypatch)
    run = ap.train(make_model(), cross_entropy, data(), plan_of(steps=200), lr=0.01, progress=False)
    assert run.steps == 200, "the length is declared: it does not end because somebody is left out"
    taking = np.array(spy.taking)
    assert taking[0].all()
    assert not taking[-1, N // 2 :].any(), "long gradients have spent it all"
    assert taking[-1, : N // 2].all(), "short ones have not"
    for step, members in enumerate(spy.members):
        assert members <= set(np.flatnonzero(taking[step]).tolist())
    assert run.epsilon() == 3.0
    assert {entry.noise_multiplier for entry in run.history} == {plan_of(steps=200).multipliers[0]}


def test_everybody_is_charged_whether_drawn_or_not():
    plan = plan_of(rate=0.05, steps=8)
    run = ap.train(make_model(), cross_entropy, data(), plan, lr=0.01, progress=False)
    assert (run._session.curator.individual_epsilons(1e-3) > 0).all()
    accounts = run._session.curator._individual.accounts
    assert isinstance(accounts, IndividualAccounts)
    assert (accounts.state()["spent"] > 0).all()


def held(records, individual, randomness=None):
    class Books:
        def charge(self, event):
            pass

    engine = build_engine(make_model(), "vmap")
    return Curator(as_records(records), engine, Books(), randomness or Randomness.seeded(0), individual=individual)


class Fixed:
    """Accounts in which the bound of each is given."""

    def __init__(self, scales, taking):
        self.scales, self.taking, self.charges = np.asarray(scales, dtype=float), np.asarray(taking), 1

    def bound(self, wanted):
        self.wanted = wanted

    def charge(self, event):
        self.charges += 1
        return self.taking


def test_a_record_is_clipped_to_its_own_bound_and_left_out_if_it_must_be():
    """Against a plain loop over the records, in float64."""
    inputs, targets = data(scale=100.0)
    generator = np.random.default_rng(0)
    scales, taking = generator.uniform(0.2, 1.0, N), generator.random(N) < 0.6
    accounts = Fixed(scales, taking)
    request = Request(1.0, 1e-9, 1.0, (ClippedSum(0.7),))
    answer = held((inputs, targets), IndividualBounds(accounts, 100, 1.0, enforced=True)).answer(request, cross_entropy)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for i in np.flatnonzero(taking):
        model = make_model().double()
        cross_entropy(model(inputs[i : i + 1].double()), targets[i : i + 1]).backward()
        gradient = model.weight.grad
        expected += gradient * min(1.0, 0.7 * scales[i] / float(gradient.norm()))
    assert torch.allclose(answer.gradient["weight"].double(), expected, atol=1e-5)


def test_norms_of_all_records_are_those_of_the_weights_as_they_are():
    inputs, targets = data(scale=100.0)
    accounts = Fixed(np.ones(N), np.ones(N, dtype=bool))
    accounts.charges = 0
    curator = held((inputs, targets), IndividualBounds(accounts, 5, 1.5, enforced=True))
    curator.answer(Request(0.1, 1.0, 1.0, (ClippedSum(0.7),)), cross_entropy)
    for i in range(N):
        model = make_model().double()
        cross_entropy(model(inputs[i : i + 1].double()), targets[i : i + 1]).backward()
        assert accounts.wanted[i] == pytest.approx(1.5 * float(model.weight.grad.norm()) / 0.7, rel=1e-4)
    accounts.wanted = None
    curator.answer(Request(0.1, 1.0, 1.0, (ClippedSum(0.7),)), cross_entropy)
    assert accounts.wanted is None, "bounds are held between refreshes"


@pytest.mark.parametrize("mode", ["one-pass", "vmap", "loop"])
def test_a_bound_does_not_follow_the_rounding_of_others(mode):
    """Bit for bit: a bound that moved to another level because of somebody else's record would tell of that record."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(33, 64, generator=generator), torch.arange(33) % 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 3))
    request = Request(0.1, 1.0, 1.0, (ClippedSum(0.7),))

    def ratios(records):
        engine = build_engine(model, mode)
        return Curator(as_records(records), engine, None, Randomness.seeded(0))._norm_ratios(request, cross_entropy)

    everybody = ratios((inputs, targets))
    for left_out in (0, 17, 32):
        others = [number for number in range(33) if number != left_out]
        assert ratios((inputs[others], targets[others])).tolist() == everybody[others].tolist()


def test_an_estimate_changes_nothing_and_stays_secret(tmp_path):
    people = ESTIMATE
    plain = ap.train(make_model(), cross_entropy, data(), plan_of(None), lr=0.1, seed=1, progress=False)
    run = ap.train(make_model(), cross_entropy, data(), plan_of(people), lr=0.1, seed=1, progress=False)
    assert torch.equal(plain.model.weight, run.model.weight)
    assert run.epsilon() == plain.epsilon()
    run.save(tmp_path / "run")
    found = json.loads((tmp_path / "run" / "secret" / "individual.json").read_text())
    assert "estimate" in found["label"].lower()
    assert len(found["epsilon"]) == N
    assert max(found["epsilon"]) <= run.epsilon() + 1e-6
    assert np.mean(found["epsilon"][: N // 2]) < 0.5 * np.mean(found["epsilon"][N // 2 :])
    for path in (tmp_path / "run" / "public").iterdir():
        assert "0.05" not in path.name
        assert str(found["epsilon"][0]) not in path.read_bytes().decode(errors="replace")


def test_norms_as_long_as_the_threshold_cost_the_worst_case(tmp_path):
    people = ap.people.IndividualEstimate(refresh=1)
    plan = plan_of(people, rate=1.0, clip=ap.clip.Fixed(1e-3))
    run = ap.train(make_model(), cross_entropy, data(), plan, lr=0.0001, seed=1, progress=False)
    assert run._session.curator.individual_epsilons(1e-3).tolist() == pytest.approx([run.epsilon()] * N, rel=1e-3)


def test_a_run_goes_on_with_what_everybody_has_spent(tmp_path):
    plan, storage = plan_of(steps=60), ap.Storage(tmp_path / "run", every=7)
    path = tmp_path / "run" / CHECKPOINT
    older = []

    def stop(entry):
        if entry.step == 30:
            older.append(path.read_bytes())  # of step 28
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ap.train(make_model(), cross_entropy, data(), plan, lr=0.01, storage=storage, progress=stop)
    path.write_bytes(older[0])  # as if the process had been killed: two steps are known to the ledger alone
    resumed = ap.Storage(tmp_path / "run", every=7, resume=True)
    run = ap.train(make_model(), cross_entropy, data(), plan, lr=0.01, storage=resumed, progress=False)
    accounts = run._session.curator._individual.accounts
    assert accounts.charges == run._session.account.spent >= 60
    assert (accounts.state()["spent"] > 0).all()


def test_replay_finds_nothing_and_a_broken_filter_is_found(monkeypatch):
    assert ap.audit.replay(make_model(), cross_entropy, data(), plan_of()).ok
    monkeypatch.setattr(IndividualBounds, "clips", lambda self, owners: torch.full((len(owners),), 1.5))
    assert not ap.audit.replay(make_model(), cross_entropy, data(), plan_of()).ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": ap.User([0] * N)}, "account for each record"),
        ({"clip": ap.clip.NormBased()}, "weigh their own bounds"),
        ({"people": ESTIMATE, "clip": ap.clip.NormBased()}, "would be too small"),
        ({"people": ESTIMATE, "clip": ap.clip.Quantile(share=0.01)}, "would be too small"),
        ({"people": ESTIMATE, "clip": ap.clip.LeastError()}, "would be too small"),
    ],
)
def test_what_cannot_be_kept_accounts_for_is_refused(options, message):
    with pytest.raises(ap.InvalidArgument, match=message):
        ap.train(make_model(), cross_entropy, data(), plan_of(**options), lr=0.1, progress=False)


def test_a_loop_of_ones_own_and_exact_recovery_are_refused(tmp_path):
    model = make_model()
    with pytest.raises(ap.InvalidArgument, match=r"Use apportion\.train"):
        ap.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), plan_of())
    with pytest.raises(ap.InvalidArgument, match="fresh"):
        storage = ap.Storage(tmp_path / "run", recovery="exact")
        ap.train(make_model(), cross_entropy, data(), plan_of(), lr=0.1, storage=storage, progress=False)
    groups = ap.Budget.of_groups({"a": (1.0, 0.5), "b": (2.0, 0.5)}, delta=1e-3, unit=ap.Record())
    with pytest.raises(ap.InvalidArgument, match="account for each person"):
        ap.plan(ap.Recipe(people=FILTER), budget=groups, population=N, sample_rate=0.5, steps=5)
    with pytest.raises(ap.InvalidArgument, match="known in advance"):
        ap.plan(
            ap.Recipe(people=FILTER, noise=ap.noise.AdaptivePrivacyUtility()),
            budget=ap.Budget(epsilon=3.0, delta=1e-3, unit=ap.Record()),
            population=N,
            sample_rate=0.5,
            steps=5,
        )
