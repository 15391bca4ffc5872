"""Find out by running it whether a model, or a loss, mixes records.

A layer written by hand says nothing by its type, so a copy of the model is run on synthetic records: each must give the same
result alone as in company. No real record is ever read (an example gives only shapes and types), the model passed in is not
changed, and neither is the global random state of PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from apportion.curator.clipping import Gradients, Rows, held
from apportion.curator.compatibility import copy_of
from apportion.curator.gradients.engine import Mode, build_engine
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.one_path import takes_one_path
from apportion.curator.tree import call_model
from apportion.errors import ApportionError, InvalidArgument, UnsupportedModel

# One record, or a batch of them: a tensor, or a tuple, list or dict of these.
Structure = Any
LossFunction = Callable[[Any, Any], torch.Tensor]

_RECORDS = 3  # two could hide mixing that is symmetric in its pair
_FAST: tuple[Mode, ...] = ("one-pass, channels last", "one-pass", "one-pass, copying inputs", "vmap")
_Result = TypeVar("_Result")


def probe_model(model: nn.Module, example: Structure) -> None:
    """Raise `UnsupportedModel` unless the output for a record is its own and running the model changes no state.

    `example` is one record without a batch dimension. A tensor is passed as `model(x)`, a tuple or list as `model(*x)`, a
    dict as `model(**x)`, each with a batch dimension in front.
    """
    subject = _prepared(model)
    state = _state(subject)
    batch, outputs = _first_that_runs(
        lambda inputs: _run(subject, inputs, seed=0), _batches("example", example, subject), "The model", example
    )
    _require_unchanged(state, subject, "model")
    _require_batch_dimension(outputs)
    repeatable = _same(_run(subject, batch, seed=1), outputs)
    for index in range(_RECORDS):
        record = iter([_pick(batch, [index])])
        _, other = _first_that_runs(lambda inputs: _run(subject, inputs, seed=0), record, "The model", example)
        _require_single_shape(other, outputs)
        if not repeatable:
            # Something random is left in the model. The same seed gives a batch of the same size the same draws, so the
            # company of the record is exchanged instead of taken away.
            company = [place if place == index else (place + 1) % _RECORDS for place in range(_RECORDS)]
            other = _pick(_run(subject, _pick(batch, company), seed=0), [index])
        if not _same(_pick(outputs, [index]), other):
            raise UnsupportedModel(
                "The model mixes records: the output of one record changed when other records were in the batch. "
                "Compute statistics within a record only, as nn.GroupNorm and nn.LayerNorm do."
            )


def probe_loss(model: nn.Module, loss_fn: LossFunction, example_inputs: Structure, example_target: Structure) -> None:
    """Raise `UnsupportedModel` unless `loss_fn(outputs, targets)` is made of terms that belong to one record each.

    It may return one value for each record, or their mean or their sum. The model is run once and its outputs are split, so
    a fault found here is of the loss.
    """
    subject = _prepared(model)
    loss = copy_of(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    state = _state(loss)
    _, outputs = _first_that_runs(
        lambda inputs: _run(subject, inputs, seed=0),
        _batches("example_inputs", example_inputs, subject),
        "The model",
        example_inputs,
    )
    _require_batch_dimension(outputs)

    def evaluate(targets: Structure, chosen: list[int]) -> torch.Tensor:
        with _seeded(0, _device(subject)):
            return loss(_pick(outputs, chosen), _pick(targets, chosen))

    # Targets are drawn from [0, 1), as some losses take probabilities only.
    everyone = list(range(_RECORDS))
    targets, together = _first_that_runs(
        lambda targets: evaluate(targets, everyone),
        _batches("example_target", example_target, subject, draw=torch.rand),
        "The loss",
        example_target,
    )
    _, alone = _first_that_runs(
        lambda targets: [evaluate(targets, [index]) for index in everyone], iter([targets]), "The loss", example_target
    )
    _require_unchanged(state, loss, "loss")
    for value, records in ((together, _RECORDS), *((single, 1) for single in alone)):
        _require_loss_shape(value, records)
    singles = torch.stack([value.reshape(()) for value in alone])
    accepted = [singles] if together.numel() == _RECORDS else [singles.mean(), singles.sum()]
    if not any(_close(together.reshape(value.shape), value) for value in accepted):
        raise UnsupportedModel(
            "The loss mixes records: for a batch it is not the values of its records, nor their mean or sum. "
            "Use reduction='none' and only terms that depend on one record, "
            "without dividing by anything that is counted or summed over the batch, as a mean with class weights does."
        )


def per_record_mode(
    model: nn.Module,
    loss_fn: LossFunction | None,
    inputs: Structure,
    target: Structure,
    wanted: Literal["auto"] | Mode = "auto",
) -> Mode:
    """The first engine, from the fastest to the slowest, that gives the gradients of single passes on synthetic records.

    An engine that is `wanted` must be among those that do; it is trusted with a forward pass that branches on its data, which is otherwise
    left to "vmap" or "loop", where records cannot meet. Operators without a batching rule leave "loop". In a training loop of a person's
    own the loss is not known beforehand: with `loss_fn=None` the size of the outputs stands for it.
    """
    subject = _prepared(model)
    loss = copy_of(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn

    def gradients(mode: Mode, pair: tuple[Structure, Structure], seed: int) -> torch.Tensor:
        engine = build_engine(subject, mode)
        records, targets = tree_map(torch.clone, pair)
        with _seeded(seed, _device(subject)):
            outputs = engine.forward(records)
            if loss is None:
                losses = torch.stack([tensor.abs().sum() for _, tensor in _tensors(outputs) if tensor.requires_grad])
            else:
                losses = engine.record_losses(loss, outputs, targets)
            engine.require_own_parameters(losses.sum())
            losses.sum().backward()
        with torch.no_grad():
            return _summary(engine.gradients()).to(next(iter(trained_parameters(subject).values())).dtype)

    pair, expected = _first_that_runs(
        lambda pair: gradients("loop", pair, seed=0),
        _pairs(inputs, target, subject),
        "The model or its loss",
        (inputs, target),
    )
    repeatable = _close(gradients("loop", pair, seed=1), expected)
    with warnings.catch_warnings():
        # Where torch can work around a missing batching rule it says so, which is not a reason to go without the others.
        warnings.simplefilter("ignore")
        one_path = wanted != "auto" or takes_one_path(subject, tree_map(torch.clone, pair[0]))
        for mode in _FAST:
            if wanted not in ("auto", mode) or (mode == "one-pass, channels last" and not _has_images(subject)):
                continue
            if mode != "vmap" and not one_path:
                continue
            with suppress(RuntimeError, UnsupportedModel):
                if _close(gradients(mode, pair, seed=0), expected, looseness=10) or (mode == "vmap" and not repeatable):
                    return mode
    if wanted not in ("auto", "loop"):
        raise UnsupportedModel(
            f"The engine {wanted!r} does not give the gradients of single records for this model. "
            'Use Execution(engine="auto"), which finds one that does.'
        )
    return "loop"


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in model.modules())


def synthetic_outputs(run: Callable[[Structure], Structure], model: nn.Module, inputs: Structure) -> list[torch.Tensor]:
    """The tensors that `run` returns for synthetic records shaped like `inputs`, those that depend on parameters."""
    with _seeded(0, _device(model)):
        _, outputs = _first_that_runs(run, _batches("inputs", inputs, model), "The model", inputs)
    return [tensor for _, tensor in _tensors(outputs) if tensor.requires_grad]


def _summary(gradients: Gradients | Rows) -> torch.Tensor:
    """What clipping uses of the records' gradients: norms, and two sums that tell records apart.

    In one vector, so that rounding is measured against the whole: the gradient of one weight may be nothing but rounding.
    """
    records = held(gradients)
    norms = records.squared_norms()
    sums = [
        records.weighted_sums({name: torch.tensor(weights, dtype=torch.float64) for name in norms})
        for weights in ([1.0, 0.5, 0.25], [0.25, 1.0, -0.5])
    ]
    values = [norm.sqrt() for norm in norms.values()] + [value for part in sums for value in part.values()]
    return torch.cat([value.double().flatten() for value in values])


def _prepared(model: nn.Module) -> nn.Module:
    """A copy in train() mode whose dropout drops nothing, so that its outputs can be compared."""
    if any(is_lazy(tensor) or tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UnsupportedModel(
            "The model has parameters without values, so that it cannot be run; check(model) names them."
        )
    subject = copy_of(model).train()
    for module in subject.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        # nn.MultiheadAttention, nn.LSTM and many layers written by hand
        if isinstance(vars(module).get("dropout"), float):
            vars(module)["dropout"] = 0.0
    return subject


def _device(model: nn.Module) -> torch.device:
    tensor = next((t for t in (*model.parameters(), *model.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def _batches(
    argument: str,
    example: Structure,
    model: nn.Module,
    draw: Callable[..., torch.Tensor] = torch.randn,
) -> Iterator[Structure]:
    """Synthetic batches shaped like `example`, to be tried in turn until one runs.

    Floats are random, booleans False. Integers are the number of the record, because records that are all zeros would hide
    mixing; as a model may know fewer than three words or classes, they are then cut at 1 and at last at 0.
    """
    leaves = tree_leaves(example)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise InvalidArgument(
            argument,
            example,
            "one record must be made of tensors",
            "Pass a tensor, or a tuple, list or dict of tensors",
        )
    device = _device(model)
    # An index out of range is an error on the CPU that can be caught, but on a GPU it ends the process.
    for highest in range(_RECORDS - 1, -1, -1) if device.type == "cpu" else [0]:
        generator = torch.Generator().manual_seed(0)

        def synthetic(
            leaf: torch.Tensor, highest: int = highest, generator: torch.Generator = generator
        ) -> torch.Tensor:
            shape = (_RECORDS, *leaf.shape)
            if leaf.is_floating_point() or leaf.is_complex():
                values = draw(shape, generator=generator)
            elif leaf.dtype == torch.bool:
                values = torch.zeros(shape)
            else:
                numbers = torch.arange(_RECORDS).clamp(max=highest)
                values = numbers.reshape(_RECORDS, *[1] * leaf.dim()).expand(shape)
            return values.to(device=device, dtype=leaf.dtype, copy=True)

        yield tree_map(synthetic, example)


def _pairs(inputs: Structure, target: Structure, model: nn.Module) -> Iterator[tuple[Structure, Structure]]:
    for records in _batches("inputs", inputs, model):
        for answers in _batches("target", target, model, draw=torch.rand):
            yield records, answers


def _first_that_runs(
    function: Callable[[Structure], _Result], candidates: Iterator[Structure], subject: str, example: Structure
) -> tuple[Structure, _Result]:
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
        "Inputs are passed as model(x), a tuple as model(*x), a dict as model(**x); class labels must be int64."
    ) from failure


def _run(model: nn.Module, batch: Structure, seed: int) -> Structure:
    given = tree_map(torch.clone, batch)
    with _seeded(seed, _device(model)):
        outputs = call_model(model, given)
    if not all(_identical(one, other) for one, other in zip(tree_leaves(given), tree_leaves(batch), strict=True)):
        raise UnsupportedModel(
            "The model overwrites the records that it is given. "
            "Use inplace=False in its first layers; ap.fix(model) does it in a copy."
        )
    return outputs


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Give the model fixed random draws, and put the global random state back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _pick(batch: Structure, records: list[int]) -> Structure:
    return tree_map(lambda leaf: leaf[records] if isinstance(leaf, torch.Tensor) else leaf, batch)


def _tensors(outputs: Structure) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of the outputs with a name such as `output['logits']`; None and numbers are passed over."""
    leaves, _ = tree_flatten_with_path(outputs)
    return [(f"output{keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _state(subject: object) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module as they are now; nothing for a plain function."""
    if not isinstance(subject, nn.Module):
        return {}
    buffers = {f"buffer {name}": b.detach().clone() for name, b in subject.named_buffers()}
    return buffers | {f"parameter {name}": p.detach().clone() for name, p in subject.named_parameters()}


def _require_unchanged(before: dict[str, torch.Tensor], subject: object, what: str) -> None:
    after = _state(subject)
    for name in before | after:
        if name not in before or name not in after or not _identical(before[name], after[name]):
            raise UnsupportedModel(
                f"The forward pass of the {what} changes its {name}, which would carry what it learns of the records past "
                "the noise. Remove the update, or make it outside of the forward pass from data that is not private."
            )


def _require_batch_dimension(outputs: Structure) -> None:
    tensors = _tensors(outputs)
    if not tensors:
        raise UnsupportedModel(
            f"The model returned no tensor but {type(outputs).__name__}. "
            "Return a tensor, or a tuple, list or dict of tensors."
        )
    for name, tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != _RECORDS:
            raise UnsupportedModel(
                f"The model's {name} has shape {list(tensor.shape)} for a batch of {_RECORDS} records: "
                "its first dimension is not the batch, so no part of it belongs to one record. "
                "Return only tensors with one entry for each record in front."
            )


def _require_single_shape(alone: Structure, together: Structure) -> None:
    for (name, single), (_, batch) in zip(_tensors(alone), _tensors(together), strict=False):
        if single.shape != (1, *batch.shape[1:]):
            raise UnsupportedModel(
                f"The model's {name} has shape {list(single.shape)} for one record but {list(batch.shape)} for "
                f"{_RECORDS}: the batch dimension of a single record is lost. "
                "Name the dimension in .squeeze(dim), and keep the first one in .reshape and .flatten."
            )


def _require_loss_shape(value: object, records: int) -> None:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedModel(f"The loss returned {type(value).__name__}. Return a tensor.")
    if value.dim() > 0 and (value.numel() != records or value.shape[0] != records):
        raise UnsupportedModel(
            f"The loss has shape {list(value.shape)} for {records} records. "
            "Average or sum it over the other dimensions, so that it is one number, or one for each record."
        )


def _same(actual: Structure, expected: Structure) -> bool:
    one, other = _tensors(actual), _tensors(expected)
    return [name for name, _ in one] == [name for name, _ in other] and all(
        _close(a, b) for (_, a), (_, b) in zip(one, other, strict=True)
    )


def _close(actual: torch.Tensor, expected: torch.Tensor, looseness: float = 1) -> bool:
    """Whether two tensors agree up to rounding, measured against the largest number in them."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual, expected)
    tolerance = {torch.float64: 1e-8, torch.float32: 1e-4}.get(expected.dtype, 5e-2) * looseness
    if expected.is_cuda:
        tolerance = max(tolerance, 1e-2)  # convolutions may use TF32, with 10 bits
    finite = expected.detach()[torch.isfinite(expected)].abs()
    # Not below 1e-3, as numbers that should be zero are nothing but rounding.
    scale = max(float(finite.max()), 1e-3) if finite.numel() else 0.0
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the bit, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
