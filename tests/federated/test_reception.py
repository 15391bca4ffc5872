"""Whatever clients send, each adds at most one clipped vector to a round, and nobody changes what another one adds."""

import math

import numpy as np
import pytest
import torch
from federation import parameters, random_update, server, updates
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apportion.curator.randomness import Randomness
from apportion.federated.client_updates import read_update
from apportion.federated.clients import Failed, Reply
from apportion.federated.federated_curator import EXECUTION, ClientOwners, FederatedCurator, Roster, ServerModel
from apportion.releases import ClippedSum, UnclippedCount, UsableCount
from apportion.request import Request
from runs import Gaussian

THRESHOLD, CLIENTS = 1.0, 6
MODEL = server()
NAMES = list(parameters(MODEL))


class Books:
    def __init__(self):
        self.events = []

    def charge(self, event):
        self.events.append(event)


class Sent:
    """Clients that all are asked, and a list of what arrives, in which a name or number may be left to the round."""

    def __init__(self, replies, count=CLIENTS):
        self.replies, self.count, self.before = replies, count, []

    def enrolled(self):
        return self.count

    def train(self, asked):
        for reply in self.replies:
            yield reply(asked) if callable(reply) else reply


def exact_sum(exact_sum, standard_deviation, noise, divisor):
    return exact_sum


SUM = (ClippedSum(THRESHOLD),)


def sums(replies, releases=SUM, count=CLIENTS):
    """What the replies of a round add up to, without noise: a vector, and the statistics."""
    clients = Sent(replies, count)
    roster = Roster(clients)
    curator = FederatedCurator(
        *(roster, ServerModel(MODEL), Books(), Randomness.seeded(0), EXECUTION, Gaussian(exact_sum)),
        clients=clients,
        owners=ClientOwners(roster),
    )
    released = curator.answer(Request(1.0, 1.0, 1.0, tuple(releases)), None)
    return torch.cat([released.gradient[name].flatten() for name in NAMES]), released.statistics


def of(client, update):
    return lambda asked: Reply(asked.name, client, update)


def vector(update):
    return -torch.cat([update[name].flatten().double() for name in NAMES])


def clipped(update):
    whole = vector(update)
    return whole * min(1.0, THRESHOLD / float(whole.norm()))


HONEST = updates(MODEL, CLIENTS, 0.7)
OTHERS = [of(client, HONEST[client]) for client in range(CLIENTS - 1)]
BASE = sum(clipped(update) for update in HONEST[:-1])
LAST = CLIENTS - 1


def changed(change):
    return {name: change(value) for name, value in HONEST[-1].items()}


def one_value(value):
    update = {name: part.clone() for name, part in HONEST[-1].items()}
    update[NAMES[0]].view(-1)[0] = value
    return update


NOTHING = {
    "nothing": None,
    "failed": Failed("why"),
    "text": "update",
    "a list": [1.0, 2.0],
    "a number": 3.0,
    "an empty dict": {},
    "names missing": {NAMES[0]: HONEST[-1][NAMES[0]]},
    "a name more": {**HONEST[-1], "more": torch.ones(2)},
    "another name": {f"x{name}": value for name, value in HONEST[-1].items()},
    "NaN": one_value(math.nan),
    "infinity": one_value(math.inf),
    "minus infinity": one_value(-math.inf),
    "overflow": changed(lambda value: torch.full_like(value, 1e200)),
    "flat": changed(lambda value: value.flatten()),
    "a dimension more": changed(lambda value: value.unsqueeze(0)),
    "broadcast": changed(lambda value: torch.ones(())),
    "rows missing": changed(lambda value: value[:-1]),
    "whole numbers": changed(lambda value: value.long()),
    "booleans": changed(lambda value: value > 0),
    "complex": changed(lambda value: value.to(torch.complex128)),
    "sparse": changed(lambda value: value.to_sparse()),
    "meta": changed(lambda value: value.to("meta")),
    "lists": changed(lambda value: value.tolist()),
    "objects": changed(lambda value: np.array([object()])),
    "strings": changed(lambda value: np.full(tuple(value.shape), "x")),
    "None inside": changed(lambda value: None),
}


@pytest.mark.parametrize("kind", NOTHING)
def test_what_is_no_update_contributes_nothing(kind):
    total, _ = sums([*OTHERS, of(LAST, NOTHING[kind])])
    torch.testing.assert_close(total, BASE, rtol=0, atol=1e-12)
    statistics = (ClippedSum(THRESHOLD, share=0.4), UnclippedCount(THRESHOLD, share=0.3), UsableCount(share=0.3))
    _, with_it = sums([*OTHERS, of(LAST, NOTHING[kind])], statistics)
    _, without = sums(OTHERS, statistics)
    assert with_it == without  # it is counted neither as clipped nor as unclipped, and not as usable


VALID = {
    "float32": changed(lambda value: value.float()),
    "arrays": changed(lambda value: value.numpy()),
    "other byte order": changed(lambda value: value.numpy().astype(">f8")),
    "backwards": changed(lambda value: value.numpy()[::-1]),
    "with a history": changed(lambda value: value.clone().requires_grad_() * 1.0),
    "expanded": changed(lambda value: torch.ones((), dtype=torch.float64).expand(value.shape)),
    "huge": changed(lambda value: value * 1e100),
    "tiny": changed(lambda value: value * 1e-100),
    "zero": changed(torch.zeros_like),
}


@pytest.mark.parametrize("kind", VALID)
def test_an_update_in_any_form_is_clipped_once(kind):
    update = {name: torch.tensor(np.asarray(value.tolist())) for name, value in VALID[kind].items()}
    total, _ = sums([*OTHERS, of(LAST, VALID[kind])])
    norm = float(vector(update).norm())
    expected = BASE + (vector(update) * min(1.0, THRESHOLD / norm) if norm else 0.0)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)
    assert float((total - BASE).norm()) <= THRESHOLD * (1 + 1e-9)


