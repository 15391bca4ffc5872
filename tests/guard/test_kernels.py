"""The kernels of the one-pass engine, each against ordinary backward passes of single records in float64.

Every case names the kernel that it is for, so that none stops being tested when the choice of kernels changes.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.gradients.convolution import ConvolutionUse
from apportion.curator.gradients.linear import LinearUse
from apportion.curator.gradients.one_pass import InputOverwritten, OnePass
from apportion.curator.gradients.recurrent_layers import TimeProducts
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.tree import call_arguments, map_tensors
from apportion.releases import FLOAT32_HEADROOM, ClippedSum

RECORDS = 4


class First(nn.Module):
    """The first result of a layer that returns several."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return self.layer(*inputs)[0]


class Packed(nn.Module):
    """A recurrent layer on sequences of different lengths."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, sequence, lengths):
        packed = pack_padded_sequence(sequence, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=sequence.shape[1])[0]


class OwnRule(nn.Module):
    """A layer that the engine has no rule for, behind one that it has."""

    def __init__(self):
        super().__init__()
        self.before, self.scale = nn.Linear(3, 3), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.before(x) * self.scale.exp()


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


class Twice(nn.Module):
    """The same layer at two depths, on different inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


def numbers(*shape):
    return lambda: torch.randn(RECORDS, *shape)


def tokens(*shape):
    """Few words, so that records repeat them, and use the first one, which is the padding where there is one."""
    return lambda: torch.randint(0, 4, (RECORDS, *shape))


def sequences():
    return torch.randn(RECORDS, 5, 3), torch.tensor([5, 2, 4, 1])


CASES = {
    "linear": (lambda: nn.Linear(5, 4), numbers(5), "product of norms"),
    "linear over positions": (lambda: nn.Linear(3, 2), numbers(6, 3), "materialised"),
    "linear over two dimensions": (lambda: nn.Linear(3, 2), numbers(2, 3, 3), "materialised"),
    "linear over few positions": (lambda: nn.Linear(12, 12), numbers(3, 12), "Gram"),
    "linear of few features": (lambda: nn.Linear(2, 9), numbers(2), "product of norms"),
    "linear of few features over positions": (lambda: nn.Linear(2, 9), numbers(6, 2), "materialised"),
    "linear of few features over few positions": (lambda: nn.Linear(12, 48), numbers(3, 12), "Gram"),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), numbers(2, 7, 6), "patches"),
    "wide convolution": (lambda: nn.Conv2d(6, 8, 3, stride=(1, 2)), numbers(6, 4, 5), "patches"),
    "convolution of few pixels": (lambda: nn.Conv2d(40, 40, 3, stride=2, padding=1), numbers(40, 3, 3), "pixel Gram"),
    "dilated convolution": (lambda: nn.Conv1d(2, 3, 3, dilation=2, padding=2), numbers(2, 9), "patches"),
    "convolution in space": (lambda: nn.Conv3d(1, 2, (2, 3, 2), padding=1), numbers(1, 3, 4, 3), "patches"),
    "convolution in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), numbers(4, 5, 5), "patches"),
    "convolution by channel": (lambda: nn.Conv2d(3, 6, 3, groups=3, padding="same"), numbers(3, 4, 4), "patches"),
    "circular convolution": (lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"), numbers(2, 6), "patches"),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 3, 3, padding=1), numbers(3, 5, 5), "patches"),
    "transposed convolution with stride": (
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2),
        numbers(4, 3, 3),
        "patches",
    ),
    "embedding": (lambda: nn.Embedding(5, 3), tokens(6), "equal tokens added"),
    "embedding with padding": (lambda: nn.Embedding(5, 3, padding_idx=0), tokens(2, 3), "equal tokens added"),
    "bag": (lambda: nn.EmbeddingBag(5, 3, mode="sum"), tokens(6), "equal tokens added"),
    "bag with padding": (lambda: nn.EmbeddingBag(5, 3, mode="mean", padding_idx=0), tokens(6), "equal tokens added"),
    "layer norm": (lambda: nn.LayerNorm(4), numbers(3, 4), "materialised"),
    "root mean square norm": (lambda: nn.RMSNorm((2, 4)), numbers(3, 2, 4), "materialised"),
    "group norm": (lambda: nn.GroupNorm(2, 4), numbers(4, 3, 3), "materialised"),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), numbers(3, 4, 4), "materialised"),
    "recurrent": (lambda: First(nn.RNN(3, 4, batch_first=True)), numbers(6, 3), "materialised"),
    "LSTM": (lambda: First(nn.LSTM(3, 4, batch_first=True)), numbers(6, 3), "materialised"),
    "LSTM of few steps": (lambda: First(nn.LSTM(12, 12, batch_first=True)), numbers(2, 12), "Gram"),
    "LSTM, two ways, projected": (
        lambda: First(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, proj_size=2)),
        numbers(5, 3),
        "materialised",
    ),
    "GRU": (lambda: First(nn.GRU(3, 4, batch_first=True)), numbers(6, 3), "materialised"),
    "GRU of one step": (lambda: First(nn.GRU(3, 4, batch_first=True)), numbers(1, 3), "product of norms"),
    "GRU, two ways, on sequences of different lengths": (
        lambda: Packed(nn.GRU(3, 4, batch_first=True, bidirectional=True)),
        sequences,
        "materialised",
    ),
    "attention to oneself": (
        lambda: First(nn.MultiheadAttention(4, 2, batch_first=True)),
        lambda: (torch.randn(RECORDS, 6, 4),) * 3,
        "materialised",
    ),
    "attention to a memory": (
        lambda: First(nn.MultiheadAttention(4, 2, batch_first=True)),
        lambda: tuple(torch.randn(3, RECORDS, 6, 4)),
        "materialised",
    ),
    "a layer without a rule": (OwnRule, numbers(3), "materialised"),
    "a layer that is not used": (Unused, numbers(3), "not used"),
    "a layer that is used twice": (Twice, numbers(4), "rows of several uses added"),
}


