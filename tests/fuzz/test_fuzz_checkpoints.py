"""Checkpoints that were cut, flipped, forged or made up: refused in words, and nothing is charged."""

import hashlib

import pytest
import torch
from fuzz_share import share
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.training.checkpoint import read_checkpoint
from apportion.training.packing import pack

scalar = st.one_of(st.none(), st.booleans(), st.integers(-10, 10), st.floats(), st.text(max_size=5))
anything = st.recursive(
    st.one_of(scalar, st.just(torch.zeros(2))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


def train(folder, resume):
    torch.manual_seed(0)
    return runs.train(
        nn.Linear(2, 2),
        cross_entropy,
        (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)),
        budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        population=4,
        sample_rate=0.5,
        steps=2,
        lr=0.1,
        out=folder,
        resume=resume,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    train(folder, False)
    return folder, (folder / "secret" / "checkpoint").read_bytes()


def forged(content):
    """With the hash that belongs to it: only what is inside can give it away."""
    return b"apportion checkpoint 1\n" + hashlib.blake2b(content, digest_size=32).hexdigest().encode() + b"\n" + content


@share(150)
@given(st.data())
def test_bytes(finished, tally, data):
    folder, content = finished
    place = data.draw(st.integers(0, len(content) - 1))
    body = content.split(b"\n", 2)[2]
    broken = data.draw(
        st.sampled_from(
            [
                content[:place],
                content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :],
                data.draw(st.binary(max_size=200)),
                forged(data.draw(st.binary(max_size=200))),
                forged(body[: place % len(body)]),
            ]
        )
    )
    path = folder / "secret" / "broken"
    path.write_bytes(broken)
    with pytest.raises(ap.InvalidArgument, match="resume="):
        read_checkpoint(path)
    tally(True)


@share(30)
@given(st.data())
def test_forged_states(finished, tally, data):
    """The hash is right and the content is data, but of the wrong kind."""
    folder, content = finished
    file = folder / "secret" / "checkpoint"
    state = read_checkpoint(file)
    key = data.draw(st.sampled_from(sorted(state)))
    file.write_bytes(forged(pack({**state, key: data.draw(anything)})))
    spent = charges(folder)
    try:
        train(folder, True)
        refused = False  # it happened to be as good as the old one
    except ap.ApportionError:
        refused = True
    finally:
        assert charges(folder) == spent
        file.write_bytes(content)
    tally(refused)


def charges(folder):
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    try:
        return len(list(ledger.rows()))
    finally:
        ledger.close()
