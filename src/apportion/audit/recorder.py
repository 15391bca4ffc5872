"""The instruments that stand around a run: they watch its coins, its reads, its charges, its noise and its public state.

On D noise is real and every noisy sum is kept. On D′ the kept values are handed out again whatever the exact sum is. From then on
both runs see the same released values, so whatever still differs in public has come past the mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.audit.state import State, public_state
from apportion.curator import mechanisms
from apportion.curator.owners import Numbers
from apportion.curator.randomness import KEY_BYTES, DrawStreams, Randomness, Stream
from apportion.event import Event
from apportion.releases import FirstGain, LowestLoss, Selection
from apportion.request import Released
from apportion.training.session import Session

LONE_STEP = 2
"""In this step no other record's coin falls true: one of the two batches is empty."""


@dataclass(frozen=True, eq=False)
class NoiseCall:
    """One call of the mechanism: what it was given and what it answered, both kept in float64."""

    exact_sum: Tensor
    standard_deviation: float
    divisor: float
    answer: Tensor
    own_stream: bool
    dtype: torch.dtype
    """In which the sum was given, and the answer rounded."""


@dataclass(frozen=True, eq=False)
class ChoiceCall:
    """One selection: the exact summed losses or gains, and the index that was chosen."""

    totals: Tensor
    release: Selection
    answer: int | None
    own_stream: bool


@dataclass(eq=False)
class Step:
    """One draw, from its coins to its answer.

    Args:
        before: the public state when the coins were tossed.
        charged: the events in the ledger by then.
        noise: the stream that belongs to this draw.
        coins: (how many, with which probabilities) for every toss.
        calls, choices: of the mechanisms, in their order.
        members, read: the records of those whose coin fell true, and those that were read.
        forms: of each released tensor all that is to be seen of it but its numbers.
    """

    before: State
    charged: tuple[Event, ...]
    noise: Stream
    coins: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    calls: list[NoiseCall] = field(default_factory=list)
    choices: list[ChoiceCall] = field(default_factory=list)
    released: Released | None = None
    forms: dict[str, tuple[object, ...]] = field(default_factory=dict)


class Diverged(Exception):
    """D′ asked for noise that D had not asked for: there is nothing to hand out."""


