"""Between reading and computing: records outside of the declared domain are taken out, the others go where the model is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from apportion.curator.problems import OUTSIDE, UNREAD, Problems
from apportion.curator.reader import Piece
from apportion.curator.tree import map_tensors, tensor_leaves
from apportion.domain import Domain


def sieve(
    pieces: Iterator[Piece],
    domain: Domain,
    device: torch.device,
    drawn: int,
    problems: Problems,
    failures: Sequence[str] = (),
) -> Iterator[Piece]:
    """The pieces without records that lie outside, on the device of the model. Each record is judged by its own values alone.

    Args:
        drawn: how many records were to be read; those that are missing could not be.
        failures: what the missing ones raised, as far as it is known by the end.
    """
    arrived = 0
    for piece in pieces:
        arrived += piece.members.shape[0]
        inside = within(piece, domain)
        if inside is not None and not bool(inside.all()):
            problems.count(OUTSIDE, int((~inside).sum()))
            if not bool(inside.any()):
                continue
            piece = map_tensors(lambda tensor, kept=inside: tensor[kept.to(tensor.device)], piece)
        yield piece._replace(batch=map_tensors(lambda tensor: tensor.to(device), piece.batch))
    problems.drawn += drawn
    for text in failures:
        problems.count(UNREAD, 1, text)
    problems.count(UNREAD, drawn - arrived - len(failures))


def within(piece: Piece, domain: Domain) -> Tensor | None:
    """Which records of a piece have declared values only, (b,); `None` if nothing is declared."""
    if domain.classes is None and domain.inputs is None:
        return None
    inputs, targets = piece.batch
    inside = torch.ones(len(piece.members), dtype=torch.bool)
    if domain.classes is not None:
        learnt = torch.zeros_like(inside)  # with nothing but ignored targets there is nothing to learn from
        for leaf in tensor_leaves(targets):
            whole = leaf if leaf.is_floating_point() else leaf.to(torch.int64)
            ignored = (whole == domain.ignored).reshape(len(inside), -1)
            known = ((whole >= 0) & (whole < domain.classes) & (whole == whole.round())).reshape(len(inside), -1)
            inside &= (known | ignored).all(1).cpu()
            learnt |= ~ignored.all(1).cpu()
        inside &= learnt
    if domain.inputs is not None:
        low, high = domain.inputs
        for leaf in tensor_leaves(inputs):
            inside &= ((leaf >= low) & (leaf <= high)).reshape(len(inside), -1).all(1).cpu()
    return inside
