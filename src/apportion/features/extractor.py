"""A feature map for records of one shape, with its normalisation: public, fixed, and the same for a record whatever others there are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument, UnsupportedModel
from apportion.features.feature_norms import GroupNorm
from apportion.models.probe import probe_fixed
from apportion.models.proof import CannotTrace, trace_forward

_FORMAT = 1
_STATED = 'Say where its numbers come from: public="weights of ..., trained on public images"'


@runtime_checkable
class FeatureMap(Protocol):
    """What fills this role: `Scatter`, `Pretrained`, or a person's own class.

    Attributes:
        public: where its numbers come from, in words: the statement that none of them depends on private records.
    """

    @property
    def public(self) -> str:
        """The statement."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """The map of inputs of this shape: (records, *shape) → (records, channels, …)."""


class Extractor(nn.Module):
    """Normalised features of each record, as one vector: norm(map(x)), flattened.

    It is frozen: it stays in eval() mode, has no gradient, and was run on synthetic records to see that the features of a record are its
    own. Records are computed together where it is also proved that they stay apart, and otherwise one by one.

    Args:
        features: a feature map, such as `Scatter()`.
        shape: of the inputs of one record.
        norm: `GroupNorm(...)`, or `None` for features as they are.
        dtype: of the inputs.

    Guarantee: a fixed function of one record, so it costs nothing, as long as the statement of the map is true.

    Raises:
        InvalidArgument: if the map mixes records, trains, keeps statistics of batches, is random, or does not say where it comes from.

    Examples:
        >>> import apportion as ap
        >>> ap.features.Extractor(ap.features.Scatter(), (1, 28, 28)).width
        3969
    """

    _DEFAULT = GroupNorm()

    def __init__(
        self,
        features: FeatureMap,
        shape: tuple[int, ...],
        norm: GroupNorm | None = _DEFAULT,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.features, self.norm = require_feature_map(features), norm
        self.shape, self.dtype = tuple(shape), dtype
        found: Any = self.features.build(self.shape)
        if not isinstance(found, nn.Module):
            reason = f"its build returned a {type(found).__name__}"
            raise InvalidArgument("features", self._kind, reason, "Return a torch.nn.Module")
        self.map = found
        self.requires_grad_(False).eval()
        self.together = self._vet()
        with torch.no_grad():
            self.width, self.channels = (int(one(self._example[None]).shape[1]) for one in (self, self.map))

    @property
    def positions(self) -> int:
        """How many features each channel has."""
        return self.width // self.channels

    @property
    def _kind(self) -> str:
        return type(self.features).__name__

    @property
    def _example(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """(records, *shape) → (records, width), float32."""
        found: Tensor = self.map(inputs)
        return (found if self.norm is None else self.norm.apply(found)).flatten(1).float()

    def train(self, mode: bool = True) -> Extractor:
        """It is not trained, whatever a model around it is told."""
        return super().train(False)

    def _vet(self) -> bool:
        """Refuse a map that is not fixed or mixes records; whether it is proved that they may be computed together."""
        if stuck := [name for name, module in self.map.named_modules() if module.training]:
            reason = f"{stuck[0] or 'it'} stays in training mode after eval(), and a feature map is not trained"
            raise InvalidArgument("features", self._kind, reason, "Let eval() reach all of its modules")
        try:
            probe_fixed(self, self._example)
        except UnsupportedModel as error:
            fix = "Use a map that computes the features of a record from that record alone, and keeps nothing"
            raise InvalidArgument("features", self._kind, str(error).rstrip("."), fix) from error
        try:
            trace_forward(self, self._example)
        except CannotTrace:
            return False
        return True

    def describe(self) -> dict[str, Any]:
        """Map, normalisation and shape as plain values, to be built again from."""
        norm = None if self.norm is None else asdict(self.norm)
        dtype = str(self.dtype).removeprefix("torch.")
        return {"map": describe_map(self.features), "norm": norm, "shape": list(self.shape), "dtype": dtype}

    def digest(self) -> str:
        """Of all that decides what it computes: settings, weights, and its answers to made-up records, which tell of changed code."""
        found = hashlib.blake2b(json.dumps([_FORMAT, self.describe()], sort_keys=True).encode(), digest_size=32)
        for name, tensor in sorted(self.state_dict().items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            answers = self(torch.rand(2, *self.shape, generator=generator).to(self.dtype))
        found.update(answers.to(torch.bfloat16).float().numpy().tobytes())  # the last digits differ between machines
        return found.hexdigest()


def require_feature_map(value: Any) -> FeatureMap:
    """Refuse what is not a feature map, or does not say that it is public."""
    if not isinstance(value, type) and callable(getattr(value, "build", None)) and hasattr(value, "public"):
        stated = value.public
        if isinstance(stated, str) and stated.strip():
            return cast(FeatureMap, value)
        reason = "features that were learned from private records would reveal them, so it must be stated that these were not"
        raise InvalidArgument("features.public", stated, reason, _STATED)
    reason = "a feature map has the statement `public` and the method `build(shape)`"
    raise InvalidArgument("features", type(value).__name__, reason, "Pass apportion.features.Scatter()")


def describe_map(features: Any) -> dict[str, Any]:
    """A feature map as data. A kind that is not ours is called `module:Class`."""
    kind = type(features)
    ours = kind.__module__.startswith("apportion.features.")
    fields = asdict(features) if is_dataclass(features) and not isinstance(features, type) else {}
    name = kind.__name__.lower() if ours else f"{kind.__module__}:{kind.__qualname__}"
    return {"kind": name, **json.loads(json.dumps(fields, default=lambda one: type(one).__name__))}
