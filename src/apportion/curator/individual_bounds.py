"""Bounds and accounts of single people, where a run keeps them (`accounting/individual_accounts.py`): secret, inside the curator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.curator.clipping import Gradients, Rows, as_gradients, release_norms, squared_norms
from apportion.event import Event
from apportion.request import Request

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Accounts(Protocol):
    """What everybody has spent, and how far everybody may move a sum."""

    charges: int

    @property
    def scales(self) -> Floats: ...

    def bound(self, wanted: Floats) -> None: ...

    def charge(self, event: Event) -> NDArray[np.bool_]: ...

    def charge_worst(self, event: Event) -> None: ...

    def epsilons(self, delta: float) -> Floats: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class IndividualBounds:
    """What each record may add to a sum, and what it has spent.

    Args:
        accounts: of all records.
        refresh: after how many draws norms are computed anew.
        margin: by which norms are multiplied.
        enforced: whether records are clipped to their bounds, and left out when their budget is spent.
    """

    def __init__(self, accounts: Accounts, refresh: int, margin: float, *, enforced: bool):
        self.accounts, self._refresh, self._margin, self.enforced = accounts, refresh, margin, enforced

    @property
    def due(self) -> bool:
        """Whether norms are to be computed before the next draw: at steps that are known in advance."""
        return self.accounts.charges % self._refresh == 0

    def bound(self, ratios: Floats) -> None:
        """Take over ‖g_i‖/C of all records."""
        self.accounts.bound(self._margin * ratios)

    def charge(self, event: Event) -> NDArray[np.bool_]:
        """Charge everybody who takes part, before the coins are tossed. Returns who that is."""
        return self.accounts.charge(event)

    def clips(self, owners: Numbers) -> Tensor | None:
        """s_i of these records."""
        return torch.from_numpy(self.accounts.scales[owners]) if self.enforced else None


def norm_ratios(gradients: Gradients | Rows, request: Request) -> Floats:
    """The largest ‖g_i‖/C over the sums of a request, for each record; ∞ where a gradient is not finite."""
    norms = release_norms(squared_norms(as_gradients(gradients), request.sums), request.sums)
    ratios = [
        torch.ones_like(norm) if release.stabiliser is not None else norm / release.threshold
        for release, norm in zip(request.sums, norms, strict=True)
    ]
    largest = torch.stack(ratios).max(dim=0).values.detach().cpu()
    found: Floats = torch.where(largest.isfinite(), largest, torch.inf).double().numpy()
    return found
