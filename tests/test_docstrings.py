"""The examples in docstrings run as they stand, in an empty namespace, and every strategy has one."""

import dataclasses
import doctest
import importlib
import pkgutil

import pytest

from apportion import (
    accounting,
    advice,
    budget,
    clip,
    execution,
    integrations,
    noise,
    request,
    sampling,
    statistics,
    strategies,
    teachers,
    validate,
)
from apportion.sklearn import private_estimators
from apportion.strategies.tempering import Temper
from apportion.training import early_stopping, metrics, named_losses

ROOMS = (strategies, accounting, statistics, teachers, advice, integrations)
STRATEGIES = [getattr(role, name) for role in (clip, noise) for name in role.__all__] + [Temper]


def modules():
    yield from (
        private_estimators,
        budget,
        early_stopping,
        execution,
        metrics,
        named_losses,
        request,
        sampling,
        validate,
    )
    for room in ROOMS:
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            yield importlib.import_module(found.name)


def examples_of(module):
    return doctest.DocTestFinder().find(module, globs={"__name__": "example"})


EXAMPLES = {test.name: test for module in modules() for test in examples_of(module) if test.examples}


def run(test):
    complaints = []
    failed, tried = doctest.DocTestRunner().run(test, out=complaints.append)
    assert tried
    return failed, "".join(complaints)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_runs_and_shows_what_it_says(name):
    failed, complaints = run(EXAMPLES[name])
    assert not failed, complaints


@pytest.mark.parametrize(
    "kind", [kind for kind in STRATEGIES if dataclasses.is_dataclass(kind)], ids=lambda kind: kind.__qualname__
)
def test_every_strategy_has_an_example(kind):
    assert doctest.DocTestParser().get_examples(kind.__doc__)


def test_an_example_that_is_wrong_or_takes_names_from_its_module_fails():
    for text in (">>> 1 + 1\n3\n", ">>> Context(1, 2, 0.1).step\n1\n"):
        test = doctest.DocTestParser().get_doctest(text, {}, "wrong", None, None)
        assert run(test)[0] == 1
