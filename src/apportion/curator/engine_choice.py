"""Which engine computes the per-record gradients of a model: the fastest that agrees with the reference on synthetic records."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from apportion.curator.clipping import Gradients, Rows, held
from apportion.curator.compatibility import copy_of
from apportion.curator.gradients.engine import Mode, build_engine
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.one_path import takes_one_path
from apportion.curator.sameness import close, named_tensors
from apportion.curator.synthetic import LENGTHS, Structure, device_of, first_that_runs, pairs, pick, prepared, seeded
from apportion.errors import UnsupportedModel

LossFunction = Callable[[Any, Any], torch.Tensor]

_FAST: tuple[Mode, ...] = ("one-pass, channels last", "one-pass", "one-pass, copying inputs", "vmap")
_LOUDER = tuple(4.0**power for power in range(1, 11))  # what is done to large gradients only is done to some of these


def per_record_mode(
    model: nn.Module,
    loss_fn: LossFunction | None,
    inputs: Structure,
    target: Structure,
    wanted: Literal["auto"] | Mode = "auto",
    *,
    trusted: bool | None = None,
) -> Mode:
    """The first engine, from the fastest to the slowest, that gives the gradients of single passes on synthetic records.

    An engine that is `wanted` must be among those that do. If it is `trusted`, as one is that a person asked for, the forward pass may
    branch on its data, which is otherwise left to "vmap" or "loop", where records cannot meet. Operators without a batching rule leave
    "loop". In a training loop of a person's own the loss is not known beforehand: with `loss_fn=None` the size of the outputs stands for
    it.
    """
    subject = prepared(model)
    loss = copy_of(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn

    def gradients(mode: Mode, pair: tuple[Structure, Structure], seed: int, factor: float = 1.0) -> torch.Tensor:
        """Of `factor` times the loss, and divided by it again."""
        engine = build_engine(subject, mode)
        records, targets = tree_map(torch.clone, pair)
        with seeded(seed, device_of(subject)):
            outputs = engine.forward(records)
            if loss is None:
                losses = torch.stack(
                    [tensor.abs().sum() for _, tensor in named_tensors(outputs) if tensor.requires_grad]
                )
            else:
                losses = engine.record_losses(loss, outputs, targets)
            engine.require_own_parameters(losses.sum())
            (factor * losses.sum()).backward()
        with torch.no_grad():
            found = _summary(engine.gradients()) / factor
            return found.to(next(iter(trained_parameters(subject).values())).dtype)

    def others() -> Iterator[tuple[tuple[Structure, Structure], torch.Tensor]]:
        """Two records, because three rows of a layer may be something else than three records, and their gradients alone; where the model
        takes them, records of different lengths, which it may sort, or hide parts of."""
        found = 0
        for lengths in LENGTHS if _has_masks(inputs) else LENGTHS[:1]:
            for longer in pairs(inputs, target, subject, lengths):
                two = pick(longer, [0, 1])
                try:
                    alone = gradients("loop", two, seed=0)
                except Exception:  # not every model takes any number, or any mask
                    continue
                found += 1
                yield two, alone
                break
        if not found:
            two = pick(pair, [0, 1])
            yield two, gradients("loop", two, seed=0)

    def others_match(mode: Mode) -> bool:
        """Of a loss that is much larger, too. Nearly always gradients grow with it; where hooks limit them, all sizes between are compared,
        because what is limited vanishes beside what is not."""
        return all(
            close(gradients(mode, two, 0, _LOUDER[-1]), alone, looseness=10)
            or all(
                close(gradients(mode, two, 0, factor), gradients("loop", two, 0, factor), looseness=10)
                for factor in (1.0, *_LOUDER)
            )
            for two, alone in others()
        )

    pair, expected = first_that_runs(
        lambda pair: gradients("loop", pair, seed=0),
        pairs(inputs, target, subject),
        "The model or its loss",
        (inputs, target),
    )
    repeatable = close(gradients("loop", pair, seed=1), expected)
    with warnings.catch_warnings():
        # Where torch can work around a missing batching rule it says so, which is not a reason to go without the others.
        warnings.simplefilter("ignore")
        one_path = (wanted != "auto" if trusted is None else trusted) or takes_one_path(
            copy_of(subject), tree_map(torch.clone, pair[0])
        )
        for mode in _FAST:
            if wanted not in ("auto", mode) or (mode == "one-pass, channels last" and not _has_images(subject)):
                continue
            if mode != "vmap" and not one_path:
                continue
            with suppress(RuntimeError, UnsupportedModel):
                agrees = close(gradients(mode, pair, seed=0), expected, looseness=10)
                if mode == "vmap" and (agrees or not repeatable):
                    return mode
                if agrees and others_match(mode):
                    return mode
    if wanted not in ("auto", "loop"):
        raise UnsupportedModel(
            f"The engine {wanted!r} does not give the gradients of single records for this model. "
            'Use Execution(engine="auto"), which finds one that does.'
        )
    return "loop"


def _has_masks(inputs: Structure) -> bool:
    return any(leaf.dtype == torch.bool for leaf in tree_leaves(inputs))


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in model.modules())


def _summary(gradients: Gradients | Rows) -> torch.Tensor:
    """What clipping uses of the records' gradients: norms, and two sums that tell records apart.

    In one vector, so that rounding is measured against the whole: the gradient of one weight may be nothing but rounding.
    """
    records = held(gradients)
    norms = records.squared_norms()
    sums = [
        records.weighted_sums({name: torch.tensor(weights[: len(records)], dtype=torch.float64) for name in norms})
        for weights in ([1.0, 0.5, 0.25], [0.25, 1.0, -0.5])
    ]
    values = [norm.sqrt() for norm in norms.values()] + [value for part in sums for value in part.values()]
    return torch.cat([value.double().flatten() for value in values])
