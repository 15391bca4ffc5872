"""What an experiment says about features."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from apportion import validate
from apportion.channel_norm import ChannelNorm
from apportion.compare.resolve import find_own, is_own
from apportion.errors import ApportionError, InvalidArgument

if TYPE_CHECKING:
    from apportion.features.extractor import FeatureMap
    from apportion.features.feature_norms import GroupNorm

_KINDS = {"scatter": "Scatter", "pretrained": "Pretrained", "words": "WordCounts"}
_NORMS = ("group", "whiten", "channel", "none")
_USUAL = {"scatter": "whiten", "words": "none"}
"""Normalisations of maps that were measured; all others are normalised by groups."""
_LATER = ("colours", "mirror", "directions")
_COLOURS = ("opponent", "rgb")
_OWN = ("kind", "norm", "groups", "multiplier", "bound", "colours", "mirror", "directions", "settings")


class FeatureChoice(BaseModel):
    """A feature map by its name, and how features are normalised.

    Args:
        kind: "scatter", "words", "pretrained", or a person's own `module:Class` or `module:object`.
        norm: "group", "whiten" (as of `apportion.features.Whiten`) or "none", which cost nothing; or "channel": by groups, and then
            each channel by a question that is paid for. A scattering transform is whitened if nothing is said.
        groups: of all but "none".
        multiplier, bound: of "channel", as of `apportion.features.ChannelNorm`.
        colours: "opponent", as of `apportion.features.Opponent`, or "rgb", as they are.
        mirror: whether features are averaged with those of the mirror image, as of `apportion.features.Mirror`.
        directions: of a random layer on the map, whitened, as of `apportion.features.RandomLayer`; none if nothing is said.
        settings: of the map. In a file they stand beside the others: {kind = "scatter", scale = 3}; on a command line all of it is one
            text, "scatter scale=3 norm=channel".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    norm: str | None = None
    groups: int | None = None
    multiplier: float | None = None
    bound: float | None = None
    colours: str | None = None
    mirror: bool | None = None
    directions: int | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """A name alone is a map with its defaults; what is not ours is a setting of the map."""
        if isinstance(value, str):
            value = _read_text(value)
        if not isinstance(value, dict) or "settings" in value:
            return value
        settings = {name: one for name, one in value.items() if name not in _OWN}
        return {name: one for name, one in value.items() if name in _OWN} | {"settings": settings}

    @model_serializer(mode="wrap")
    def _as_it_was(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what came later where nothing was said of it, so that a kept run keeps its key."""
        found: dict[str, Any] = write(self)
        return {name: one for name, one in found.items() if one is not None or name not in _LATER}

    @property
    def normalisation(self) -> str:
        """`norm`, or what is usual for the map."""
        return validate.known("features.norm", self.norm or _USUAL.get(self.kind, "group"), _NORMS)

    def build_map(self) -> FeatureMap:
        """The map itself, of the colours that were said, whitened if that is the normalisation, and averaged over mirror images."""
        from apportion.features.colours import Opponent
        from apportion.features.mirroring import Mirror

        found = self._build_map()
        if validate.known("features.colours", self.colours or "rgb", _COLOURS) == "opponent":
            found = Opponent(found)
        found = self._whitened(found)
        return Mirror(found) if self.mirror else found

    def _whitened(self, found: FeatureMap) -> FeatureMap:
        """With a random layer, if one was said; it is whitened itself."""
        from apportion.features.random_layer import RandomLayer
        from apportion.features.whitening import Whiten

        said = {} if self.groups is None else {"groups": self.groups}
        if self.normalisation != "whiten":
            if self.directions is not None:
                reason = f"a random layer is whitened, and this is normalised by norm={self.normalisation}"
                raise InvalidArgument(
                    "features.directions", self.directions, reason, "Say norm=whiten too, or leave it out"
                )
            return found
        return Whiten(found, **said) if self.directions is None else RandomLayer(found, self.directions, **said)

    def _build_map(self) -> FeatureMap:
        from apportion import features
        from apportion.features.extractor import require_feature_map

        if is_own(self.kind):
            found = find_own("features", self.kind)
            if not isinstance(found, type) and not self.settings:
                return require_feature_map(found)
            if not isinstance(found, type) or not (hasattr(found, "build") and hasattr(found, "public")):
                # only a feature map is called: a file must not choose what else is run, as `os:system` would be
                reason = "it is no class with the statement `public` and the method `build(shape)`"
                raise InvalidArgument("features", self.kind, reason, "Name a class of feature maps")
        else:
            reason = "there is no such feature map; module:Class names one of your own"
            found = getattr(features, _KINDS[validate.known("features", self.kind, _KINDS, reason)])
        try:
            return require_feature_map(found(**self.settings))
        except ApportionError:
            raise
        except Exception as error:
            reason = f"it cannot be made of its settings: {type(error).__name__}: {error}"
            raise InvalidArgument("features", self.kind, reason, "Correct its settings") from error

    def build_norm(self) -> GroupNorm | None:
        """The normalisation that follows; `None` for none, and where it is part of the map."""
        from apportion.features.feature_norms import GroupNorm

        if self.normalisation in ("whiten", "none"):
            return None
        return GroupNorm() if self.groups is None else GroupNorm(self.groups)

    def channel_norm(self) -> ChannelNorm | None:
        """What is asked before the first step; `None` for nothing."""
        said = {name: one for name in ("multiplier", "bound") if (one := getattr(self, name)) is not None}
        if self.normalisation == "channel":
            return ChannelNorm(**said)
        for name, one in said.items():
            reason = f"it is about the question that is paid for, and norm={self.normalisation} asks none"
            raise InvalidArgument(f"features.{name}", one, reason, "Say norm=channel too, or leave it out")
        return None


def _read_text(text: str) -> dict[str, Any]:
    """A name, and name=value of each setting, as on a command line."""
    kind, *said = text.split() or [""]
    found: dict[str, Any] = {"kind": kind}
    for one in said:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            fix = 'Write "scatter norm=channel"'
            raise InvalidArgument("features", text, f"{one!r} is not name=value", fix)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
