"""Recurrent layers in the one-pass engine, against every record alone (`ReferenceGradients`) in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.tree import call_model, tensor_leaves
from apportion.errors import UnsupportedModel

KINDS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Sequences(nn.Module):
    """A recurrent layer between inputs and outputs with records first; all its outputs are returned."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *states):
        states = tuple(state.transpose(0, 1) for state in states)
        hx = (states if isinstance(self.layer, nn.LSTM) else states[0]) if states else None
        output, final = self.layer(x if self.layer.batch_first else x.transpose(0, 1), hx)
        final = final if isinstance(final, tuple) else (final,)
        output = output if self.layer.batch_first else output.transpose(0, 1)
        return output, *(state.transpose(0, 1) for state in final)


class Lengths(nn.Module):
    """Sequences of different lengths, packed; the outputs are padded to seven steps."""

    def __init__(self, layer, is_sorted=False):
        super().__init__()
        self.layer, self.is_sorted = layer, is_sorted

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.is_sorted)
        output, final = self.layer(packed)
        final = final if isinstance(final, tuple) else (final,)
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=7)
        return output, *(state.transpose(0, 1) for state in final)


class Steps(nn.Module):
    """A cell that is used at every step."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.first = cell, nn.Linear(cell.input_size, cell.hidden_size)

    def forward(self, x):
        state = None
        outputs = [self.first(x[:, 0])]
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


def loss_of(outputs):
    """Depends on every number of every output, and differently on each."""
    values = torch.cat([tensor.flatten(1) for tensor in tensor_leaves(outputs)], 1)
    return (values * torch.linspace(-1, 2, values.shape[1], dtype=values.dtype)).sum() + values.square().sum()


def check(model, inputs, tolerance=1e-9):
    """Outputs, norms and weighted sums of the engine are those of the records alone. Returns the engine's gradients."""
    reference, engine = ReferenceGradients(model, "loop"), OnePass(model)
    expected = reference.forward(inputs)
    loss_of(expected).backward()
    rows = reference.gradients()
    outputs = engine.forward(inputs)
    assert type(outputs) is type(expected)
    for found, alone, own in zip(
        tensor_leaves(outputs), tensor_leaves(expected), tensor_leaves(call_model(model, inputs)), strict=True
    ):
        assert found.dtype == own.dtype
        assert torch.allclose(found, alone, rtol=tolerance, atol=tolerance)
        assert torch.allclose(found, own, rtol=tolerance, atol=tolerance)
    loss_of(outputs).backward()
    gradients = engine.gradients()
    norms = gradients.squared_norms()
    assert set(norms) == set(rows) == {name for name, p in model.named_parameters() if p.requires_grad}
    weights = {name: torch.rand(len(row), dtype=torch.float64) for name, row in rows.items()}
    sums = gradients.weighted_sums(weights)
    for name, row in rows.items():
        expected_norms = row.double().flatten(1).square().sum(1)
        assert torch.allclose(norms[name], expected_norms, rtol=tolerance, atol=tolerance * float(expected_norms.max()))
        expected_sum = torch.tensordot(weights[name].to(row.dtype), row, 1)
        assert (sums[name] - expected_sum).norm() <= tolerance * expected_sum.norm()
    return gradients


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("length", [1, 2, 15, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_and_batches(kind, length, batch):
    check(Sequences(KINDS[kind](6, 5, batch_first=True)).double(), torch.randn(batch, length, 6).double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 3},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
        {"num_layers": 2, "bidirectional": True, "bias": False},
    ],
    ids=str,
)
def test_options(kind, options):
    check(Sequences(KINDS[kind](4, 3, **options)).double(), torch.randn(3, 6, 4).double())


def test_relu():
    check(Sequences(nn.RNN(4, 3, 2, nonlinearity="relu")).double(), torch.randn(3, 6, 4).double())


@pytest.mark.parametrize("directions", [1, 2])
def test_projection_of_an_lstm(directions):
    layer = nn.LSTM(4, 5, 2, proj_size=3, bidirectional=directions == 2)
    states = [torch.randn(3, 2 * directions, size).double() for size in (3, 5)]
    check(Sequences(layer).double(), torch.randn(3, 6, 4).double())
    check(Sequences(layer).double(), (torch.randn(3, 6, 4).double(), *states))


