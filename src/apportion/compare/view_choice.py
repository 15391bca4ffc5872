"""What an experiment says about views of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, model_validator

from apportion import validate
from apportion.compare.resolve import find_own, is_own
from apportion.errors import InvalidArgument

if TYPE_CHECKING:  # torch, which an experiment without views does not need
    from apportion.curator.views import Augmented


class ViewChoice(BaseModel):
    """Random views of each record, whose gradients are averaged before clipping (`apportion.augment`).

    Args:
        count: how many there are.
        by: "flip" or "flip=0.3" (probability), "shift" or "shift=4" (pixels), or a person's own `module:function` of one record.
            On a command line both are one text: "8 flip shift=4".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int
    by: tuple[str, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        count, *by = value.replace(",", " ").split() or [""]
        if not count.isdigit():
            fix = 'Write --views "8 flip shift=4"'
            raise InvalidArgument("views", value, "it begins with the number of views", fix)
        return {"count": int(count), "by": by}

    def views_of(self, data: Any) -> Augmented:
        """The data with these views of each record."""
        from apportion.curator.views import augment

        return augment(data, self.count, [_augmentation(one) for one in self.by])


def _augmentation(text: str) -> Any:
    from apportion.curator.views import MIXERS, MIXES, Flip, Shift

    if is_own(text):
        return find_own("views", text)
    name, _, amount = text.partition("=")
    if name in MIXERS:
        raise InvalidArgument("views", name, MIXES, "Use flip and shift, or your own module:function of one record")
    reason = "there is no such augmentation; module:function names one of your own"
    kinds = {"flip": Flip, "shift": Shift}
    kind = kinds[validate.known("views", name, kinds, reason)]
    if not amount:
        return kind()
    try:
        return kind(int(amount) if kind is Shift else float(amount))
    except ValueError:
        raise InvalidArgument("views", text, "what follows = is not a number", "Write shift=4 or flip=0.5") from None
