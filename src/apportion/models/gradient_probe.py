"""Compare the gradients of an engine, on synthetic records, with those of single records and with plain autograd.

Two checks, each of which finds faults that the other cannot:

`GradientProbe` compares engines with the reference engine, which runs every record alone, on batches that are random, permuted, repeated,
of other sizes, with records of different lengths and with tokens of every special kind. Every record is run alone once.

`require_live_gradients` compares the sum of the records' gradients with plain autograd on the model itself, after the weights were
changed behind the engine's back. All engines give every record its own weights for the duration of the forward pass. Code that runs
layers *again in the backward pass* is outside that time and finds the layers' own weights:

- `torch.utils.checkpoint` with use_reentrant=True differentiates there, so that the records' weights get a gradient of zero: the model
  would be trained on noise alone, and nothing would show it;
- with use_reentrant=False it computes activations again, from weights that may be those of an earlier step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

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
    run_model,
    select_records,
    synthetic_pairs,
    tensors_agree,
    trees_agree,
)

_LOSS_FACTORS = tuple(4.0**power for power in range(1, 11))
"""Factors of the loss: an operation that changes only large gradients, as a hook that limits them, shows at some of these."""
_PLAIN = [0, 1]
"""Of the plain records. Their loss is multiplied, too: two, because three rows of a layer may be something else than three records."""
_OF_OTHER_KINDS = [2, 0]
"""Of the records of other kinds: those that are shorter than a record can be, where lengths differ."""
_OTHERS = 3
"""How many of other kinds stand between plain records."""
_SKETCHED = 4096
"""Numbers that are compared of a parameter, for each record or sum."""
_WEIGHT_FACTOR = 0.9
"""What weights are multiplied by after the engine was built."""
_LOOSENESS = 10.0
"""Gradients are computed in another order by every engine: they round more than outputs."""

Pair = tuple[Tree, Tree]
"""A batch: inputs and targets."""


def run_engine(engine: Engine, loss_fn: LossFunction | None, pair: Pair, factor: float = 1.0) -> Gradients | Rows:
    """The gradients that `engine` finds on a copy of this batch, for `factor` times the loss; `None` stands for `sum_outputs`."""
    records, targets = tree_map(torch.clone, pair)
    with fix_seed(0, model_device(engine.model)):
        outputs = engine.forward(records)
        losses = sum_outputs(outputs) if loss_fn is None else engine.record_losses(loss_fn, outputs, targets)
        engine.require_own_parameters(losses.sum())
        (factor * losses.sum()).backward()
    del outputs, losses  # and what they hold, which is as large as the model for each record
    return engine.gradients()


def sum_outputs(outputs: Tree) -> Tensor:
    """Σ|y| over all outputs that can be differentiated: stands for a loss that is not known."""
    return torch.stack([tensor.abs().sum() for _, tensor in named_tensors(outputs) if tensor.requires_grad]).sum()


class AloneSummary(NamedTuple):
    """What clipping uses of the gradients of records, each of which was run alone.

    Args:
        pair: the records.
        dtype: of the summaries.
        norms: (records, parameters), in float64.
        sketches: (records, numbers), of all parameters in a row, in float64.
    """

    pair: Pair
    dtype: torch.dtype
    norms: Tensor
    sketches: Tensor

    def together(self, records: Sequence[int]) -> tuple[Pair, Tensor]:
        """A batch of some of them in any order, and what its summary should be."""
        chosen = list(records)
        sums = _distinct_weights(len(chosen)) @ self.sketches[chosen]
        return select_records(self.pair, chosen), torch.cat([self.norms[chosen].flatten(), sums]).to(self.dtype)

    def join(self, other: AloneSummary) -> AloneSummary:
        """These records and others."""
        pair = tree_map(lambda *parts: torch.cat(parts), self.pair, other.pair)
        norms, sketches = torch.cat([self.norms, other.norms]), torch.cat([self.sketches, other.sketches])
        return AloneSummary(pair, self.dtype, norms, sketches)

    def finite(self) -> list[bool]:
        """Of which records all gradients are numbers."""
        return [bool(norms.isfinite().all()) for norms in self.norms]


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
        candidates = (select_records(pair, _PLAIN) for pair in synthetic_pairs(inputs, target, model))
        self.pair, self._alone = find_runnable(self._run_alone, candidates, "The model or its loss", (inputs, target))
        """A batch on which the model and its loss run."""
        try:
            self._repeatable = trees_agree(*(run_model(model, self.pair[0], seed) for seed in (0, 1)))
        except Exception:  # it does not run records together, and nor will an engine
            self._repeatable = True

    def agrees(self, choice: EngineChoice) -> bool:
        """Whether the engine has the gradients of single records on all batches. A model that draws random numbers is compared once."""
        if not self._repeatable:
            return choice.mode == "vmap" or self._matches(choice, *self._alone.together(_PLAIN))
        batches = map(self._all.together, self._batches())
        return all(self._matches(choice, *batch) for batch in batches) and self._scales(choice)

    def _batches(self) -> Iterator[list[int]]:
        """Five records of all kinds, out of order and repeated; a single one; and by themselves those whose gradients are no numbers, since
        nothing would be seen of others beside them."""
        finite = self._all.finite()
        if usable := [place for place in (1, *range(2, len(finite)), 0) if finite[place]]:
            yield [usable[0], *(usable[1:] + usable * _OTHERS)[:_OTHERS], usable[0]]
        yield [0]
        if odd := [place for place, known in enumerate(finite) if not known]:
            yield odd

    @cached_property
    def _all(self) -> AloneSummary:
        """Plain records, and some of all other kinds that the model accepts."""
        kinds = other_batch_kinds(self._inputs)
        found = self._alone
        for kind in kinds:
            last = kind == kinds[-1]
            few = _OF_OTHER_KINDS if len(kinds) < _OTHERS and last else _OF_OTHER_KINDS[:1]
            for pair in synthetic_pairs(self._inputs, self._target, self._model, kind):
                try:
                    found = found.join(self._run_alone(select_records(pair, few)))
                except Exception:  # not every model accepts any mask or any token
                    continue
                break
        return found

    def _scales(self, choice: EngineChoice) -> bool:
        """Whether the engine also agrees for a much larger loss. Gradients nearly always grow with the loss. Where hooks limit them, all
        factors in between are compared, because what is limited vanishes beside what is not."""
        pair, alone = self._alone.together(_PLAIN)
        return self._matches(choice, pair, alone, _LOSS_FACTORS[-1]) or all(
            self._matches(choice, pair, self._summary("loop", pair, factor), factor) for factor in (1.0, *_LOSS_FACTORS)
        )

    def _matches(self, choice: EngineChoice, pair: Pair, alone: Tensor, factor: float = 1.0) -> bool:
        return tensors_agree(self._summary(choice, pair, factor), alone, _LOOSENESS)

    def _run_alone(self, pair: Pair) -> AloneSummary:
        rows = self._run("loop", pair)
        assert isinstance(rows, Mapping)
        return AloneSummary(pair, self._dtype, *summarise_rows(rows))

    def _summary(self, choice: Mode | EngineChoice, pair: Pair, factor: float = 1.0) -> Tensor:
        """Of the gradients of `factor` times the loss, divided by it again."""
        return summarise_gradients(self._run(choice, pair, factor), self._dtype) / factor

    def _run(self, choice: Mode | EngineChoice, pair: Pair, factor: float = 1.0) -> Gradients | Rows:
        if choice not in self._engines:
            self._engines[choice] = build_engine(self._model, choice)
        return run_engine(self._engines[choice], self._loss, pair, factor)

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(trained_parameters(self._model).values())).dtype


def summarise_gradients(gradients: Gradients | Rows, dtype: torch.dtype) -> Tensor:
    """What clipping uses of the records' gradients: norms, and a sketch of a weighted sum that tells records apart.

    In one vector, so that rounding is measured against the whole: the gradient of one weight may be nothing but rounding.
    """
    with torch.no_grad():
        given = as_gradients(gradients)
        norms = given.squared_norms()
        values = [torch.stack([norm.sqrt().cpu().double() for norm in norms.values()], dim=1).flatten()]
        sums = given.weighted_sums(dict.fromkeys(norms, _distinct_weights(len(given))))
        for name in norms:  # freed one by one: all are as large as the model
            values.append(_sketch(sums.pop(name).flatten()))
        return torch.cat(values).to(dtype)


def summarise_rows(rows: Rows) -> tuple[Tensor, Tensor]:
    """Norms (records, parameters) and sketches (records, numbers) of the records' gradients, in float64."""
    with torch.no_grad():
        flat = [with_float64(flatten_rows(row)) for row in rows.values()]
        norms = [torch.linalg.vector_norm(row, dim=1, dtype=torch.float64).cpu() for row in flat]
        sketches = [torch.stack([_sketch(one) for one in row]) for row in flat]
        return torch.stack(norms, dim=1), torch.cat(sketches, dim=1)


def _sketch(values: Tensor) -> Tensor:
    """The numbers themselves if they are few; otherwise sums of many, each with a random factor, in `_SKETCHED` places.

    Sketches add up as the numbers do, and are hardly larger for a large model than for a small one. Factors are between 1 and 2, of either
    sign: a difference in one number shows at least as large as it is, differences in many add up to more, and numbers in each other's place
    show, because no two factors are the same.
    """
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    many = len(values) // _SKETCHED
    if many < 2:
        return values.cpu().double()
    drawn = torch.rand(many, generator=torch.Generator().manual_seed(many), dtype=torch.float64) - 0.5
    factors = torch.copysign(1 + 2 * drawn.abs(), drawn).to(values)
    end = many * _SKETCHED
    return torch.cat([factors @ values[:end].view(many, _SKETCHED), values[end:]]).cpu().double()


def _distinct_weights(records: int) -> Tensor:
    """Weights that tell records apart."""
    return torch.cos(3 * torch.arange(records, dtype=torch.float64) + 0.7)


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
