"""What may be published: the same for neighbouring data sets, and without a trace of seed or key."""

import base64
import copy
import json
import os

import pytest
import torch
from torch.nn.functional import cross_entropy

import apportion as ap
import runs

OPTIONS = {"population": 40, "sample_rate": 0.4, "steps": 5, "clip": ap.clip.Decay(start=0.7)}


def run_into(folder, tier, model, data, budget, **options):
    if tier == "train":
        runs.train(model, cross_entropy, data, budget=budget, lr=0.5, out=folder, progress=False, **OPTIONS, **options)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    run = runs.make_private(
        model,
        optimizer,
        data,
        budget=budget,
        out=folder,
        scheduler=scheduler,
        execution=ap.Execution(3),
        **OPTIONS,
        **options,
    )
    for x, y in run.batches():
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()


def public_texts(folder):
    """Every public text file; what names the weights or the time is left out, as these are released or public anyway."""
    texts = {}
    for path in sorted((folder / "public").iterdir()):
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            if isinstance(content, dict):
                content = {k: v for k, v in content.items() if k not in ("weights_sha256", "written")}
            texts[path.name] = json.dumps(content)
        elif path.suffix != ".safetensors":
            lines = path.read_text().splitlines()
            texts[path.name] = "\n".join(
                line for line in lines if "sha256" not in line.lower() and "written" not in line
            )
    return texts


@pytest.mark.parametrize("tier", ["train", "make_private"])
def test_neighbours_publish_the_same_words(model, records, budget, tmp_path, capsys, tier):
    """Same seed, one record less, or thirty less: only the weights may differ. Batch sizes, losses and norms would show."""
    texts, printed = [], []
    for kept in (40, 39, 10):
        data = (records[0][:kept], records[1][:kept])
        run_into(tmp_path / f"{kept}", tier, copy.deepcopy(model), data, budget, seed=2)
        texts.append(public_texts(tmp_path / f"{kept}"))
        printed.append(tuple(capsys.readouterr()))
    assert texts[0] == texts[1] == texts[2]
    assert printed[0] == printed[1] == printed[2]


@pytest.mark.parametrize("tier", ["train", "make_private"])
def test_neither_seed_nor_key_is_written(model, records, budget, tmp_path, monkeypatch, tier):
    key = bytes(range(101, 133))
    monkeypatch.setattr(os, "urandom", lambda size: (key * size)[:size])
    run_into(tmp_path / "fresh", tier, copy.deepcopy(model), records, budget)
    run_into(tmp_path / "seeded", tier, copy.deepcopy(model), records, budget, seed=9182736450)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        forms = (key, key.hex().encode(), base64.b64encode(key).rstrip(b"="), str(int.from_bytes(key)).encode())
        assert not any(form in content for form in forms), f"{path.name} holds the key"
        if "public" in path.parts:
            assert b"9182736450" not in content, f"{path.name} holds the seed"


def test_the_secret_half_is_for_its_owner_only(model, records, budget, tmp_path):
    run_into(tmp_path / "run", "train", model, records, budget)
    assert (tmp_path / "run/secret").stat().st_mode & 0o077 == 0
    for path in (tmp_path / "run/secret").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