@pytest.mark.parametrize("kind", KINDS)
def test_initial_states(kind):
    states = [torch.randn(3, 4, 5).double() for _ in range(2 if kind == "lstm" else 1)]
    layer = KINDS[kind](4, 5, 2, bidirectional=True, batch_first=True)
    check(Sequences(layer).double(), (torch.randn(3, 6, 4).double(), *states))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_inputs_and_initial_states(kind):
    """What comes before the layer learns through them."""

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs, self.states = nn.Linear(4, 3), nn.Linear(4, 5)
            self.layer = KINDS[kind](3, 5, batch_first=True)

        def forward(self, x):
            state = self.states(x[:, 0]).unsqueeze(0)
            output, final = self.layer(self.inputs(x), (state, state.tanh()) if kind == "lstm" else state)
            return output[:, ::2], final[1].transpose(0, 1) if kind == "lstm" else final.transpose(0, 1)

    check(Between().double(), torch.randn(3, 6, 4).double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_packed_sequences(kind, is_sorted):
    lengths = torch.tensor([7, 5, 5, 2, 1] if is_sorted else [2, 7, 1, 5, 5])
    for directions in (1, 2):
        layer = KINDS[kind](4, 3, 2, bidirectional=directions == 2)
        check(Lengths(layer, is_sorted).double(), (torch.randn(5, 7, 4).double(), lengths))
    check(Lengths(layer, is_sorted).double(), (torch.randn(5, 7, 4).double(), torch.full((5,), 7)))


def test_packed_sequences_keep_their_order():
    """Sequences of the same length may be packed in any order; the output is packed in the same."""
    lengths = torch.tensor([3, 5, 3, 5])
    packed = pack_padded_sequence(torch.randn(4, 5, 2).double(), lengths, batch_first=True, enforce_sorted=False)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(2, 3)

        def forward(self, x):
            return self.layer(packed)[0]

    model = Packed().double()
    found, expected = OnePass(model).forward(torch.zeros(4, 1)), model(None)
    assert torch.allclose(found.data, expected.data)
    assert all(torch.equal(mine, own) for mine, own in zip(found[1:], expected[1:], strict=True))


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [False, True])
def test_cells(cell, bias):
    check(Steps(cell(4, 3, bias=bias)).double(), torch.randn(3, 1, 4).double())
    check(Steps(cell(4, 3, bias=bias)).double(), torch.randn(3, 5, 4).double())


def test_cell_with_relu():
    check(Steps(nn.RNNCell(4, 3, nonlinearity="relu")).double(), torch.randn(3, 4, 4).double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trained", ["weight_ih_l0", "weight_hh_l1", "bias_ih_l0", "bias_hh_l1", "l0_reverse", "l1"])
def test_frozen_parameters(kind, trained):
    model = Sequences(KINDS[kind](4, 3, 2, bidirectional=True)).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    check(model, torch.randn(3, 5, 4).double())


@pytest.mark.parametrize("trained", ["weight_hr_l0", "weight_ih_l1"])
def test_frozen_parameters_beside_a_projection(trained):
    model = Sequences(nn.LSTM(4, 5, 2, proj_size=3)).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    check(model, torch.randn(3, 5, 4).double())


def test_frozen_layer_passes_gradients_on():
    model = nn.Sequential(nn.Linear(4, 4), Sequences(nn.LSTM(4, 3, batch_first=True))).double()
    model[1].requires_grad_(False)
    check(model, torch.randn(3, 5, 4).double())


def test_one_parameter_as_two_matrices():
    model = Sequences(nn.LSTM(4, 4, 2)).double()
    model.layer.weight_hh_l0 = model.layer.weight_ih_l0
    model.layer.weight_ih_l1 = model.layer.weight_hh_l1
    model.layer.bias_ih_l1 = model.layer.bias_hh_l0
    check(model, torch.randn(3, 5, 4).double())


def test_layer_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 4, batch_first=True)

        def forward(self, x):
            return self.layer(self.layer(x)[0])[0]

    check(Twice().double(), torch.randn(3, 5, 4).double())


@pytest.mark.parametrize(("length", "kernel"), [(1, "product of norms"), (15, "Gram"), (40, "materialised")])
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_the_norms(kind, length, kernel):
    gradients = check(Sequences(KINDS[kind](36, 36, batch_first=True)).double(), torch.randn(3, length, 36).double())
    assert {use.kernel for use in gradients._uses} == {kernel}


