"""Synthetic records, shaped like an example, on which a copy of a model is run, and whether two results agree up to rounding.

No value of a real record is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from apportion.curator.tree import call_model
from apportion.devices import has_float64, seeded_generators
from apportion.errors import ApportionError, InvalidArgument, UnsupportedModel
from apportion.models.check import copy_model

Tree = Any
"""One record, or a batch of them: a tensor, or a tuple, list or dict of these."""
RECORDS = 3
"""In a synthetic batch: two could hide mixing that is symmetric in its pair."""
COMPARED_NUMBERS = 1 << 20
"""Of two tensors, that are compared at a time: memory does not grow with the model."""
Kind = Literal["plain", "tokens", "padded", "kept"]
_RECORD_INTEGERS = ((0, 1, 2), (0, 1, 1), (3, 2, 1), (0, 0, 0))
"""Of integers: the record's number; for models that know fewer words or classes; for lengths, which are not 0 and often fall; only 0."""
_Result = TypeVar("_Result")


def model_device(model: nn.Module) -> torch.device:
    """Where the model is; the CPU if it holds nothing."""
    tensor = next((t for t in (*model.parameters(), *model.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def prepare_model(model: nn.Module) -> nn.Module:
    """A copy in train() mode whose dropout drops nothing, so that its outputs can be compared."""
    if any(is_lazy(tensor) or tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UnsupportedModel(
            "The model has parameters without values, so that it cannot be run; check(model) names them."
        )
    return without_dropout(model)[0].train()


def without_dropout(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy whose dropout drops nothing, and the layers that were changed."""
    subject, silenced = copy_model(model), []
    for name, module in subject.named_modules():
        # nn.Dropout and its kin; nn.MultiheadAttention, nn.LSTM and many layers written by hand
        attribute, kinds = ("p", (int, float)) if isinstance(module, _DropoutNd) else ("dropout", (float,))
        if isinstance(value := vars(module).get(attribute), kinds) and value > 0:
            vars(module)[attribute] = 0.0
            silenced.append(name or "(model)")
    return subject, silenced


def synthetic_batches(
    argument: str,
    example: Tree,
    model: nn.Module,
    draw: Callable[..., torch.Tensor] = torch.randn,
    *,
    kind: Kind = "plain",
) -> Iterator[Tree]:
    """Synthetic batches shaped like `example`, to be tried in turn until one runs.

    Floats are random. The other numbers depend on the kind:

    - plain: booleans are False. Integers are the number of the record, because records that are all zeros would hide mixing; as a model may
      know fewer than three words or classes, they are then cut at 1, then are 3, 2, 1, as a length must not be 0, and at last 0;
    - tokens: integers are random words, among them all that are special to an embedding of the model: padding, the first, the last;
    - padded, kept: records have different lengths as well. Behind its length a record has zeros, and booleans are a mask that is true
      there, or before.
    """
    leaves = tree_leaves(example)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise InvalidArgument(
            argument,
            example,
            "one record must be made of tensors",
            "Pass a tensor, or a tuple, list or dict of tensors",
        )
    device = model_device(model)
    if not has_float64(device.type) and any(leaf.dtype == torch.float64 for leaf in leaves):
        reason = f"the model is on {device}, which has no float64"
        raise InvalidArgument(argument, "tensors in float64", reason, "Pass float32, or move the model to the CPU")
    # An index out of range is an error on the CPU that can be caught, but on a GPU it ends the process.
    for numbers in _RECORD_INTEGERS if device.type == "cpu" else _RECORD_INTEGERS[-1:]:
        leaf_maker = _LeafMaker(kind, draw, torch.tensor(numbers), _known_tokens(model, max(numbers)))
        yield tree_map(lambda leaf, make=leaf_maker: make(leaf).to(device=device, dtype=leaf.dtype, copy=True), example)


class _LeafMaker:
    """Makes the synthetic tensors of one batch, from one stream of random numbers.

    Args:
        own: the integer of each record.
        tokens: integers that every embedding of the model knows.
    """

    def __init__(self, kind: Kind, draw: Callable[..., torch.Tensor], own: torch.Tensor, tokens: torch.Tensor):
        self._kind, self._draw, self._own, self._tokens = kind, draw, own, tokens
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
        """`RECORDS` tensors like `leaf`, stacked."""
        values = self._values(leaf)
        if self._kind not in ("padded", "kept") or not leaf.dim():
            return values
        beyond = _padding_mask(leaf.shape[0]).reshape(RECORDS, leaf.shape[0], *[1] * (leaf.dim() - 1))
        if leaf.dtype == torch.bool:
            return (beyond if self._kind == "padded" else ~beyond).expand(values.shape)
        return values.masked_fill(beyond, 0)

    def _values(self, leaf: torch.Tensor) -> torch.Tensor:
        shape = (RECORDS, *leaf.shape)
        if leaf.is_floating_point() or leaf.is_complex():
            return self._draw(shape, generator=self._generator)
        if leaf.dtype == torch.bool:
            return torch.zeros(shape)
        if leaf.dim() and self._kind != "plain":
            return self._tokens[torch.randint(len(self._tokens), shape, generator=self._generator)]
        return self._own.reshape(RECORDS, *[1] * leaf.dim()).expand(shape)


def _known_tokens(model: nn.Module, highest: int) -> torch.Tensor:
    """Words that every embedding of the model knows, the special ones often; numbers up to `highest` if that is less than two."""
    tables = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    size = min((table.num_embeddings for table in tables), default=highest + 1)
    if highest < 2 or size < 3:
        return torch.arange(min(highest, size - 1) + 1)
    special = {0, 1, size - 1, *(table.padding_idx for table in tables if table.padding_idx is not None)}
    return torch.tensor([*sorted(word for word in special if word < size), size // 3, 2 * size // 3])


def _padding_mask(places: int) -> torch.Tensor:
    """(records, places), true behind the length of each record: two thirds, all and one third of the places, in no order."""
    ends = torch.tensor([max(1, 2 * places // 3), places, max(1, places // 3)])
    return torch.arange(places) >= ends[:, None]


def synthetic_pairs(inputs: Tree, target: Tree, model: nn.Module, kind: Kind = "plain") -> Iterator[tuple[Tree, Tree]]:
    """Batches of inputs with batches of targets, to be tried in turn."""
    for records in synthetic_batches("inputs", inputs, model, kind=kind):
        for answers in synthetic_batches("target", target, model, draw=torch.rand):
            yield records, answers


def other_batch_kinds(inputs: Tree) -> tuple[Kind, ...]:
    """The kinds of batches beside the plain one that differ for records like this one."""
    leaves = tree_leaves(inputs)
    tokens = any(leaf.dim() and not leaf.is_floating_point() and leaf.dtype != torch.bool for leaf in leaves)
    masks = any(leaf.dtype == torch.bool for leaf in leaves)
    kinds: tuple[tuple[Kind, bool], ...] = (("tokens", tokens), ("padded", True), ("kept", masks))
    return tuple(kind for kind, differs in kinds if differs)


def find_runnable(
    function: Callable[[Tree], _Result], candidates: Iterator[Tree], subject: str, example: Tree
) -> tuple[Tree, _Result]:
    """The first candidate that `function` accepts, and its result; if none, say why and on what shape it failed."""
    failure: Exception | None = None
    for candidate in candidates:
        try:
            return candidate, function(candidate)
        except ApportionError:
            raise
        except Exception as error:
            failure = error
    shape = tree_map(lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}", example)
    raise UnsupportedModel(
        f"{subject} failed on a synthetic record of {shape} with a batch dimension in front: "
        f"{type(failure).__name__}: {failure}. "
        "Inputs are passed as model(x), a tuple as model(*x), a dict as model(**x), with the type that they are stored in; class labels "
        "must be int64, and the targets of a regression have the shape of the output."
    ) from failure


def run_model(model: nn.Module, batch: Tree, seed: int) -> Tree:
    """The model's outputs, with fixed random draws; refuses one that writes over its records."""
    given = tree_map(torch.clone, batch)
    with fix_seed(seed, model_device(model)):
        outputs = call_model(model, given)
    if not all(bitwise_equal(one, other) for one, other in zip(tree_leaves(given), tree_leaves(batch), strict=True)):
        raise UnsupportedModel(
            "The model overwrites the records that it is given. "
            "Use inplace=False in its first layers; ap.fix(model) does it in a copy."
        )
    return outputs


@contextmanager
def fix_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Give the model fixed random draws, and put the global random state back afterwards."""
    with seeded_generators(seed, [device]):
        yield


def find_runnable_batch(argument: str, model: nn.Module, example: Tree) -> tuple[Tree, Tree, list[Tree]]:
    """Synthetic records like `example` that `model` runs on, together and each alone; and its outputs for them together and alone."""

    def together_and_alone(records: Tree) -> tuple[Tree, list[Tree]]:
        alone = [run_model(model, select_records(records, [record]), seed=0) for record in range(RECORDS)]
        return run_model(model, records, seed=0), alone

    candidates = synthetic_batches(argument, example, model)
    batch, outputs = find_runnable(together_and_alone, candidates, "The model", example)
    return batch, *outputs


def synthetic_batch(model: nn.Module, inputs: Tree) -> Tree:
    """A few synthetic records like `inputs`, on which `model` runs."""
    return find_runnable_batch("inputs", model, inputs)[0]


def select_records(batch: Tree, records: list[int]) -> Tree:
    return tree_map(lambda leaf: leaf[records] if isinstance(leaf, torch.Tensor) else leaf, batch)


def named_tensors(outputs: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of the outputs with a name such as `output['logits']`; None and numbers are passed over."""
    try:
        named = [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(outputs)[0]]
    except ValueError:  # outputs of early versions of transformers have leaves without names
        named = [(f"[{number}]", leaf) for number, leaf in enumerate(tree_leaves(outputs))]
    return [(f"output{name}", leaf) for name, leaf in named if isinstance(leaf, torch.Tensor)]


def trees_agree(actual: Any, expected: Any, computed_in: torch.dtype | None = None) -> bool:
    """Whether two structures have the same tensors, up to rounding; of a type that is coarser than theirs, if they were computed in it."""
    one, other = named_tensors(actual), named_tensors(expected)
    return [name for name, _ in one] == [name for name, _ in other] and all(
        tensors_agree(a, b, computed_in=computed_in) for (_, a), (_, b) in zip(one, other, strict=True)
    )


def tensors_agree(
    actual: torch.Tensor, expected: torch.Tensor, looseness: float = 1, computed_in: torch.dtype | None = None
) -> bool:
    """Whether two tensors agree up to rounding, measured against the largest number in them."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual, expected)
    types = [expected.dtype, *([computed_in] if computed_in is not None else [])]
    tolerance = max({torch.float64: 1e-8, torch.float32: 1e-4}.get(one, 5e-2) for one in types) * looseness
    if expected.is_cuda:
        tolerance = max(tolerance, 1e-2)  # convolutions may use TF32, with 10 bits
    parts = [tensor.detach().reshape(-1).split(COMPARED_NUMBERS) for tensor in (actual, expected)]
    # Scales are not below 1e-3, as numbers that should be zero are nothing but rounding.
    if expected.numel() and not expected.is_complex():  # as usually: all is finite, and the absolute tolerance enough
        largest = max(abs(float(end)) for part in parts[1] for end in part.aminmax())
        allowed = tolerance * max(largest, 1e-3)
        if math.isfinite(largest) and all(
            float((one - other).abs_().max()) <= allowed for one, other in zip(*parts, strict=True)
        ):
            return True
    finite = (part[torch.isfinite(part)].abs() for part in parts[1])
    scale = max((max(float(part.max()), 1e-3) for part in finite if part.numel()), default=0.0)
    close = partial(torch.allclose, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return all(map(close, *parts))


def bitwise_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the bit, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
