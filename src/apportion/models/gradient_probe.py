"""Compare the gradients of an engine, on synthetic records, with those of single records and with plain autograd.

Two checks, each of which finds faults that the other cannot:

`GradientProbe` compares engines with the reference engine, which runs every record alone, on batches that are random, permuted, repeated,
of other sizes, with records of different lengths and with tokens of every special kind.

`require_live_gradients` compares the sum of the records' gradients with plain autograd on the model itself, after the weights were
changed behind the engine's back. All engines give every record its own weights for the duration of the forward pass. Code that runs
layers *again in the backward pass* is outside that time and finds the layers' own weights:

- `torch.utils.checkpoint` with use_reentrant=True differentiates there, so that the records' weights get a gradient of zero: the model
  would be trained on noise alone, and nothing would show it;
- with use_reentrant=False it computes activations again, from weights that may be those of an earlier step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from apportion.curator.clipping import Gradients, Rows, as_gradients, flatten_rows
from apportion.curator.gradients.engine import BuiltEngine, Engine, EngineChoice, build_engine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.tree import batch_size, call_model, map_tensors
from apportion.devices import with_float64
from apportion.errors import UnsupportedModel
from apportion.execution import Mode
from apportion.models.check import copy_model
from apportion.models.synthetic import (
    Tree,
    find_runnable,
    fix_seed,
    model_device,
    named_tensors,
    other_batch_kinds,
    select_records,
    synthetic_pairs,
    tensors_agree,
)

_LOSS_FACTORS = tuple(4.0**power for power in range(1, 11))
"""Factors of the loss: an operation that changes only large gradients, as a hook that limits them, shows at some of these."""
_BATCHES = ([1, 1, 0, 2, 1], [0, 1], [0])
"""Records in another order and repeated; two, because three rows of a layer may be something else than three records; a single one."""
_WEIGHT_FACTOR = 0.9
"""What weights are multiplied by after the engine was built."""
_LOOSENESS = 10.0
"""Gradients are computed in another order by every engine: they round more than outputs."""

Pair = tuple[Tree, Tree]
"""A batch: inputs and targets."""


def run_engine(
    engine: Engine, loss_fn: LossFunction | None, pair: Pair, factor: float = 1.0, seed: int = 0
) -> Gradients | Rows:
    """The gradients that `engine` finds on a copy of this batch, for `factor` times the loss; `None` stands for `sum_outputs`."""
    records, targets = tree_map(torch.clone, pair)
    with fix_seed(seed, model_device(engine.model)):
        outputs = engine.forward(records)
        losses = sum_outputs(outputs) if loss_fn is None else engine.record_losses(loss_fn, outputs, targets)
        engine.require_own_parameters(losses.sum())
        (factor * losses.sum()).backward()
    del outputs, losses  # and what they hold, which is as large as the model for each record
    return engine.gradients()


def sum_outputs(outputs: Tree) -> Tensor:
    """Σ|y| over all outputs that can be differentiated: stands for a loss that is not known."""
    return torch.stack([tensor.abs().sum() for _, tensor in named_tensors(outputs) if tensor.requires_grad]).sum()


class GradientProbe:
    """Compares engines with the reference engine on synthetic batches.

    Args:
        model: in train() mode, with dropout off.
        loss: as of `train`; `None` if it is not known.
        inputs, target: one record, of which only shapes and types are used.
    """

    def __init__(self, model: nn.Module, loss: LossFunction | None, inputs: Tree, target: Tree):
        self._model, self._loss, self._inputs, self._target = model, loss, inputs, target
        self._engines: dict[Mode | EngineChoice, BuiltEngine] = {}
        self.pair, self._expected = find_runnable(
            lambda pair: self._summary("loop", pair),
            synthetic_pairs(inputs, target, model),
            "The model or its loss",
            (inputs, target),
        )
        """A batch on which the model and its loss run."""
        self._repeatable = tensors_agree(self._summary("loop", self.pair, seed=1), self._expected)

    def agrees(self, choice: EngineChoice) -> bool:
        """Whether the engine has the gradients of single records on all batches. A model that draws random numbers is compared once."""
        if not self._repeatable:
            return choice.mode == "vmap" or self._matches(choice, self.pair, self._expected)
        if not self._matches(choice, self.pair, self._expected):
            return False
        pair, alone = self.pair, self._expected
        for pair, alone in self._references():
            if not self._matches(choice, pair, alone):
                return False
        return self._scales(choice, pair, alone)

    def _references(self) -> Iterator[tuple[Pair, Tensor]]:
        """Batches, and the summary of what their records give alone. One at a time: each is twice as large as the model."""
        for kind in ("plain", *other_batch_kinds(self._inputs)):
            pairs = [self.pair] if kind == "plain" else synthetic_pairs(self._inputs, self._target, self._model, kind)
            for pair in pairs:
                try:
                    rows = self._run("loop", pair)
                except Exception:  # not every model accepts any mask or any token
                    continue
                assert isinstance(rows, Mapping)
                batches = _BATCHES if kind == "plain" else _BATCHES[:1]
                for batch in batches:
                    yield select_records(pair, batch), summarise_gradients(rows, batch, self._dtype)
                del rows  # before those of the next kind are made
                break

    def _scales(self, choice: EngineChoice, pair: Pair, alone: Tensor) -> bool:
        """Whether the engine also agrees for a much larger loss. Gradients nearly always grow with the loss. Where hooks limit them, all
        factors in between are compared, because what is limited vanishes beside what is not."""
        return tensors_agree(self._summary(choice, pair, _LOSS_FACTORS[-1]), alone, _LOOSENESS) or all(
            self._matches(choice, pair, self._summary("loop", pair, factor), factor) for factor in (1.0, *_LOSS_FACTORS)
        )

    def _matches(self, choice: EngineChoice, pair: Pair, alone: Tensor, factor: float = 1.0) -> bool:
        return tensors_agree(self._summary(choice, pair, factor), alone, _LOOSENESS)

    def _summary(self, choice: Mode | EngineChoice, pair: Pair, factor: float = 1.0, seed: int = 0) -> Tensor:
        """Of the gradients of `factor` times the loss, divided by it again."""
        gradients = self._run(choice, pair, factor, seed)
        return summarise_gradients(gradients, range(batch_size(pair[0])), self._dtype) / factor

    def _run(self, choice: Mode | EngineChoice, pair: Pair, factor: float = 1.0, seed: int = 0) -> Gradients | Rows:
        if choice not in self._engines:
            self._engines[choice] = build_engine(self._model, choice)
        return run_engine(self._engines[choice], self._loss, pair, factor, seed)

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(trained_parameters(self._model).values())).dtype


def summarise_gradients(gradients: Gradients | Rows, records: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What clipping uses of the records' gradients: norms, and two weighted sums that tell records apart.

    In one vector, so that rounding is measured against the whole: the gradient of one weight may be nothing but rounding.

    Args:
        gradients: of some records.
        records: of which of them the batch consists, in its order; some may be there twice.
    """
    with torch.no_grad():
        if isinstance(gradients, Mapping):
            return summarise_rows(gradients, [records], dtype)[0]
        given = as_gradients(gradients)
        norms = given.squared_norms()
        values = [norm.sqrt().cpu().double().to(dtype) for norm in norms.values()]
        for weights in _two_weightings(len(records)):
            sums = given.weighted_sums(dict.fromkeys(norms, weights))
            for name in list(sums):  # freed one by one: all are as large as the model
                values.append(sums.pop(name).cpu().double().flatten().to(dtype))
        return torch.cat(values)


