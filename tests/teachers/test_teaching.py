"""Teachers see their own part, fail silently, and leave no trace."""

import random
import sys
import types

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from small_teachers import MARK, Constant, Ending, Failing, Nonsense, small_network

from apportion.teachers.teaching import FALLBACK, Fit, Lesson, collect_votes, fit_model

QUERIES = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))


def parts(count=5, size=8, marked=()):
    """Parts of random records; those in `marked` have one that is noticed."""
    found = []
    for number in range(count):
        inputs = torch.randn(size, 2, generator=torch.Generator().manual_seed(number))
        classes = (inputs[:, 0] > 0).long()
        if number in marked:
            inputs[0] = MARK
        found.append((inputs, classes))
    return found


def votes_of(factory, given, processes=1, classes=2):
    lesson = Lesson(factory, QUERIES, classes, Fit(epochs=20, lr=0.05))
    readers = [lambda one=one: one for one in given]
    return collect_votes(lesson, readers, range(len(given)), processes, lambda: None)


@pytest.mark.parametrize("factory", [LogisticRegression, small_network])
def test_teachers_learn_whatever_they_are(factory):
    votes = votes_of(factory, parts(size=40))
    assert (votes == (QUERIES[:, 0] > 0).long().numpy()).mean() > 0.8


def test_a_teacher_that_fails_votes_for_a_fixed_class_and_the_others_as_ever():
    votes = votes_of(Failing, parts(marked={2}))
    assert (votes[2] == FALLBACK).all()
    assert (np.delete(votes, 2, axis=0) == 1).all()


def test_an_empty_part_and_one_that_cannot_be_read_vote_for_a_fixed_class():
    empty = torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)
    assert (votes_of(Constant, [empty, *parts(1)]) == [[FALLBACK] * 6, [1] * 6]).all()

    def unreadable():
        raise OSError("the file of record 3")

    votes = collect_votes(Lesson(Constant, QUERIES, 2, Fit()), [unreadable], [0], 1, lambda: None)
    assert (votes == FALLBACK).all()


@pytest.mark.parametrize("answer", [7, -1, 0.5, float("nan"), "one"])
def test_an_answer_that_is_no_class_is_a_vote_for_a_fixed_class(answer):
    assert (votes_of(lambda: Nonsense(answer), parts(1)) == FALLBACK).all()


def test_a_part_of_one_class_is_no_error_and_no_warning():
    inputs, classes = parts(1)[0]
    assert (votes_of(LogisticRegression, [(inputs, torch.ones_like(classes))]) == FALLBACK).all()
    few_rounds = votes_of(lambda: LogisticRegression(max_iter=1), [(inputs, classes)])
    assert set(few_rounds.ravel()) <= {0, 1}


def test_the_generators_of_the_person_are_left_alone():
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    before = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(4)
    np.random.seed(4)
    random.seed(4)
    first = votes_of(small_network, parts())
    assert (torch.rand(1), np.random.rand(), random.random()) == before
    torch.manual_seed(5)
    assert np.array_equal(first, votes_of(small_network, parts())), (
        "a teacher's votes hang on something but its part and its seed"
    )


def test_a_teacher_is_not_touched_by_another_ones_records():
    before, after = votes_of(small_network, parts()), votes_of(small_network, parts(marked={0}))
    assert np.array_equal(before[1:], after[1:])


def test_a_torch_model_is_trained_by_plain_steps():
    inputs, classes = parts(size=60)[0]
    model = fit_model(small_network, (inputs, classes), Fit(epochs=30, optimizer="sgd", lr=0.5, batch_size=10))
    assert (model(inputs).argmax(1) == classes).float().mean() > 0.9
    assert not model.training


@pytest.mark.slow
def test_several_processes_give_the_same_votes():
    for factory in (LogisticRegression, small_network):
        assert np.array_equal(votes_of(factory, parts(7)), votes_of(factory, parts(7), processes=2))


@pytest.mark.slow
def test_a_teacher_that_ends_its_process_takes_no_other_with_it():
    votes = votes_of(Ending, parts(5, marked={1}), processes=2)
    assert (votes[1] == FALLBACK).all()
    assert (np.delete(votes, 1, axis=0) == 1).all()


@pytest.mark.slow
def test_a_teacher_that_other_processes_cannot_import_is_trained_here(monkeypatch):
    """Not that all would vote for the fixed class, and nobody would know why."""
    module = types.ModuleType("known_here_only")
    module.Here = type("Here", (Constant,), {"__module__": "known_here_only"})
    monkeypatch.setitem(sys.modules, "known_here_only", module)
    assert (votes_of(module.Here, parts(3), processes=2) == 1).all()
    assert (votes_of(lambda: Constant(), parts(3), processes=2) == 1).all()
