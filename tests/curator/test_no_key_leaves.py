"""No key, seed or generator state is ever written: not to public/, and (with fresh keys) nowhere in the run folder."""

import base64
import os
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

import runs
from apportion.curator import randomness

SEED = 7_261_839_405_162_738
KEY = bytes((73 * k + 41) % 251 for k in range(32))


def spellings(secret):
    """How bytes may stand in a file: raw, hexadecimal, or base64 at any of its three alignments."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            found.add(alphabet(bytes(shift) + secret)[4 if shift else 0 : -4])
    return found


def spellings_of_number(number):
    texts = {str(number), f"{number:,}", f"{number:_}", f"{number:x}", f"{number:X}"}
    return {text.encode() for text in texts} | {number.to_bytes(8, order) for order in ("little", "big")}


def files_with(folder, secrets):
    """The files below `folder` in whose name or content one of the secrets stands."""
    assert all(len(secret) >= 6 for secret in secrets)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path for path in files if any(secret in path.read_bytes() or secret in str(path).encode() for secret in secrets)
    ]


@pytest.fixture
def keys(monkeypatch):
    """Every key that is used, the operating system's and the derived ones, each in two halves."""
    seen = []
    right = randomness.Stream.__init__

    def remember(self, key):
        seen.extend([key[:16], key[16:]])
        right(self, key)

    monkeypatch.setattr(randomness.Stream, "__init__", remember)
    monkeypatch.setattr(randomness, "os", SimpleNamespace(urandom=lambda count: KEY[:count], getpid=os.getpid))
    return seen


def run_folder(tmp_path, model, records, budget, seed):
    runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=1.0,
        steps=3,
        lr=0.1,
        seed=seed,
        out=tmp_path / "run",
        progress=False,
    )
    folder = tmp_path / "run"
    assert {"public", "secret"} <= {path.name for path in folder.iterdir()}
    assert len([path for path in folder.rglob("*") if path.is_file()]) >= 6
    return folder


def test_a_fresh_run_writes_no_key(tmp_path, model, records, budget, keys):
    folder = run_folder(tmp_path, model, records, budget, seed=None)
    assert len(keys) == 2 * len(randomness.PURPOSES) * 3  # halves, purposes, steps
    secrets = [KEY[:16], KEY[16:], *keys]
    assert files_with(folder, {spelling for secret in secrets for spelling in spellings(secret)}) == []


def test_a_seeded_run_publishes_neither_seed_nor_key(tmp_path, model, records, budget, keys):
    folder = run_folder(tmp_path, model, records, budget, seed=SEED)
    assert len(keys) == 2 * len(randomness.PURPOSES) * 3
    secrets = {spelling for key in keys for spelling in spellings(key)} | spellings_of_number(SEED)
    assert files_with(folder / "public", secrets) == []


def test_no_generator_state_is_written(tmp_path, model, records, budget):
    """torch's state is 5,056 bytes; any 64 of them that are not zeros would be found."""
    torch.manual_seed(SEED)
    torch.rand(1000)
    states = [torch.get_rng_state().numpy().tobytes()]
    folder = run_folder(tmp_path, model, records, budget, seed=None)
    states.append(torch.get_rng_state().numpy().tobytes())
    pieces = {state[k : k + 64] for state in states for k in range(0, len(state) - 63, 64)}
    assert files_with(folder, {piece for piece in pieces if len(set(piece)) > 16}) == []


@pytest.mark.parametrize(
    "write", [lambda k: k, lambda k: k.hex().encode(), lambda k: k.hex().upper().encode(), base64.b64encode]
)
@pytest.mark.parametrize("before", [b"", b"x", b"xy"])
def test_the_search_finds_a_key_that_was_written(tmp_path, write, before):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b'{"a": "' + write(before + KEY + b"tail") + b'"}')
    (tmp_path / "clean").write_bytes(write(bytes(48)))
    assert files_with(tmp_path, spellings(KEY[:16])) == [tmp_path / "deep" / "file"]
    assert files_with(tmp_path, spellings(KEY[16:])) == [tmp_path / "deep" / "file"]


@pytest.mark.parametrize("text", ['{"seed": 7261839405162738}', f"seed={SEED:#x}", "7,261,839,405,162,738"])
def test_the_search_finds_a_seed_that_was_written(tmp_path, text):
    (tmp_path / "file").write_text(text)
    assert files_with(tmp_path, spellings_of_number(SEED))


def test_a_state_that_was_written_is_found(tmp_path):
    torch.save({"rng": torch.get_rng_state()}, tmp_path / "checkpoint.pt")
    state = torch.get_rng_state().numpy().tobytes()
    assert files_with(tmp_path, {state[1024:1088]})
