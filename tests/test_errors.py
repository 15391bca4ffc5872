"""Errors on their way from a worker process."""

import inspect
import pickle

import pytest

from apportion import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ApportionError)]


def arrived(error):
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_between_processes(kind):
    arguments = ("lr", -1.0, "it must be positive", "Try lr=0.5")
    error = kind(*arguments) if issubclass(kind, errors.InvalidArgument) else kind("the budget is spent")
    other = arrived(error)
    assert type(other) is kind
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_a_value_that_cannot_travel_is_replaced_by_its_text():
    error = errors.InvalidArgument("noise", lambda context: 1.0, "it is not a noise strategy", "Pass another")
    other = arrived(arrived(error))
    assert str(other) == str(error)
    assert "<lambda>" in repr(other.value)
