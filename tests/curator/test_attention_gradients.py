"""Multi-head attention in the one-pass engine, against every record alone (`ReferenceGradients`) in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.tree import call_model, tensor_leaves
from apportion.errors import UnsupportedModel


class Attending(nn.Module):
    """An attention layer between inputs and outputs with records first.

    Called with the inputs that are different tensors: (x), (query, memory) or (query, key, value), and masks by name.
    """

    def __init__(self, layer, **call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, query, key=None, value=None, padding=None, masks=None):
        if not self.layer.batch_first:
            query, key, value = (None if given is None else given.transpose(0, 1) for given in (query, key, value))
        key = query if key is None else key
        value = key if value is None else value
        call = dict(self.call)
        if masks is not None:
            call["attn_mask"] = masks.flatten(0, 1)
        output, weights = self.layer(query, key, value, key_padding_mask=padding, **call)
        output = output if self.layer.batch_first else output.transpose(0, 1)
        return output if weights is None else (output, weights)


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
        assert (sums[name] - expected_sum).norm() <= tolerance * (1 + float(expected_sum.norm()))
    return gradients


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def attention(size=8, heads=2, **options):
    """Biases start at zero in torch; here they differ from it."""
    layer = nn.MultiheadAttention(size, heads, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("different", [1, 2, 3])
def test_inputs(different, need_weights, bias, batch_first):
    inputs = (random(3, 5, 8), random(3, 7, 8), random(3, 7, 8))[:different]
    check(Attending(attention(bias=bias, batch_first=batch_first), need_weights=need_weights), inputs)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("length", [1, 2, 15, 40])
def test_lengths_and_batches(length, batch):
    check(Attending(attention(batch_first=True)), random(batch, length, 8))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_keys_and_values_of_other_sizes(bias, batch_first):
    layer = attention(kdim=6, vdim=4, bias=bias, batch_first=batch_first)
    check(Attending(layer), (random(3, 5, 8), random(3, 7, 6), random(3, 7, 4)))


def test_keys_and_values_of_another_size_from_one_memory():
    check(Attending(attention(kdim=6, vdim=6)), (random(3, 5, 8), random(3, 7, 6)))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "extra", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
def test_additional_positions(extra, batch_first):
    layer = attention(batch_first=batch_first, **extra)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    check(Attending(layer, need_weights=False), random(3, 5, 8))
    check(Attending(layer, attn_mask=torch.ones(5, 5).triu(1).bool()), {"query": random(3, 5, 8), "padding": padding})


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_masks(need_weights, dtype):
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = padding[2, 4:] = True
    causal = torch.ones(5, 5).triu(1).bool()
    own = torch.rand(3, 2, 5, 5) < 0.3
    own.diagonal(dim1=2, dim2=3).fill_(False)
    own[..., 0] = False
    if dtype.is_floating_point:
        padding, causal, own = (
            torch.zeros(mask.shape).double().masked_fill(mask, -1.7) for mask in (padding, causal, own)
        )
    model = Attending(attention(), need_weights=need_weights)
    check(model, {"query": random(3, 5, 8), "padding": padding})
    check(model, {"query": random(3, 5, 8), "masks": own})
    check(model, {"query": random(3, 5, 8), "masks": own, "padding": padding})
    model = Attending(attention(), need_weights=need_weights, attn_mask=causal)
    check(model, random(3, 5, 8))
    check(model, {"query": random(3, 5, 8), "padding": padding})


@pytest.mark.parametrize("need_weights", [False, True])
def test_causal(need_weights):
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    model = Attending(attention(), need_weights=need_weights, attn_mask=mask, is_causal=True)
    check(model, random(3, 5, 8))
    padding = torch.zeros(3, 5).double().masked_fill(torch.arange(5) >= torch.tensor([[5], [3], [4]]), -torch.inf)
    check(model, {"query": random(3, 5, 8), "padding": padding})
    with pytest.raises(RuntimeError, match="attn_mask"):
        OnePass(Attending(attention(), is_causal=True)).forward(random(3, 5, 8))


def test_weights_of_every_head():
    check(Attending(attention(), average_attn_weights=False), random(3, 5, 8))


@pytest.mark.parametrize(
    "trained", ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias", "bias_k", "in_proj"]
)
def test_frozen_parameters(trained):
    model = Attending(attention(add_bias_kv=True))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    check(model, (random(3, 5, 8), random(3, 7, 8)))


@pytest.mark.parametrize("trained", ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"])
def test_frozen_parameters_of_separate_projections(trained):
    model = Attending(attention(kdim=6, vdim=4))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    check(model, (random(3, 5, 8), random(3, 7, 6), random(3, 7, 4)))


def test_frozen_layer_passes_gradients_on():
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), Attending(attention(batch_first=True)))
    model[1].requires_grad_(False)
    check(model, random(3, 5, 8))


def test_layer_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = attention(batch_first=True)

        def forward(self, x, memory):
            x = self.layer(x, x, x)[0]
            return self.layer(x, memory, memory)[0]

    check(Twice(), (random(3, 5, 8), random(3, 4, 8)))


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout(need_weights):
    """With one record and one seed the masks of engine and module are the same."""
    model, x = Attending(attention(dropout=0.4), need_weights=need_weights), random(1, 6, 8)
    torch.manual_seed(3)
    expected = model(x)
    loss_of(expected).backward()
    engine = OnePass(model)
    torch.manual_seed(3)
    outputs = engine.forward(x)
    assert torch.allclose(tensor_leaves(outputs)[0], tensor_leaves(expected)[0])
    loss_of(outputs).backward()
    sums = engine.gradients().weighted_sums({name: torch.ones(1) for name, _ in model.named_parameters()})
    for name, parameter in model.named_parameters():
        assert torch.allclose(sums[name], parameter.grad)
    model.eval()
    check(model, random(3, 5, 8))


@pytest.mark.parametrize(("length", "kernel"), [(1, "product of norms"), (8, "Gram"), (60, "materialised")])
def test_every_way_to_the_norms(length, kernel):
    gradients = check(Attending(attention(32, 4)), random(2, length, 32))
    assert {use.kernel for use in gradients._uses} == {kernel}


def test_float32():
    check(Attending(attention(16, 4, batch_first=True)).float(), torch.randn(5, 9, 16), 1e-4)


@pytest.mark.parametrize("different", [1, 2])
def test_silent_records(different):
    model, inputs = Attending(attention(add_bias_kv=True)), (random(4, 5, 8), random(4, 6, 8))[:different]
    engine = OnePass(model)

    def found(inputs, silent):
        loss_of(engine.forward(inputs)).backward()
        gradients = engine.gradients()
        gradients.zero_records(silent)
        norms = gradients.squared_norms()
        return norms, gradients.weighted_sums({name: torch.ones(len(silent)).double() for name in norms})

    silent = torch.tensor([False, True, False, False])
    broken = [value.clone() for value in inputs]
    broken[-1][1] = float("nan")
    norms, sums = found(tuple(broken), silent)
    _, expected = found(tuple(value[~silent] for value in inputs), silent[~silent])
    assert all(norm[1] == 0 for norm in norms.values())
    assert all(torch.allclose(sums[name], expected[name]) for name in expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first, training):
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    check(layer.train(training), random(3, 5, 8))


@pytest.mark.parametrize("trained", ["self_attn.in_proj_weight", "linear1.weight", "norm2.bias"])
def test_encoder_layer_in_evaluation_mode_with_one_trained_parameter(trained):
    """torch would run the whole layer as one fused kernel, which no rule sees."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64).eval()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == trained)
    check(layer, random(3, 5, 8))


