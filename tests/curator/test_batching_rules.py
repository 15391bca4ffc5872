"""`torch.func.vmap` against single records: an operation's gradient must not depend on where a record stands, or beside whom.

Every record has its own copy θ_i of a parameter, as in `fallback.py` and `reference.py`, and is compared with itself alone in a fresh
graph: output, gradient of θ_i and gradient of the inputs, in float64 to 1e-9, in front, behind, between others, and repeated.
"""

from __future__ import annotations

import itertools
import sys
import types
import unittest
from contextlib import nullcontext

import pytest
import torch
from batching_cases import FAMILIES, Case, index, normal, whole
from torch import nn
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_leaves

from apportion.curator.gradients.batching_rules import WRONG_RULES, find_wrong_rule, guard_batching_rules
from apportion.curator.gradients.engine import build_engine
from apportion.errors import UnsupportedModel

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # a warning must not be taken for an operation that vmap has no rule for

# Records of a pool, by number: micro-batches of one, two, three and seven; a record in front, behind, between, repeated.
ORDERS = ((0,), (2,), (0, 1), (1, 0), (2, 0, 1), (1, 1, 0), (3, 0, 1, 2, 0, 3, 1))
POOL = 4


class Wrong(AssertionError):
    """A record has not what it has alone."""


def differentiable(value):
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def tensors(outputs):
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def weighted(outputs, weights):
    """A loss that looks at every number of the outputs, which may be complex."""
    parts = [
        ((output.real if output.is_complex() else output) * weight).sum()
        for output, weight in zip(outputs, weights, strict=True)
        if weight is not None and output.requires_grad
    ]
    return torch.stack(parts).sum() if parts else None


def draw_weights(outputs):
    return [torch.randn(output.shape, dtype=torch.float64) if differentiable(output) else None for output in outputs]


def gradient_of(value):
    gradient = torch.zeros_like(value) if value.grad is None else value.grad
    return gradient.to_dense() if gradient.is_sparse else gradient


def alone(function, arguments, own):
    """One record by itself: outputs, weights of a loss, and the gradients of the arguments in `own`."""
    given = [
        value.detach().clone().requires_grad_(place in own and differentiable(value))
        if isinstance(value, torch.Tensor)
        else value
        for place, value in enumerate(arguments)
    ]
    outputs = tensors(function(*given))
    weights = draw_weights(outputs)
    loss = weighted(outputs, weights)
    if loss is not None:
        loss.backward()
    return outputs, weights, {place: gradient_of(given[place]) for place in own if differentiable(given[place])}


def together(function, records, own, weights, guard):
    """All records under vmap: outputs and gradients with a row for each. The first argument is the parameter, expanded."""
    batched = {}
    for place in own:
        if place == 0:
            copies = records[0][0].detach()
            rows = copies.expand(len(records), *copies.shape).detach()
        else:
            rows = torch.stack([record[place] for record in records]).detach()
        batched[place] = rows.requires_grad_(differentiable(rows))

    def one(mine):
        arguments = [mine.get(place, value) for place, value in enumerate(records[0])]
        return tensors(function(*arguments))

    with guard_batching_rules() if guard else nullcontext():
        outputs = vmap(one, randomness="different")(batched)
    for row, expected in enumerate(weights):
        for output, weight in zip(outputs, expected, strict=True):
            if weight is not None and output[row].shape != weight.shape:
                raise Wrong(f"output of record {row}: {tuple(output[row].shape)} instead of {tuple(weight.shape)}")
    losses = [weighted([output[row] for output in outputs], weights[row]) for row in range(len(records))]
    losses = [loss for loss in losses if loss is not None]
    if losses:
        torch.stack(losses).sum().backward()
    return outputs, {place: gradient_of(rows) for place, rows in batched.items() if differentiable(rows)}