def summarise_rows(rows: Rows, batches: Sequence[Sequence[int]], dtype: torch.dtype) -> list[Tensor]:
    """`summarise_gradients` of every batch that is made of these records, from one pass over their gradients."""
    with torch.no_grad():
        weightings = [_two_weightings(len(batch)) for batch in batches]
        (count,) = {len(row) for row in rows.values()}
        matrix = torch.zeros(2 * len(batches), count, dtype=torch.float64)
        for i, (batch, pair) in enumerate(zip(batches, weightings, strict=True)):
            matrix[2 * i : 2 * i + 2].index_add_(1, torch.tensor(list(batch)), torch.stack(pair))
        norms: list[Tensor] = []
        sums: list[Tensor] = []
        for row in rows.values():
            exact = with_float64(flatten_rows(row)).to(torch.float64)
            norms.append(torch.linalg.vector_norm(exact, dim=1).cpu().to(dtype))
            if bool(norms[-1].isfinite().all()):
                found = matrix.to(exact.device) @ exact
            else:  # zero times infinity: who is not in a batch must not be seen there
                pairs = zip(batches, weightings, strict=True)
                found = torch.cat([torch.stack(two).to(exact.device) @ exact[list(batch)] for batch, two in pairs])
            sums.append(found.cpu().to(dtype))
        return [
            torch.cat(
                [
                    *(norm[list(batch)] for norm in norms),
                    *(one[2 * i] for one in sums),
                    *(one[2 * i + 1] for one in sums),
                ]
            )
            for i, batch in enumerate(batches)
        ]