WHO = {
    "twice": ([of(LAST, HONEST[-1]), of(LAST, HONEST[-1]), of(LAST, HONEST[0])], HONEST[-1]),
    "first nonsense, then an update": ([of(LAST, "text"), of(LAST, HONEST[-1])], None),
    "first nothing, then an update": ([of(LAST, None), of(LAST, HONEST[-1])], None),
    "for another round": ([Reply("yesterday", LAST, HONEST[-1])], None),
    "for no round": ([Reply(None, LAST, HONEST[-1])], None),
    "for another round first": ([Reply("yesterday", LAST, HONEST[0]), of(LAST, HONEST[-1])], HONEST[-1]),
    "by somebody who was not asked": ([of(CLIENTS, HONEST[-1]), of(-1, HONEST[-1]), of(10**9, HONEST[-1])], None),
    "by a client of another type": (
        [of(float(LAST), HONEST[-1]), of(str(LAST), HONEST[-1]), of(True, HONEST[-1])],
        None,
    ),
    "by something that cannot be compared": ([of([], HONEST[-1]), of({}, HONEST[-1]), of(None, HONEST[-1])], None),
    "not a reply": ([None, 3, "text", (), (1, 2), object()], None),
}


@pytest.mark.parametrize("kind", WHO)
def test_a_client_has_one_turn_in_the_round_that_it_was_asked_for(kind):
    replies, counted = WHO[kind]
    for order in ([*OTHERS, *replies], [*replies, *OTHERS]):
        total, _ = sums(order)
        expected = BASE if counted is None else BASE + clipped(counted)
        torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
shapes = st.sampled_from([tuple(value.shape) for value in MODEL.parameters()] + [(), (0,), (3, 3), (1, 2, 3)])
dtypes = st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
tensors = st.builds(
    lambda shape, dtype, value: torch.full(shape, value, dtype=torch.float64).to(dtype), shapes, dtypes, numbers
)
arrays = st.builds(lambda shape, value: np.full(shape, value), shapes, numbers)
leaves = st.one_of(tensors, arrays, st.none(), st.text(max_size=3), numbers, st.lists(numbers, max_size=3))
maybe_updates = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.dictionaries(st.sampled_from([*NAMES, "other"]), leaves, max_size=6),
    st.tuples(*[numbers] * len(NAMES)).map(
        lambda values: {
            name: torch.full_like(parameter.detach(), value)
            for (name, parameter), value in zip(MODEL.named_parameters(), values, strict=True)
        }
    ),
    st.fixed_dictionaries(dict.fromkeys(NAMES, leaves)),
)
clients = st.one_of(st.integers(-2, CLIENTS + 2), st.just(LAST), st.none(), st.text(max_size=2), numbers)
names = st.sampled_from(["this", "this", "this", "yesterday", "", None])
arrivals = st.lists(st.tuples(names, clients, maybe_updates), max_size=6)


@settings(max_examples=150)
@given(arrivals)
def test_no_client_moves_a_sum_by_more_than_its_threshold(arrivals):
    """Of whatever the last client sends in its own name; what it sends in the name of nobody, or for another time, adds nothing."""
    own = [
        (name, client, update) for name, client, update in arrivals if not (type(client) is int and 0 <= client < LAST)
    ]
    sent = [lambda asked, one=one: Reply(asked.name if one[0] == "this" else one[0], *one[1:]) for one in own]
    releases = (ClippedSum(THRESHOLD, share=0.5), UnclippedCount(THRESHOLD, share=0.25), UsableCount(share=0.25))
    total, counts = sums([*OTHERS, *sent], releases)
    base, counts_before = sums(OTHERS, releases, CLIENTS - 1)  # as if the client were not there
    assert float((total - base).norm()) <= THRESHOLD * (1 + 1e-9)
    assert all(abs(one - two) <= 0.5 + 1e-9 for one, two in zip(counts, counts_before, strict=True))


@settings(max_examples=100)
@given(maybe_updates)
@example(dict.fromkeys(NAMES, torch.ones(())))
def test_reading_gives_rows_of_the_parameters_or_raises(update):
    try:
        rows = read_update(update, parameters(MODEL))
    except Exception:
        return
    assert list(rows) == NAMES
    for name, value in MODEL.named_parameters():
        assert rows[name].shape == (1, *value.shape)
        assert rows[name].dtype is torch.float64
        assert tuple(update[name].shape) == tuple(value.shape)  # and was not spread


def test_what_was_sent_is_not_changed_and_not_kept():
    sent = random_update(MODEL, 3.0, seed=9)
    before = {name: value.clone() for name, value in sent.items()}
    sums([of(0, sent)])
    assert all(torch.equal(before[name], value) for name, value in sent.items())


def test_a_warning_of_a_client_is_not_heard(recwarn):
    class Loud(dict):
        def __iter__(self):
            import warnings

            warnings.warn("client 3 has a fever", stacklevel=1)
            return super().__iter__()

    total, _ = sums([*OTHERS, of(LAST, Loud(HONEST[-1]))])
    torch.testing.assert_close(total, BASE + clipped(HONEST[-1]), rtol=1e-9, atol=1e-9)
    assert not [one for one in recwarn if "fever" in str(one.message)]


def test_even_sys_exit_of_a_client_ends_nothing():
    class Exits(dict):
        def __iter__(self):
            raise SystemExit(1)

    total, _ = sums([*OTHERS, of(LAST, Exits(HONEST[-1]))])
    torch.testing.assert_close(total, BASE, rtol=0, atol=1e-12)
