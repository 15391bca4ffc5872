"""`vmap` as the engines use it: every record with weights of its own, without the rules of torch's that are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.func import vmap

from apportion.curator.gradients.batching_rules import no_wrong_batching_rules


def over_records(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` of every record alone, all at once: every tensor of the arguments and of the results has the records in front."""
    with warnings.catch_warnings(), no_wrong_batching_rules():
        # Where torch loops over records inside one operator it says so on every call; the result is the same.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return vmap(function, randomness="different")(*arguments)