def test_norms_never_fall_short():
    """Steps that nearly cancel: rounding of the Gram form must not report less than the truth."""
    model = Sequences(nn.RNN(64, 64, bias=False, batch_first=True))
    with torch.no_grad():
        model.layer.weight_hh_l0.zero_()
    signs = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    inputs = (torch.randn(6, 1, 64) * signs).mul(1e-3) + 1e-8 * torch.randn(6, 8, 64)

    def norms(engine, x):
        engine.forward(x)[0].sum().backward()
        return engine.gradients().squared_norms()["layer.weight_ih_l0"]

    single, double = norms(OnePass(model), inputs), norms(OnePass(copy.deepcopy(model).double()), inputs.double())
    assert (single >= double * (1 - 1e-6)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_float32(kind):
    check(Sequences(KINDS[kind](20, 16, 2, bidirectional=True, batch_first=True)), torch.randn(5, 9, 20), 1e-4)


def test_dropout_between_layers():
    """With one record and one seed the masks of engine and module are the same."""
    model, x = Sequences(nn.LSTM(4, 6, 3, dropout=0.5)).double(), torch.randn(1, 5, 4).double()
    torch.manual_seed(3)
    expected = model(x)
    loss_of(expected).backward()
    engine = OnePass(model)
    torch.manual_seed(3)
    outputs = engine.forward(x)
    assert torch.allclose(outputs[0], expected[0])
    loss_of(outputs).backward()
    sums = engine.gradients().weighted_sums({name: torch.ones(1) for name, _ in model.named_parameters()})
    for name, parameter in model.named_parameters():
        assert torch.allclose(sums[name], parameter.grad)
    model.eval()
    assert torch.equal(engine.forward(x)[0], engine.forward(x)[0])


def test_silent_records():
    model, x = Sequences(nn.LSTM(4, 3, 2, batch_first=True)).double(), torch.randn(4, 6, 4).double()
    engine = OnePass(model)

    def sums(x, silent):
        loss_of(engine.forward(x)).backward()
        gradients = engine.gradients()
        gradients.zero_records(silent)
        norms = gradients.squared_norms()
        return norms, gradients.weighted_sums({name: torch.ones(len(x)).double() for name in norms})

    silent = torch.tensor([False, True, False, False])
    broken = x.clone()
    broken[1] = float("nan")
    norms, found = sums(broken, silent)
    _, expected = sums(x[~silent], silent[~silent])
    assert all(norm[1] == 0 for norm in norms.values())
    assert all(torch.allclose(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_output_may_be_overwritten(batch_first):
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(4, 3, 2, batch_first=batch_first)

        def forward(self, x):
            output = self.layer(x if batch_first else x.transpose(0, 1))[0].relu_()
            return output if batch_first else output.transpose(0, 1)

    check(Overwriting().double(), torch.randn(3, 5, 4).double())


@pytest.mark.parametrize("layer", [nn.LSTM(4, 3), nn.GRUCell(4, 3)])
def test_unbatched_input_is_refused(layer):
    unbatched = torch.randn(5, 4) if isinstance(layer, nn.LSTM) else torch.randn(4)
    with pytest.raises(UnsupportedModel, match="no batch dimension"):
        OnePass(nn.Sequential(layer)).forward(unbatched)


def test_states_of_the_wrong_size_are_refused_as_by_the_module():
    with pytest.raises(RuntimeError, match="Expected hidden"):
        OnePass(Sequences(nn.LSTM(4, 3))).forward((torch.randn(2, 5, 4), torch.randn(2, 1, 2), torch.randn(2, 1, 3)))


def test_a_second_backward_pass_is_refused():
    engine = OnePass(Sequences(nn.GRU(4, 3)))
    loss = loss_of(engine.forward(torch.randn(2, 5, 4)))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.tuples(*[st.integers(1, 12)] * 2),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 12)),
    layers=st.integers(1, 2),
    options=st.fixed_dictionaries(dict.fromkeys(("bias", "batch_first", "bidirectional"), st.booleans())),
    seed=st.integers(0, 1000),
)
def test_any_shape(kind, sizes, shape, layers, options, seed):
    torch.manual_seed(seed)
    model = Sequences(KINDS[kind](*sizes, layers, **options)).double()
    check(model, torch.randn(*shape, sizes[0]).double())
