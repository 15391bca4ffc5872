"""`Conv1D` of transformers, of which GPT-2 is made, has the rule of linear layers with its matrix the other way round."""

import pytest
import torch
from torch import nn

from apportion.curator.clipping import as_gradients
from apportion.curator.gradients.engine import build_engine

transformers = pytest.importorskip("transformers.pytorch_utils")


def summed(mode, model, inputs):
    engine = build_engine(model, mode)
    engine.forward(inputs).square().flatten(1).sum(1).sum().backward()
    found = as_gradients(engine.gradients())
    norms = found.squared_norms()
    weights = torch.linspace(0.2, 1.0, len(inputs), dtype=torch.float64)
    return norms, found.weighted_sums(dict.fromkeys(norms, weights)), engine


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (40, 5)], ids=["flat", "one place", "Gram", "materialised"])
def test_its_gradients_are_those_of_single_records(shape):
    torch.manual_seed(0)
    wide = 64 if shape == (3, 5) else 4
    model = nn.Sequential(transformers.Conv1D(wide, 5), nn.Tanh(), transformers.Conv1D(2, wide)).double()
    inputs = torch.randn(6, *shape, dtype=torch.float64)
    norms, sums, engine = summed("one-pass", model, inputs)
    alone, reference, _ = summed("loop", model, inputs)
    assert engine.fallbacks == ()
    for name in reference:
        torch.testing.assert_close(norms[name], alone[name], rtol=1e-6, atol=0.0)
        torch.testing.assert_close(sums[name], reference[name])


class Conv1D(transformers.Conv1D):
    """Computes something else under the same name."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_type_that_only_has_its_name_runs_under_vmap():
    Conv1D.__module__ = "transformers.pytorch_utils"
    model = nn.Sequential(Conv1D(2, 5)).double()
    assert build_engine(model, "one-pass").fallbacks == ("0",)
