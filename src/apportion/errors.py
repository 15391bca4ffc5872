"""Every error that Apportion raises on purpose.

    ApportionError
     ├── InvalidArgument     a value that cannot be right (also a ValueError)
     │    └── TakenOver      another process goes on with this run
     ├── UnsupportedModel    a layer or loss without a gradient of its own for each record
     ├── BudgetExhausted     a release that the declared plan does not cover
     ├── PrivacyViolation    an audit has shown that a stated guarantee does not hold
     ├── RankLost            a process of a run with several failed, or is not in the same state as the others
     ├── UnusableRecords     a noisy count has shown that most records of a run contribute nothing
     ├── WrongOrder          the training loop of a person called things in an order that breaks the guarantee
     ├── MissingExtra        a package that only some parts need is not installed (also an ImportError)
     └── DataNotFound        a data set that is not on this machine

The command line prints any of these as one line and exits with code 2 (3 for `UnusableRecords`: there the plan was charged). A message
names what was asked, what was found, why it matters and what to do instead.
"""

from __future__ import annotations

from typing import Any


class ApportionError(Exception):
    """Base of all deliberate errors."""


class InvalidArgument(ApportionError, ValueError):
    """`argument=value` is refused; nothing has been trained and nothing charged.

    Where the argument's own name is what is wrong, `value` is that name, and the message says it once.
    """

    def __init__(self, argument: str, value: object, reason: str, fix: str):
        self.argument, self.value, self.reason, self.fix = argument, value, reason, fix
        misnamed = isinstance(value, str) and f".{argument}".endswith(f".{value}")
        super().__init__(f"{argument}{'' if misnamed else f'={value!r}'}: {reason}. {fix}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """The way from a worker process: by the four arguments, not by the finished message that `Exception` would pass on."""
        plain = isinstance(self.value, str | int | float | None)
        return type(self), (self.argument, self.value if plain else _Shown(repr(self.value)), self.reason, self.fix)


class _Shown(str):
    """What stands for a value that may not bear the way itself, as a module or a function: its text, which reads the same."""

    def __repr__(self) -> str:
        return str(self)


class TakenOver(InvalidArgument):
    """Another process has spent the next token of this run. This one must stop, and leave the run folder to the other."""


class UnsupportedModel(ApportionError):
    """The model or the loss mixes records, so that no record has a gradient of its own to clip."""


class BudgetExhausted(ApportionError):
    """A release was asked for that no unspent token of the plan covers. It was refused before any record was read."""


class PrivacyViolation(ApportionError):
    """An audit has shown that a stated guarantee does not hold."""


class UnusableRecords(ApportionError):
    """By a noisy count, which is part of the plan, most records contribute nothing to a run. It has stopped, and can be resumed."""


class RankLost(ApportionError):
    """A run of several processes cannot go on together: one of them failed, was killed, or is not in the same state as the others."""


class WrongOrder(ApportionError, RuntimeError):
    """A step of a hand-written training loop is missing, doubled or out of place."""


class MissingExtra(ApportionError, ImportError):
    """`modules` are not installed; they come with the extra `extra` of the package."""

    def __init__(self, extra: str, *modules: str):
        self.extra, self.modules = extra, modules
        super().__init__(
            f"{' and '.join(modules)} {'is' if len(modules) == 1 else 'are'} not installed. "
            f'Install what this part needs with: pip install "apportion[{extra}]"'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """By the arguments, not by the finished message."""
        return type(self), (self.extra, *self.modules)


class DataNotFound(ApportionError):
    """A data set was asked for that none of the known places holds."""
