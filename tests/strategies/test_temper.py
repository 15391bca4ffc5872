import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.layer(x))


def test_the_default_is_tanh_and_other_shapes_are_sigmoids():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    torch.testing.assert_close(ap.TemperedSigmoid()(x), torch.tanh(x), rtol=0, atol=1e-14)
    torch.testing.assert_close(ap.TemperedSigmoid(1.0, 1.0, 0.0)(x), torch.sigmoid(x))
    assert ap.TemperedSigmoid(3.0, 0.5, 1.0)(torch.zeros(1)).item() == 0.5


def test_it_is_bounded_and_its_gradient_is_right():
    """φ' = s·T·σ(1 − σ) with σ = sigmoid(T·x); no overflow far out."""
    x = torch.tensor([-1e30, -3.0, 0.2, 1e30], dtype=torch.float64, requires_grad=True)
    y = ap.TemperedSigmoid(1.6, 3.0, 0.7)(x)
    y.sum().backward()
    assert y.min().item() == pytest.approx(-0.7)
    assert y.max().item() == pytest.approx(0.9)
    sigmoid = torch.sigmoid(3.0 * x.detach())
    torch.testing.assert_close(x.grad, 1.6 * 3.0 * sigmoid * (1 - sigmoid))


def test_every_relu_of_a_copy_is_replaced_and_weights_are_kept():
    shared = nn.ReLU()
    model = nn.Sequential(
        nn.Linear(4, 5), shared, nn.Sequential(nn.Linear(5, 5), shared, nn.GELU()), nn.Tanh(), nn.Linear(5, 2)
    )
    tempered = ap.temper(model, scale=1.5)
    kinds = [type(layer).__name__ for layer in tempered.modules()]
    assert kinds.count("ReLU") == 0
    assert kinds.count("TemperedSigmoid") == 3
    assert "GELU" in kinds
    assert [type(layer).__name__ for layer in model.modules()].count("TemperedSigmoid") == 0, "the original was changed"
    for (name, before), (_, after) in zip(model.named_parameters(), tempered.named_parameters(), strict=True):
        assert torch.equal(before, after), name
        assert before is not after
    assert {layer.scale for layer in tempered.modules() if isinstance(layer, ap.TemperedSigmoid)} == {1.5}
    assert isinstance(ap.temper(nn.ReLU()), ap.TemperedSigmoid)


def test_a_tempered_model_trains_privately(records, budget):
    torch.manual_seed(0)
    model = ap.temper(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    before = model[0].weight.detach().clone()
    runs.train(
        model, cross_entropy, records, budget=budget, population=40, sample_rate=0.4, steps=2, lr=0.5, progress=False
    )
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ap.temper(nn.Linear(4, 2)), "no ReLU or tanh layer"),
        (lambda: ap.temper(Functional()), "torch.relu"),
        (lambda: ap.temper("model"), "it is a str"),
        (lambda: ap.TemperedSigmoid(scale=0.0), "scale=0.0"),
        (lambda: ap.TemperedSigmoid(temperature=-1.0), "temperature=-1.0"),
        (lambda: ap.TemperedSigmoid(offset=float("nan")), "offset=nan"),
        (lambda: ap.TemperedSigmoid(offset=-1.0), "offset=-1.0"),
    ],
)
def test_what_cannot_be_tempered(build, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        build()