def require_same(what, found, expected):
    if found.shape != expected.shape:
        raise Wrong(f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not torch.allclose(found.detach(), expected.detach(), rtol=1e-9, atol=1e-10, equal_nan=True):
        raise Wrong(f"{what}: {found.detach().tolist()} instead of {expected.detach().tolist()}")


def compare(function, pool, order, own, guard=True):
    """Raise `Wrong` if a record has not what it has alone, or whatever vmap raises."""
    torch.manual_seed(5)
    records = [pool[number] for number in order]
    shared = [
        [pool[0][place] if place not in own else value for place, value in enumerate(record)] for record in records
    ]
    single = [alone(function, record, own) for record in shared]
    outputs, gradients = together(function, shared, own, [weights for _, weights, _ in single], guard)
    for row, (expected, _, own_gradients) in enumerate(single):
        for number, (found, right) in enumerate(zip(outputs, expected, strict=True)):
            require_same(f"output {number} of record {row} of {len(order)}", found[row], right)
        for place, right in own_gradients.items():
            if not right.isfinite().all() and not gradients[place][row].isfinite().all():
                continue  # such a record contributes nothing, whichever of its numbers are not finite
            require_same(f"gradient of argument {place} of record {row} of {len(order)}", gradients[place][row], right)


def drawn(case, seed):
    """Records with the parameter in common."""
    torch.manual_seed(seed)
    pool = [case.draw() for _ in range(POOL)]
    return [(pool[0][0], *record[1:]) for record in pool]


def choices(pool):
    """Which arguments are a record's own; the others, its neighbours have too, as constants of a module."""
    places = [place for place, value in enumerate(pool[0]) if isinstance(value, torch.Tensor)]
    yield places
    for shared in places if len(places) > 1 else ():
        yield [place for place in places if place != shared]
    for lonely in places if len(places) > 2 else ():
        yield [lonely]


def check(case, seed):
    """A sentence for every way in which the case comes out wrong."""
    pool = drawn(case, seed)
    faults = []
    for number, own in enumerate(choices(pool)):
        for order in ORDERS if number == 0 else ((2, 0, 1),):
            try:
                compare(case.function, pool, order, own)
            except Wrong as wrong:
                faults.append(f"{case.name}, own arguments {own}, records {order}: {wrong}")
            except Exception as error:  # vmap says that it has no rule, for which there are other engines
                if number == 0 and not case.raises:
                    faults.append(f"{case.name} raises {error!r}")
    return faults


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_has_the_gradient_it_has_alone_wherever_it_stands(family):
    faults = [fault for case in FAMILIES[family] for fault in check(case, seed=0)]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_also_for_many_other_records(family):
    faults = [fault for case, seed in itertools.product(FAMILIES[family], range(1, 15)) for fault in check(case, seed)]
    assert not faults, "\n".join(faults)


# The table


def randoms(x):
    return x + torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def in_chunks(w, x, t):
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    return F.linear_cross_entropy(x, w, t, options=LinearCrossEntropyOptions(batch_chunk_size=2))


# For every entry of the table, calls in which it shows: what is wrong, records, and which arguments are a record's own.
SHOWN = {
    "embedding with padding_idx": (lambda w, i: F.embedding(i, w, 1), lambda: (normal(3, 2), index(3, 9)), [0, 1]),
    "the operator embedding with padding_idx": (
        lambda w, i: torch.embedding(w, i, 1),
        lambda: (normal(3, 2), index(3, 9)),
        [0, 1],
    ),
    "roll of a scalar": (lambda w, x: torch.roll(w * x, 1), lambda: (normal(), normal()), [0, 1]),
    "select_scatter": (lambda w, x: torch.select_scatter(x, w, 0, 1), lambda: (normal(3), normal(4, 3)), [0, 1]),
    "index_fill with a value that records do not share and an input that they share": (
        lambda w, x, i, s: x.index_fill(0, i, w * s),
        lambda: (normal(), normal(4), index(4, 1), normal()),
        [0, 3],
    ),
    "max of everything": (lambda x: x.max(), lambda: (whole(9),), [0]),
    "min of everything": (lambda x: x.min(), lambda: (whole(9),), [0]),
    "median of everything": (lambda x: x.median(), lambda: (whole(9),), [0]),
    "nanmedian of everything": (lambda x: x.nanmedian(), lambda: (whole(9),), [0]),
    "squeeze_ without a dimension": (lambda x: (2 * x).squeeze_(), lambda: (normal(3, 1),), [0]),
    "as_strided": (
        lambda w, x: x * w.as_strided((2, 2), (1, 2)),
        lambda: (normal(4, 3), normal()),
        [0, 1],
    ),
    "as_strided_": (lambda x: (2 * x).as_strided_((2, 2), (1, 2)), lambda: (normal(4, 3),), [0]),
    "set_": (
        lambda w, x: (2 * w) * x.detach().clone().set_(torch.ones(3, dtype=torch.float64)),
        lambda: (normal(3), normal(3)),
        [0, 1],
    ),
    "resize_": (lambda w, x: w * x.detach().clone().resize_(2), lambda: (normal(2), normal(4)), [0, 1]),
    "resize_as_": (
        lambda w, x: w * x.detach().clone().resize_as_(torch.zeros(1)),
        lambda: (normal(4), normal(4)),
        [0, 1],
    ),
    "addbmm_ of a tensor that grows by it": (
        lambda w, x, y: (2 * w).addbmm_(x, y),
        lambda: (normal(1), normal(2, 4, 3), normal(2, 3, 2)),
        [0, 1, 2],
    ),
    "linear_cross_entropy with options": (in_chunks, lambda: (normal(5, 3), normal(4, 3), index(5, 4)), [0, 1, 2]),
    "Tensor.requires_grad": (lambda w, x: w * x if w.requires_grad else x, lambda: (normal(3), normal(3)), [0, 1]),
    "Tensor.grad_fn": (lambda w, x: w * x if (2 * w).grad_fn else x, lambda: (normal(3), normal(3)), [0, 1]),
    "random numbers from generator=": (lambda w, x: w * randoms(x), lambda: (normal(3), normal(3)), [0, 1]),
}


def outcome(operation, guard):
    """What the entry's example does: "right", "wrong" or what is raised."""
    function, draw, own = SHOWN[operation]
    pool = drawn(Case(operation, function, draw), seed=0)
    try:
        for order in ORDERS:
            compare(function, pool, order, own, guard)
    except Wrong:
        return "wrong"
    except Exception as error:
        return error
    return "right"


def test_every_entry_of_the_table_is_shown():
    assert [rule.operation for rule in WRONG_RULES] == list(SHOWN)


@pytest.mark.parametrize("rule", WRONG_RULES, ids=lambda rule: rule.operation)
def test_what_the_table_says_is_so(rule):
    assert outcome(rule.operation, guard=False) == "wrong", (
        f"torch {torch.__version__} mended {rule.operation}: remove it from the table"
    )


@pytest.mark.parametrize("rule", WRONG_RULES, ids=lambda rule: rule.operation)
def test_the_guard_computes_it_in_another_way_or_refuses(rule):
    found = outcome(rule.operation, guard=True)
    if rule.instead is None:
        assert isinstance(found, UnsupportedModel)
        assert rule.operation in str(found)
        assert rule.fault in str(found)
    else:
        assert found == "right"


def test_of_a_call_it_can_be_told_whether_it_is_in_the_table():
    x, i, w = normal(3), index(3, 2), normal(3, 2)
    assert find_wrong_rule(F.embedding, (i, w), {"padding_idx": 0}).operation == "embedding with padding_idx"
    assert find_wrong_rule(F.embedding, (i, w)) is None
    assert find_wrong_rule(torch.Tensor.max, (x,)).operation == "max of everything"
    assert find_wrong_rule(torch.Tensor.max, (x, 0)) is None
    assert find_wrong_rule(torch.max, (x,), {"dim": 0}) is None
    assert find_wrong_rule(torch.max, (i,)) is None  # whole numbers have no gradient to share
    assert (
        find_wrong_rule(torch.rand, (3,), {"generator": torch.Generator()}).operation
        == "random numbers from generator="
    )
    assert find_wrong_rule(torch.add, (x, x), {"alpha": 2}) is None


def test_a_scripted_function_does_not_get_past_the_guard():
    @torch.jit.script
    def scripted(weight: torch.Tensor, indices: torch.Tensor):
        return torch.embedding(weight, indices, 1)

    case = Case("scripted", scripted, lambda: (normal(3, 2), index(3, 9)))
    with pytest.raises(Wrong):
        compare(scripted, drawn(case, 0), (0, 1, 2), [0, 1], guard=False)
    with pytest.raises(RuntimeError, match="TorchScript"):  # which drops the sentence
        compare(scripted, drawn(case, 0), (0, 1, 2), [0, 1])


class RolledBack(torch.autograd.Function):
    """With a wrong rule in its backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 1.0

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        return torch.roll(gradient, 1)


@pytest.mark.parametrize("guarded", [False, True])
def test_the_backward_pass_of_a_function_is_right_within_the_guard(guarded):
    copies = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    with guard_batching_rules():
        outputs = vmap(RolledBack.apply)(copies)
    with guard_batching_rules() if guarded else nullcontext():
        (outputs * weights).sum().backward()
    assert torch.equal(copies.grad, weights) == guarded


# Modules


class Part(nn.Module):
    """A module without a rule of its own. Its function is one of single records."""

    def __init__(self, function, weight):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(weight.detach().clone())

    def forward(self, *inputs):
        return torch.stack([self.function(self.weight, *record) for record in zip(*inputs, strict=True)])


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *inputs):
        return self.part(*inputs)


OF_MODULES = [
    case
    for family, wanted in {
        "embeddings": ("embedding {'padding_idx': 1}", "embedding {'padding_idx': -1}", "torch.embedding"),
        "layers": ("linear", "prelu", "one parameter twice", "group_norm"),
        "indexing": ("index_fill 0", "select_scatter 0", "masked_fill", "x[i]"),
        "writing": ("x[1] = v", "squeeze_", "index_add_"),
        "reductions": ("maximum, whole",),
        "of one's own": ("if x.requires_grad", "autograd.Function with a generated rule", "vmap within"),
    }.items()
    for case in FAMILIES[family]
    if case.name in wanted
]


@pytest.mark.parametrize("mode", ["vmap", "one-pass", "one-pass, copying inputs"])
@pytest.mark.parametrize("case", OF_MODULES, ids=lambda case: case.name)
def test_engines_under_the_guard_give_the_gradients_of_single_records(case, mode):
    pool = drawn(case, seed=3)
    model = Model(Part(case.function, pool[0][0]))
    for order in ORDERS:
        records = [pool[number][1:] for number in order]
        engine = build_engine(model, mode)
        with guard_batching_rules():
            outputs = engine.forward(tuple(torch.stack(column) for column in zip(*records, strict=True)))
        torch.manual_seed(6)
        weights = torch.randn(outputs.shape, dtype=torch.float64)
        (outputs * weights).sum().backward()
        gradients = engine.gradients()
        rows = gradients["part.weight"] if mode == "vmap" else gradients.rows("part.weight", slice(0, len(order)))
        for row, record in enumerate(records):
            model.zero_grad()
            (model(*(value.unsqueeze(0) for value in record))[0] * weights[row]).sum().backward()
            require_same(f"{case.name}, record {row} of {order}", rows[row], model.part.weight.grad)


def test_a_backward_hook_of_a_module_is_not_left_out_silently():
    linear = nn.Linear(3, 2).double()
    linear.register_full_backward_hook(lambda module, inputs, outputs: (-inputs[0],))
    case = Case("hook", lambda w, x: linear((w * x).unsqueeze(0)), lambda: (normal(3), normal(3)))
    pool = drawn(case, 0)
    with pytest.raises(Wrong):
        compare(case.function, pool, (0, 1), [0, 1], guard=False)
    with pytest.raises(RuntimeError, match="setup_context"):
        compare(case.function, pool, (0, 1), [0, 1])


@pytest.mark.parametrize("layer", [nn.MultiheadAttention, nn.TransformerEncoderLayer])
def test_attention_in_evaluation_takes_no_way_without_gradients(layer):
    torch.manual_seed(0)
    module = layer(4, 2, batch_first=True).double().eval()
    weight = dict(module.named_parameters())["in_proj_weight" if layer is nn.MultiheadAttention else "linear1.weight"]
    name = next(name for name, parameter in module.named_parameters() if parameter is weight)

    def function(w, x):
        arguments = (x, x, x) if layer is nn.MultiheadAttention else (x,)
        return torch.func.functional_call(module, {name: w}, tuple(value.unsqueeze(0) for value in arguments))

    case = Case(layer.__name__, function, lambda: (weight.detach(), normal(3, 4)))
    for order in ORDERS:
        compare(function, drawn(case, 0), order, [0, 1])


# Random operations: what a record draws is its own, and does not depend on what its neighbours are


@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: F.dropout(w * x),
        lambda w, x: F.alpha_dropout(w * x, training=True),
        lambda w, x: F.dropout1d((w * x).view(1, 9, 1)),
        lambda w, x: F.dropout2d((w * x).view(1, 9, 1, 1)),
        lambda w, x: F.feature_alpha_dropout((w * x).view(1, 9, 1), training=True),
        lambda w, x: F.gumbel_softmax(w * x),
        lambda w, x: w * torch.bernoulli(x.sigmoid()),
        lambda w, x: w * x + torch.randn_like(x),
        lambda w, x: w * x + torch.randn(9),
        lambda w, x: w * x[torch.randperm(9)],
        lambda w, x: F.scaled_dot_product_attention(*[value.view(1, 3, 3) for value in (w * x, x, x)], dropout_p=0.5),
    ],
)
def test_what_a_record_draws_does_not_depend_on_its_neighbours(function):
    torch.manual_seed(0)
    weight, records = normal(9), normal(3, 9)

    def gradients(inputs):
        copies = weight.expand(3, 9).detach().requires_grad_()
        torch.manual_seed(1)
        with guard_batching_rules():
            outputs = vmap(function, randomness="different")(copies, inputs)
        (outputs**2).sum().backward()
        return copies.grad

    together = gradients(records)
    for place in range(3):
        others = normal(3, 9)
        others[place] = records[place]
        torch.testing.assert_close(gradients(others)[place], together[place], rtol=1e-12, atol=0)
    assert (gradients(records[:1].expand(3, 9))[0] != gradients(records[:1].expand(3, 9))[1]).any()


# Everything that torch has samples for


def operations():
    """torch's own list of operations with sample inputs."""
    if "expecttest" not in sys.modules:  # of which torch's helpers need a name
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


# Memory that nobody has written to, and operations that end the process with a segmentation fault under vmap.
_NOT_COMPARED = ("empty", "new_empty", "_scaled_mm", "to_sparse")
_PARTS = 40


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_operation_that_torch_has_samples_for(part, rounded):
    found = [
        outcome
        for operation in operations()[part::_PARTS]
        if not any(name in operation.name for name in _NOT_COMPARED)
        for variant in (operation.op, operation.method_variant, operation.inplace_variant)
        if variant is not None
        for outcome in sampled(operation, variant, rounded)
    ]
    faults = [outcome for outcome in found if outcome != "right"]
    assert not faults, "\n".join(faults)
    assert len(found) > 100


def is_random(operation, function, arguments):
    """Also one that torch's samples wrap in a seed of its own."""
    if "wrapper_set_seed" in getattr(getattr(operation.op, "__code__", None), "co_names", ()):
        return True
    torch.manual_seed(8)
    before = torch.get_rng_state()
    function(*(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in arguments))
    return not torch.equal(before, torch.get_rng_state())


def sampled(operation, variant, rounded, most=3):
    """For every comparison that vmap has a rule for, "right" or what is wrong."""
    in_place = variant is operation.inplace_variant
    draws = []
    for seed in range(POOL):
        torch.manual_seed(seed)
        draws.append(list(itertools.islice(operation.sample_inputs("cpu", torch.float64), most)))
    for samples in zip(*draws, strict=False):
        named = samples[0].kwargs
        pool = [[sample.input, *sample.args] for sample in samples]
        usual = pool[0]
        if any(isinstance(value, torch.Tensor) and value.layout != torch.strided for value in usual):
            continue
        if rounded:
            pool = [[(v / 2).round() if differentiable(v) else v for v in record] for record in pool]
        pool = [
            [
                value if same_kind(value, first) and isinstance(first, torch.Tensor) else first
                for value, first in zip(record, usual, strict=True)
            ]
            for record in pool
            if len(record) == len(usual)
        ]
        if len(pool) < POOL or not any(isinstance(value, torch.Tensor) for value in usual):
            continue

        def function(*arguments, named=named):
            first = arguments[0].clone() if in_place and isinstance(arguments[0], torch.Tensor) else arguments[0]
            return variant(first, *arguments[1:], **named)

        try:
            if is_random(operation, function, pool[0]):
                continue  # these are compared above
        except Exception:  # a sample that is meant for something else
            continue
        for own, order, expanded in itertools.product(choices(pool), ((2, 0, 1), (3,)), (False, True)):
            try:
                if expanded:  # as a parameter, the same of all records
                    compare(function, [(pool[0][0], *record[1:]) for record in pool], order, own)
                else:
                    behind = [(normal(), *record) for record in pool]
                    compare(lambda _, *arguments: function(*arguments), behind, order, [place + 1 for place in own])
            except Wrong as wrong:
                yield f"{operation.name} {[getattr(v, 'shape', v) for v in usual]} {named}, own {own}: {wrong}"
            except Exception:  # vmap has no rule for it
                continue
            yield "right"


def same_kind(value, other):
    return isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.shape == other.shape
