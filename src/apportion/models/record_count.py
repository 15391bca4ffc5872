"""The number of records as a size that notices when code looks at it (`record_tracer.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apportion.models.record_tracer import RecordTracer


class RecordCount(int):
    """k·B as a size. A comparison whose outcome is the same for every B ≥ 1 is answered; of any other use the tracer takes note."""

    _tracer: RecordTracer
    _times: int

    @staticmethod
    def of(value: int, tracer: RecordTracer) -> RecordCount:
        count = RecordCount(value)
        count._tracer, count._times = tracer, value // tracer.records
        return count

    def _seen(self) -> None:
        self._tracer.mark_count_seen()

    def _compared(self, other: Any, name: str) -> Any:
        outcome = getattr(int, name)(self, other)
        if isinstance(other, RecordCount):
            return outcome  # k·B and m·B compare as k and m do
        if outcome is NotImplemented:
            self._seen()  # a number that is no integer makes the comparison itself
            return outcome
        certain = {
            "__eq__": other < self._times or other % self._times,
            "__ne__": other < self._times or other % self._times,
            "__lt__": other <= self._times,
            "__ge__": other <= self._times,
            "__gt__": other < self._times,
            "__le__": other < self._times,
        }[name]
        if not certain:
            self._seen()
        return outcome

    def __mul__(self, other: Any) -> Any:
        product = int.__mul__(self, other)
        if type(other) is int and other > 0:
            return RecordCount.of(product, self._tracer)
        if type(other) is not int or other != 0:
            self._seen()
        return product

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        quotient = int.__floordiv__(self, other)
        if type(other) is int and other > 0 and self._times % other == 0:
            return RecordCount.of(quotient, self._tracer)
        if isinstance(other, RecordCount) and self._times % other._times == 0:
            return quotient
        self._seen()
        return quotient


def _comparison(name: str) -> Callable[..., Any]:
    return lambda self, other: self._compared(other, name)


def _count_seen_method(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: RecordCount, *others: Any) -> Any:
        self._seen()
        return plain(self, *others)

    return method


_SEEN_METHODS = (
    "__add__ __radd__ __sub__ __rsub__ __truediv__ __rtruediv__ __rfloordiv__ __mod__ __rmod__ __divmod__ "
    "__rdivmod__ __pow__ __rpow__ __and__ __or__ __xor__ __lshift__ __rshift__ __rand__ __ror__ __rxor__ __rlshift__ "
    "__rrshift__ __neg__ __pos__ __abs__ __invert__ __int__ __float__ __index__ __trunc__ __floor__ __ceil__ "
    "__round__ __hash__ __str__ __repr__ __format__ __reduce__ __getnewargs__ __sizeof__ bit_length bit_count "
    "to_bytes as_integer_ratio conjugate"
)
"""Whatever else is done with a number of records may depend on its value."""

for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(RecordCount, _name, _comparison(_name))
for _name in _SEEN_METHODS.split():
    setattr(RecordCount, _name, _count_seen_method(_name))
for _name in ("real", "numerator"):
    setattr(RecordCount, _name, property(_count_seen_method("__int__")))


class Shape(tuple[int, ...]):
    """A shape with `RecordCount`s in it. torch's own, from which nobody can inherit, would hand out their product as a plain number."""

    def numel(self) -> int:
        product: int = 1
        for size in self:
            product = size * product
        return product

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(repr, self))}])"

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Shape(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return Shape((*self, *other))
