"""The proof of a model that is only applied: a forward pass in which records stay apart."""

import pytest
import torch
from torch import nn

from apportion.models.proof import CannotTrace, trace_forward

RECORD = torch.zeros(2, 5, 5)


class Looking(nn.Module):
    def forward(self, x):
        return x * 2 if len(x) > 4 else x


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_fixed_statistics_are_applied_to_each_record():
    trace_forward(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()).eval(), RECORD)


@pytest.mark.parametrize("module", [nn.BatchNorm2d(2).train(), nn.BatchNorm2d(2, track_running_stats=False).eval()])
def test_batch_statistics_are_not_fixed_ones(module):
    with pytest.raises(CannotTrace, match="batch_norm"):
        trace_forward(module, RECORD)


@pytest.mark.parametrize("module", [Looking(), Centred(), nn.Flatten(0, 1)], ids=str)
def test_what_mixes_records_or_counts_them_is_not_proved(module):
    with pytest.raises(CannotTrace):
        trace_forward(module, RECORD)
