import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.training.checkpoint import read_checkpoint
from apportion.training.statement import as_markdown, in_words, show_epsilon

RAW_WORDS = ("loss", "norm_", "gradient", "realised", "batch_sizes", "seed", "key")


@pytest.fixture
def run(model, records, budget, tmp_path):
    return runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=0.25,
        steps=4,
        lr=0.5,
        clip=ap.clip.Decay(start=0.7),
        evaluate=ap.Public(records),
        out=tmp_path / "run",
    )


def keys_of(content):
    if isinstance(content, dict):
        return set(content) | {key for value in content.values() for key in keys_of(value)}
    if isinstance(content, list):
        return {key for value in content for key in keys_of(value)}
    return set()


def test_the_folder_has_a_public_and_a_secret_half(run, tmp_path):
    files = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert files == [
        "public/configuration.json",
        "public/history.json",
        "public/plan.json",
        "public/privacy.json",
        "public/privacy.md",
        "public/weights.safetensors",
        "secret/checkpoint",
        "secret/ledger.sqlite",
        "secret/problems.jsonl",
    ]


def test_nothing_raw_is_public(run, tmp_path):
    for path in (tmp_path / "run" / "public").glob("*.json"):
        keys = keys_of(json.loads(path.read_text()))
        assert not [key for key in keys for word in RAW_WORDS if word in key], path.name
    history = json.loads((tmp_path / "run" / "public" / "history.json").read_text())
    assert set(history[0]) == {"step", "epoch", "clip", "noise_multiplier", "learning_rate", "epsilon", "test_accuracy"}


def test_weights_and_ledger_can_be_read_back(run, model, tmp_path):
    copy = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    load_model(copy, str(tmp_path / "run" / "public" / "weights.safetensors"))
    assert torch.equal(copy[0].weight, model[0].weight)
    assert len(list(Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite").events())) == 4
    assert read_checkpoint(tmp_path / "run" / "secret" / "checkpoint")["step"] == 4


def test_the_statement_says_what_was_done(run, budget):
    facts = run.statement()
    assert facts["epsilon"] == facts["epsilon_spent"] == run.epsilon() <= 3.0
    assert facts["delta"] == 1e-5
    assert facts["unit"] == "record"
    assert facts["neighbours"] == "add or remove one record"
    assert (facts["steps_planned"], facts["steps_taken"]) == (4, 4)
    assert facts["private"] is True
    text = as_markdown(facts)
    for words in ("one record is added", "Poisson", "Decay(start=0.7", "Not covered", show_epsilon(facts["epsilon"])):
        assert words in text


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(2.99541, "2.9955"), (2.9954, "2.9954"), (2.99994, "3.0000"), (3.0, "3.0000")]
)
def test_no_epsilon_is_shown_below_the_true_one(epsilon, shown):
    assert show_epsilon(epsilon) == shown


def test_a_seeded_run_says_that_it_is_not_private(model, records, budget):
    run = runs.train(
        model, cross_entropy, records, budget=budget, population=40, sample_rate=0.25, steps=2, lr=0.5, seed=7
    )
    facts = run.statement()
    assert facts["private"] is False
    assert in_words(facts).startswith("NOT PRIVATE: a fixed seed")
    assert "7" not in json.dumps(facts["randomness"])


def test_a_run_stopped_early_promises_the_whole_plan(model, records, budget):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = runs.make_private(model, optimizer, records, budget=budget, population=40, sample_rate=1.0, steps=6)
    for x, y in run.batches(steps=2):
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
    facts = run.statement()
    assert facts["epsilon_spent"] < facts["epsilon"] <= 3.0
    assert facts["steps_taken"] == 2


def test_saving_a_run_without_a_folder_copies_its_ledger(model, records, budget, tmp_path):
    run = runs.train(model, cross_entropy, records, budget=budget, population=40, sample_rate=0.25, steps=3, lr=0.5)
    run.save(tmp_path / "later")
    assert len(list(Ledger.open(tmp_path / "later" / "secret" / "ledger.sqlite").events())) == 3
    assert (tmp_path / "later" / "secret").stat().st_mode & 0o077 == 0


def test_a_private_loop_saves_the_original_model(model, records, budget, tmp_path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = runs.make_private(model, optimizer, records, budget=budget, population=40, sample_rate=1.0, steps=1)
    for x, y in run.batches():
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
    run.save(tmp_path / "run")
    copy = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    load_model(copy, str(tmp_path / "run" / "public" / "weights.safetensors"))
    assert torch.equal(copy[2].weight, model[2].weight)


def test_saving_into_the_folder_of_another_run_is_refused(run, records, budget, tmp_path):
    other = runs.train(
        nn.Linear(4, 2), cross_entropy, records, budget=budget, population=40, sample_rate=0.25, steps=1, lr=0.5
    )
    with pytest.raises(ap.InvalidArgument, match="ledger of an earlier run"):
        other.save(tmp_path / "run")
    assert len(list(Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite").events())) == 4


def test_numbers_from_numpy_and_torch_can_be_saved(model, records, tmp_path):
    run = runs.train(
        model,
        cross_entropy,
        records,
        budget=ap.Budget(epsilon=np.float32(3), delta=np.float64(1e-5), unit=ap.Record()),
        population=np.int64(40),
        sample_rate=torch.tensor(0.25),
        steps=2,
        lr=0.5,
        clip=ap.clip.Fixed(np.float32(0.5)),
        noise=ap.noise.Constant(torch.tensor(9.0)),
        out=tmp_path / "numbers",
    )
    assert run.epsilon() > 0


def test_a_refused_run_leaves_no_folder_that_was_not_there(records, budget, tmp_path):
    class Refusing(ap.clip.Fixed):
        def propose(self, state, context):
            raise ap.InvalidArgument("clip", "Refusing", "it refuses every step", "Use another")

    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "new" / "run", tmp_path / "mine"):
        with pytest.raises(ap.InvalidArgument, match="it refuses every step"):
            runs.train(
                nn.Linear(4, 2),
                cross_entropy,
                records,
                budget=budget,
                population=40,
                sample_rate=0.25,
                steps=3,
                lr=0.5,
                clip=Refusing(),
                out=folder,
            )
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_listener_is_told_of_every_step_and_of_released_values_only(records, budget):
    told = []
    options = {"budget": budget, "population": 40, "sample_rate": 0.25, "steps": 3, "lr": 0.5}
    run = runs.train(nn.Linear(4, 2), cross_entropy, records, on_step=told.append, **options)
    assert told == list(run.history)