class Recorder:
    """Watches one run.

    Args:
        common: how many coins are tossed for what both data sets share; those after them fall true in every draw.
        kept: the noisy sums to hand out, by step and call; `None` to add real noise.
        secret: which secret stream dropout would have.
        rank: of a run of several ranks, which of them is watched (`recorded_ranks.py`).
    """

    def __init__(self, common: int, kept: Recorder | None = None, secret: int = 0, rank: int = 0):
        self.common, self._kept = common, kept
        self.records_of: Callable[[Numbers], Numbers] = lambda drawn: drawn
        self.randomness = _Draws(self, secret, rank)
        self.session: Session | None = None
        self.steps: list[Step] = []
        self.after: State = {}
        self.charged: tuple[Event, ...] = ()
        self.failure: str | None = None

    def watch(self, session: Session) -> None:
        """Follow `session` from now on."""
        self.session = session
        apply = session.apply

        def watched(released: Released) -> object:
            self.steps[-1].released = released
            self.steps[-1].forms = {name: _form(tensor) for name, tensor in released.gradient.items()}
            return apply(released)

        session.apply = watched  # type: ignore[assignment,method-assign]

    def finish(self) -> None:
        """Write down how the run ended."""
        if self.session is not None:
            self.after, self.charged = public_state(self.session), self._events()

    def states(self) -> list[State]:
        """The public state before every step and at the end."""
        return [*(step.before for step in self.steps), self.after]

    def begin(self, noise: Stream) -> Step:
        """A draw begins."""
        assert self.session is not None
        self.steps.append(Step(public_state(self.session), self._events(), noise))
        return self.steps[-1]

    def read(self, indices: NDArray[np.int64]) -> None:
        """Records were read."""
        if self.steps and self.steps[-1].released is None:  # not in between, for norms that bound what comes
            self.steps[-1].read.update(indices.tolist())

    def add_gaussian_noise(self, exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor:
        """Real noise, or the answer that was kept for this call."""
        step, exact, own_stream = self.steps[-1], exact_sum.double().clone(), noise is self.steps[-1].noise
        kept = None if self._kept is None else self._kept_answer(exact_sum)
        answer = mechanisms.add_gaussian_noise(exact_sum, standard_deviation, noise, divisor)
        if kept is not None:
            answer.data.copy_(kept)  # not counted as a write: in its form, too, the answer is a real one
        shown = answer.double().clone()
        step.calls.append(NoiseCall(exact, standard_deviation, divisor, shown, own_stream, exact_sum.dtype))
        return answer

    def noisy_argmin(self, totals: Tensor, release: LowestLoss, noise: Stream) -> int:
        """A real choice, or the one that was kept for this call."""
        answer = self._choose(totals, release, mechanisms.noisy_argmin(totals, release, noise), noise)
        assert answer is not None
        return answer

    def above_threshold(self, gains: Tensor, release: FirstGain, noise: Stream) -> int | None:
        """Likewise."""
        return self._choose(gains, release, mechanisms.above_threshold(gains, release, noise), noise)

    def _choose(self, totals: Tensor, release: Selection, answer: int | None, noise: Stream) -> int | None:
        step = self.steps[-1]
        if self._kept is not None:
            number, call = len(self.steps) - 1, len(step.choices)
            kept = self._kept.steps[number].choices if number < len(self._kept.steps) else []
            if call >= len(kept) or len(kept[call].totals) != len(totals):
                raise Diverged(f"selection {call + 1} of step {number + 1}, of {len(totals)} candidates, is a new one")
            answer = kept[call].answer
        step.choices.append(ChoiceCall(totals.clone(), release, answer, noise is step.noise))
        return answer

    def _kept_answer(self, exact_sum: Tensor) -> Tensor:
        assert self._kept is not None
        number, call = len(self.steps) - 1, len(self.steps[-1].calls)
        kept = self._kept.steps[number].calls if number < len(self._kept.steps) else []
        if call >= len(kept) or kept[call].answer.shape != exact_sum.shape:
            raise Diverged(
                f"noise call {call + 1} of step {number + 1}, of shape {tuple(exact_sum.shape)}, is a new one"
            )
        return kept[call].answer

    def _events(self) -> tuple[Event, ...]:
        assert self.session is not None
        account = self.session.account
        return () if account.run is None else tuple(account.ledger.events(account.run))


def _form(tensor: Tensor) -> tuple[object, ...]:
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor._is_view(),
        tensor._version,
    )


class _Draws(Randomness):
    """Reproducible streams, in which the last record is always drawn."""

    def __init__(self, recorder: Recorder, secret: int, rank: int):
        super().__init__(bytes([rank]) * KEY_BYTES, private=False)
        self._recorder = recorder
        self._secret = Randomness(bytes([secret]) * KEY_BYTES, private=False)

    def next_draw(self) -> DrawStreams:
        streams = super().next_draw()
        step = self._recorder.begin(streams.noise)
        alone = len(self._recorder.steps) == LONE_STEP
        return DrawStreams(
            _Coins(streams.coins, step, self._recorder, alone),
            streams.noise,
            self._secret.next_draw().model,
            streams.views,
        )


class _Coins(Stream):
    """The coins of the common records are the same on every data set, and those of all further records fall true."""

    def __init__(self, stream: Stream, step: Step, recorder: Recorder, alone: bool):
        self._stream, self._step, self._recorder, self._alone = stream, step, recorder, alone

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._stream.words(count)

    def coins(self, count: int, probability: float) -> NDArray[np.bool_]:
        common = self._stream.coins(min(count, self._recorder.common), probability)
        return self._watched(count, common, (probability,))

    def group_coins(self, groups: Numbers, probabilities: Sequence[float]) -> NDArray[np.bool_]:
        common = self._stream.group_coins(groups[: self._recorder.common], probabilities)
        return self._watched(len(groups), common, tuple(probabilities))

    def _watched(self, count: int, common: NDArray[np.bool_], rates: tuple[float, ...]) -> NDArray[np.bool_]:
        tossed = np.ones(count, dtype=bool)
        tossed[: len(common)] = False if self._alone else common
        self._step.coins.append((count, rates))
        self._step.members = set(self._recorder.records_of(np.flatnonzero(tossed)).tolist())
        return tossed