def test_encoder_and_decoder():
    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.Transformer(8, 2, 2, 1, 12, dropout=0, batch_first=True, dtype=torch.float64)

        def forward(self, source, target, padding):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
            padding = torch.zeros(padding.shape).double().masked_fill(padding, -torch.inf)
            return self.transformer(
                source,
                target,
                tgt_mask=mask,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )

    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    check(Translation(), (random(3, 6, 8), random(3, 4, 8), padding))


def test_unbatched_input_is_refused():
    with pytest.raises(UnsupportedModel, match="without batch dimension"):
        OnePass(Attending(attention(batch_first=True))).forward(random(5, 8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    """`nn.TransformerEncoder` makes them in evaluation mode, where sequences are padded."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    inputs = {"src": random(2, 3, 8), "src_key_padding_mask": padding}
    with pytest.raises(UnsupportedModel, match="enable_nested_tensor=False"):
        OnePass(encoder).forward(inputs)
    plain = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    check(plain, inputs)


@settings(max_examples=12, deadline=None)
@given(
    heads=st.integers(1, 3),
    head_size=st.integers(1, 5),
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    different=st.integers(1, 3),
    options=st.fixed_dictionaries(
        dict.fromkeys(("bias", "batch_first", "add_bias_kv", "add_zero_attn"), st.booleans())
    ),
    seed=st.integers(0, 1000),
)
def test_any_shape(heads, head_size, shape, different, options, seed):
    torch.manual_seed(seed)
    (records, targets, sources), size = shape, heads * head_size
    inputs = (random(records, targets, size), random(records, sources, size), random(records, sources, size))[
        :different
    ]
    check(Attending(attention(size, heads, **options)), inputs)
