"""Groups, and teachers whose votes are known in advance, at the top of a module so that they can be sent to other processes."""

import os

import numpy as np
from torch import nn

SHARES = {"strict": (1.0, 0.5), "medium": (2.0, 0.3), "loose": (5.0, 0.2)}
MARK = 100.0
"""A record with this value is noticed by every teacher that has it."""


class Noticing:
    """Votes for class 1 if it has a marked record, otherwise for class 0: whoever adds one moves all votes of its teachers."""

    def fit(self, inputs, classes):
        self.found = int((inputs == MARK).any())
        return self

    def predict(self, inputs):
        return np.full(len(inputs), self.found)


class Constant(Noticing):
    """Votes for class 1."""

    def fit(self, inputs, classes):
        self.found = 1
        return self


class Failing(Constant):
    """Cannot learn from marked records."""

    def fit(self, inputs, classes):
        if (inputs == MARK).any():
            raise SystemExit("this record is damaged")
        return super().fit(inputs, classes)


class Ending(Constant):
    """Ends its process on marked records."""

    def fit(self, inputs, classes):
        if (inputs == MARK).any():
            os._exit(3)
        return super().fit(inputs, classes)


class Nonsense(Constant):
    """Answers with something that is no class."""

    def __init__(self, answer):
        self.answer = answer

    def predict(self, inputs):
        return np.full(len(inputs), self.answer)


def small_network():
    return nn.Linear(2, 2)
