"""A small model, in a module that other processes can import."""

from torch import nn

STEPS = 4


def make_model(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