def _two_weightings(records: int) -> tuple[Tensor, Tensor]:
    """Weights that tell records apart."""
    places = torch.arange(records, dtype=torch.float64)
    return 0.5**places, torch.cos(3 * places + 0.7)


def require_live_gradients(model: nn.Module, choice: EngineChoice, loss_fn: LossFunction | None, pair: Pair) -> None:
    """Refuse a model with a trained parameter whose gradient in this engine is zero, or not that of plain autograd.

    Args:
        model: in train() mode, with dropout off. A copy of it is run.
        choice: the engine that was chosen.
        loss_fn: as of `train`; `None` stands for `sum_outputs`.
        pair: a synthetic batch that the model and the loss accept.
    """
    subject = copy_model(model)
    engine = build_engine(subject, choice)
    with torch.no_grad():
        for parameter in trained_parameters(subject).values():
            parameter.mul_(_WEIGHT_FACTOR)
    engine.sync_weights()
    sums = _sum_engine_gradients(engine, loss_fn, pair)
    plain = _sum_autograd_gradients(subject, loss_fn, pair, seed=0)
    different = _find_differences(sums, plain)
    if dead := [name for name in different if not sums[name].any()]:
        raise UnsupportedModel(
            f"The gradients of single records are zero for {', '.join(dead)}, where an ordinary backward pass has others: what would be "
            "trained on is noise alone. Something runs layers again in the backward pass, past the weights of the record, as "
            "torch.utils.checkpoint does with use_reentrant=True. Pass use_reentrant=False, or leave it out: micro-batches bound memory."
        )
    if different and not _find_differences(_sum_autograd_gradients(subject, loss_fn, pair, seed=1), plain):
        # where something random is left, they always differ
        raise UnsupportedModel(
            f"The gradients of single records for {', '.join(different)} are not those of an ordinary backward pass, once weights have "
            "moved. Something runs layers again in the backward pass with other weights, as torch.utils.checkpoint may do, or keeps a "
            "copy of them. Leave it out: micro-batches bound memory."
        )


def _sum_engine_gradients(engine: Engine, loss_fn: LossFunction | None, pair: Pair) -> dict[str, Tensor]:
    gradients, trained = as_gradients(run_engine(engine, loss_fn, pair)), trained_parameters(engine.model)
    with torch.no_grad():
        weights = torch.ones(len(gradients), dtype=torch.float64)
        sums = gradients.weighted_sums(dict.fromkeys(trained, weights))
        return {name: sums[name].to(parameter.dtype).to(parameter.device) for name, parameter in trained.items()}


def _sum_autograd_gradients(model: nn.Module, loss_fn: LossFunction | None, pair: Pair, seed: int) -> dict[str, Tensor]:
    """Of every record alone, each through a copy of the model that has seen no other record."""
    sums = {name: torch.zeros_like(parameter) for name, parameter in trained_parameters(model).items()}
    with fix_seed(seed, model_device(model)):
        for i in range(batch_size(pair[0])):
            record, target = map_tensors(lambda tensor, i=i: tensor[i : i + 1].clone(), pair)
            subject = copy_model(model)
            outputs = call_model(subject, record)
            loss = sum_outputs(outputs) if loss_fn is None else loss_fn(outputs, target).sum()
            loss.backward()
            for name, parameter in trained_parameters(subject).items():
                if parameter.grad is not None:
                    sums[name] += parameter.grad
    return sums


def _find_differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names whose values differ by more than rounding, measured against the largest value of all: one gradient may be rounding alone."""
    largest = torch.stack([value.abs().max().cpu().double() for value in expected.values() if value.numel()]).max()

    def append_largest(value: Tensor) -> Tensor:
        return torch.cat([value.flatten(), largest.reshape(1).to(value.dtype).to(value.device)])

    return [
        name
        for name, value in expected.items()
        if not tensors_agree(append_largest(found[name]), append_largest(value), _LOOSENESS)
    ]