def loss_of(output):
    """Different for every record and every output."""
    return (
        output.sin() * torch.linspace(0.5, 2.0, output[0].numel(), dtype=output.dtype).reshape(output[0].shape)
    ).sum()


def built(name):
    torch.manual_seed(5)
    make_model, make_inputs, kernel = CASES[name]
    inputs = map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, make_inputs())
    return make_model().double(), inputs, kernel


def single_records(model, inputs):
    """The gradients of every record by itself, (b, *shape) by name."""
    found = []
    for i in range(RECORDS):
        model.zero_grad(set_to_none=True)
        positional, named = call_arguments(map_tensors(lambda tensor, i=i: tensor[i : i + 1], inputs))
        loss_of(model(*positional, **named)).backward()
        found.append({name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()})
    model.zero_grad(set_to_none=True)
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def one_pass(engine, inputs, views=1):
    loss_of(engine.forward(inputs, views)).backward()
    return engine.gradients()


def compare(gradients, rows, tolerance=1e-9):
    """Norms, and sums with other weights for every parameter: what clipping uses."""
    norms = gradients.squared_norms()
    assert list(norms) == list(rows)
    weights = {name: torch.linspace(0.1, 1.0, len(row)).double().roll(n) for n, (name, row) in enumerate(rows.items())}
    sums = gradients.weighted_sums(weights)
    for name, row in rows.items():
        expected = row.flatten(1).square().sum(1)
        torch.testing.assert_close(norms[name], expected, rtol=tolerance, atol=tolerance * float(expected.max()))
        total = torch.tensordot(weights[name], row, 1)
        torch.testing.assert_close(sums[name], total, rtol=tolerance, atol=tolerance * float(total.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_norms_and_weighted_sums_are_those_of_single_records(name):
    model, inputs, kernel = built(name)
    gradients = one_pass(OnePass(model), inputs)
    assert kernel in gradients.kernels().values(), "the case does not run the kernel that it is for"
    compare(gradients, single_records(model, inputs))


@pytest.mark.parametrize("engine", [OnePass, lambda model: ReferenceGradients(model, "loop")], ids=["one-pass", "loop"])
@pytest.mark.parametrize("name", CASES)
def test_views_of_a_record_are_added_before_anything_is_squared(name, engine):
    model, inputs, _ = built(name)
    alone = single_records(model, inputs)
    rows = {name: row.unflatten(0, (2, 2)).sum(1) for name, row in alone.items()}
    gradients = as_gradients(one_pass(engine(model), inputs, views=2))
    assert len(gradients) == 2
    compare(gradients, rows)
    for name, row in rows.items():
        torch.testing.assert_close(gradients.rows(name, slice(1, 2)), row[1:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("places", ["image", "image and model"])
@pytest.mark.parametrize("mode", ["one-pass", "one-pass, channels last"])
def test_the_memory_layout_of_images_changes_nothing(groups, places, mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, groups=groups), nn.Tanh(), nn.Conv2d(6, 3, 2, groups=groups)).double()
    images = torch.randn(RECORDS, 3, 6, 6).double()
    rows = single_records(model, images)
    if places == "image and model":
        model = model.to(memory_format=torch.channels_last)
    compare(one_pass(OnePass(model, mode), images.contiguous(memory_format=torch.channels_last)), rows)


def test_repeated_tokens_are_added_before_they_are_squared():
    """One word four times has the gradient 4·β, of norm 4·‖β‖, not 2·‖β‖."""
    table = nn.Embedding(5, 3).double()
    engine = OnePass(table)
    engine.forward(torch.tensor([[2, 2, 2, 2], [0, 1, 2, 3]])).sum().backward()
    norms = engine.gradients().squared_norms()["weight"]
    torch.testing.assert_close(norms, torch.tensor([16.0, 4.0]).double() * 3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_weight_that_is_used_twice_has_the_norm_of_the_sum(sign):
    """The gradients of the two uses point the same way, or cancel: the norms are 2·‖g‖ and 0, never √2·‖g‖."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return self.layer(x) + sign * self.layer(x.clone())

    model, inputs = Both().double(), torch.randn(RECORDS, 3).double()
    engine = OnePass(model)
    engine.forward(inputs).sum().backward()
    gradients = engine.gradients()
    once = 2 * inputs.square().sum(1)
    torch.testing.assert_close(gradients.squared_norms()["layer.weight"], (1 + sign) ** 2 * once)
    total = gradients.weighted_sums({"layer.weight": torch.ones(RECORDS).double()})["layer.weight"]
    torch.testing.assert_close(total, (1 + sign) * inputs.sum(0).expand(2, 3))


# Rounding. -------------------------------------------------------------------------------------------------------------------


def cancelling(records, positions, size, generator):
    """Gradients (b, T, size) in float32 whose sum over T is small: 10⁻⁵ to 10⁻² of what is added up."""
    first = torch.randn(records, positions // 2, size, generator=generator)
    remains = 10 ** (-5 + 3 * torch.rand(records, 1, 1, generator=generator))
    return torch.cat([first, -first * (1 + remains)], 1)


def of_linear(gradients, inputs):
    use = LinearUse({"weight": "w"}, inputs)
    use.receive(gradients)
    return use.squared_norms()["w"], use.kernel


def of_recurrent(gradients, inputs):
    products = TimeProducts({"own": "w"}, gradients.transpose(0, 1), {"own": inputs.transpose(0, 1)}, [])
    return dict(products.squared_norms())["w"], next(iter(products.kernels()))


def of_convolution(gradients, inputs):
    """2×2 positions of a kernel of size 2 on 3×3 equal pixels: every patch is the same."""
    module = nn.Conv2d(inputs.shape[2], gradients.shape[2], 2, bias=False)
    pixels = inputs[:, 0, :, None, None].expand(-1, -1, 3, 3).contiguous()
    use = ConvolutionUse(module, {"weight": "w"}, pixels)
    use.receive(gradients.mT.unflatten(2, (2, 2)).contiguous())
    return use.squared_norms()["w"] / 4, use.kernel


@pytest.mark.usual_pieces  # rounding is worst in long sums
@pytest.mark.parametrize(
    ("norms_of", "kernel"), [(of_linear, "Gram"), (of_recurrent, "Gram"), (of_convolution, "pixel Gram")]
)
def test_a_norm_is_never_too_small_where_terms_cancel(norms_of, kernel):
    """With the same input at all positions g = (Σ_t β_t) ⊗ a. Too small a norm would clip too little, too large a one only more."""
    generator = torch.Generator().manual_seed(0)
    gradients = cancelling(500, 4, 96, generator)
    inputs = torch.randn(500, 1, 96, generator=generator).expand(-1, 4, -1).contiguous()
    found, used = norms_of(gradients, inputs)
    assert used == kernel
    truth = inputs[:, 0].double().square().sum(1) * gradients.double().sum(1).square().sum(1)
    added_up = (inputs.double().norm(dim=2) * gradients.double().norm(dim=2)).sum(1).square()
    assert (truth < 1e-9 * added_up).sum() > 50, "too little cancels"
    assert (found.double() >= truth * (1 - FLOAT32_HEADROOM) ** 2).all()
    assert (found.double() <= truth + 1e-4 * added_up).all()


@pytest.mark.usual_pieces
@pytest.mark.parametrize("layer", ["linear", "convolution"])
def test_views_that_cancel_have_no_norm_that_is_too_small(layer):
    """Two views with nearly opposite gradients: their sum is small, and is added to those of others in another order."""
    generator = torch.Generator().manual_seed(0)
    gradients = cancelling(300, 2, 96, generator).flatten(0, 1)
    inputs = torch.randn(300, 1, 96, generator=generator).expand(-1, 2, -1).flatten(0, 1)
    truth = inputs[::2].double().square().sum(1) * gradients.unflatten(0, (-1, 2)).double().sum(1).square().sum(1)
    if layer == "linear":
        use = LinearUse({"weight": "w"}, inputs)
        use.receive(gradients, views=2)
    else:
        use = ConvolutionUse(nn.Conv2d(96, 96, 1, bias=False), {"weight": "w"}, inputs[:, :, None, None])
        use.receive(gradients[:, :, None, None], views=2)
    clipped = torch.full((300,), 1e-3).double() / use.squared_norms()["w"].sqrt()
    alone = [use.weighted_sums({"w": torch.where(torch.arange(300) == i, clipped, 0.0)})["w"] for i in range(0, 300, 7)]
    norms = torch.stack([one.detach().double().norm() for one in alone])
    assert (use.squared_norms()["w"] >= truth * (1 - FLOAT32_HEADROOM) ** 2).all()
    assert float(norms.max()) <= 1e-3 * (1 + FLOAT32_HEADROOM)


@pytest.mark.parametrize("name", CASES)
def test_a_clipped_record_is_within_the_declared_headroom(name):
    """‖clipped record‖ ≤ C·(1 + headroom) in float32, measured in float64 on the sums of single records."""
    model, inputs, _ = built(name)
    inputs = map_tensors(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, inputs)
    engine = OnePass(model.float())
    for i in range(RECORDS):
        record = map_tensors(lambda tensor, i=i: tensor[i : i + 1], inputs)
        sums = clip_and_sum(one_pass(engine, record), [ClippedSum(1e-3)])
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in sums.values()))
        assert norm == pytest.approx(1e-3, rel=FLOAT32_HEADROOM)


# Bad records, and what lies between two micro-batches. -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [name for name in CASES if "embedding" not in name and "bag" not in name])
def test_a_record_that_is_not_finite_leaves_the_others_alone(name, bad):
    model, inputs, _ = built(name)
    names = [key for key, _ in model.named_parameters()]
    releases = [ClippedSum(0.1, (key,), 1 / len(names)) for key in names]
    engine = OnePass(model)

    def sums(records):
        return clip_and_sum(one_pass(engine, map_tensors(lambda tensor: tensor[records], inputs)), releases)

    expected = sums(slice(1, None))
    leaf = inputs if isinstance(inputs, torch.Tensor) else inputs[0]
    leaf[0].flatten()[0] = bad
    for key, value in sums(slice(None)).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12)
    # a view that is not finite takes its record with it, and no other
    good = map_tensors(lambda tensor: tensor[2:], inputs)
    expected = clip_and_sum(one_pass(engine, good, views=2), releases)
    for key, value in clip_and_sum(one_pass(engine, inputs, views=2), releases).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12)


def test_nothing_of_a_micro_batch_is_left_for_the_next():
    model, inputs, _ = built("linear over positions")
    engine = OnePass(model)
    one_pass(engine, inputs.flip(0) * 3)
    compare(one_pass(engine, inputs), single_records(model, inputs))
    engine.forward(inputs.flip(0) * 3).sum().backward()  # given up before its gradients were fetched
    compare(one_pass(engine, inputs), single_records(model, inputs))


def test_a_late_backward_pass_adds_nothing_to_the_next_micro_batch():
    model, inputs, _ = built("linear over positions")
    engine = OnePass(model)
    late = engine.forward(inputs.flip(0) * 3).sum()
    outputs = engine.forward(inputs)
    late.backward()
    outputs.sum().backward()
    gradients = engine.gradients()
    weights = torch.ones(RECORDS, dtype=torch.float64)
    sums = gradients.weighted_sums(dict.fromkeys(dict(model.named_parameters()), weights))
    model.zero_grad()
    model(inputs).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(sums[name], parameter.grad, rtol=1e-9, atol=1e-9)


class Shifted(nn.Module):
    """A layer on inputs shifted by a buffer, which the forward pass writes over."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        shifted = x - self.shift
        self.shift = self.shift + x.detach().mean(0)
        return self.layer(shifted)


def test_weights_and_buffers_are_followed():
    torch.manual_seed(0)
    model, inputs = Shifted().double(), torch.randn(RECORDS, 3).double()
    engine = OnePass(model)
    for _ in range(3):
        for _ in range(2):  # the second time with a buffer that a record wrote over
            found = one_pass(engine, inputs)
            shift = model.shift.clone()
            single = nn.Linear(3, 2).double()
            single.load_state_dict(model.layer.state_dict())
            compare(found, {f"layer.{key}": row for key, row in single_records(single, inputs - shift).items()})
            assert torch.equal(model.shift, shift)
        with torch.no_grad():
            model.layer.weight.mul_(2)
            model.shift.add_(1)


class Overwriting(nn.Module):
    """The input of the second layer is overwritten after its use. Ordinary backward passes notice; weights without gradient hide it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x)) + 0  # so that tanh keeps a result of its own
        output = self.second(hidden)
        hidden.mul_(5)
        return output


def test_an_input_that_is_written_over_is_noticed():
    torch.manual_seed(0)
    model, inputs = Overwriting().double(), torch.randn(RECORDS, 3).double()
    engine = OnePass(model)
    with pytest.raises(InputOverwritten, match="second"):
        one_pass(engine, inputs)
    copying = one_pass(OnePass(model, "one-pass, copying inputs"), inputs)
    first, second = model.first, model.second
    plain = nn.Sequential(first, nn.Tanh(), second)
    rows = single_records(plain, inputs)
    compare(copying, {f"{'first' if key[0] == '0' else 'second'}.{key[2:]}": row for key, row in rows.items()})


def test_a_parameter_that_no_record_used_has_a_gradient_of_zero():
    model, inputs, _ = built("a layer that is not used")
    releases = [ClippedSum(0.1, (name,), 0.25) for name, _ in model.named_parameters()]
    sums = clip_and_sum(one_pass(OnePass(model), inputs), releases)
    assert not sums["unused.weight"].any()
    assert not sums["unused.bias"].any()
    assert float(sums["used.weight"].norm()) > 0.05
